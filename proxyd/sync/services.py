"""What every Service comes to: worked out on demand, and remembered (counts, Findings, flows) once the kernel has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from proxyd.desired.flows import places
from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Desired, Lookup
from proxyd.model import Family, Finding, NodeSettings, Reason, ServiceKey
from proxyd.sync.flows import FlowTracker
from proxyd.sync.tally import Tally

log = structlog.get_logger("proxyd.sync")


Objects = TypeVar("Objects")


class Worked(NamedTuple, Generic[Objects]):
    """One Service as it was worked out: what it forwards (None: nothing here), its objects, and what to say about it.

    ``objects`` are those of the mode. ``failed``: it could not be worked out; what the kernel has of it stays as it is.
    """

    forwarding: Forwarding | None
    objects: Objects | None
    findings: tuple[Finding, ...]
    failed: bool = False


class Services:
    """The Services of one family. Used by the sync thread only."""

    def __init__(self, family: Family, lookup: Lookup) -> None:
        self.family = family
        self.tally = Tally()
        self.findings: dict[ServiceKey, tuple[Finding, ...]] = {}
        self.desired = Desired(family, lookup)
        self.flows = FlowTracker(self.desired.in_slices)

    @property
    def quarantined(self) -> tuple[ServiceKey, ...]:
        """The Services that the kernel refused, and that are not served until it takes them."""
        refused = Reason.KERNEL_REFUSED
        return tuple(key for key, found in self.findings.items() if any(each.reason is refused for each in found))

    def work_out(
        self, key: ServiceKey, settings: NodeSettings, make: Callable[[Forwarding], Objects]
    ) -> Worked[Objects]:
        """Decides about one Service and makes its objects; a fault of ours in doing so costs this Service only."""
        try:
            forwarding, findings = self.desired.forwarding(key, settings)
            return Worked(forwarding, make(forwarding) if forwarding else None, findings)
        except Exception as error:
            log.exception("a Service could not be worked out", service=str(key), ip_family=self.family)
            return Worked(None, None, (_fault(key, error),), failed=True)

    def settled(self, work: Mapping[ServiceKey, Worked[Any]], settings: NodeSettings) -> None:
        """Remembers Services as the kernel has them now."""
        for key, each in work.items():
            if not each.failed:
                self.tally.note(key, each.forwarding)
                self.flows.note(key, places(each.forwarding, settings) if each.forwarding else {})
            if each.findings:
                self.findings[key] = each.findings
            else:
                self.findings.pop(key, None)

    def refused(self, key: ServiceKey, error: str) -> None:
        """Remembers that the kernel does not take a Service."""
        self.findings[key] = (Finding("Service", str(key), Reason.KERNEL_REFUSED, error),)

    def faulty(self, key: ServiceKey, error: Exception) -> None:
        """Remembers that a fault of ours kept a Service from being written."""
        self.findings[key] = (_fault(key, error),)

    def count_anew(self, keys: Iterable[ServiceKey]) -> None:
        """Begins to count at 0, for these Services; of others nothing is known any more."""
        self.tally = Tally()
        # Each stays until its Service has been looked at again, so that a failure does not hide it for a while.
        here = set(keys)
        self.findings = {key: each for key, each in self.findings.items() if key in here}


def _fault(key: ServiceKey, error: Exception) -> Finding:
    return Finding("Service", str(key), Reason.INTERNAL_ERROR, repr(error))
