"""Running totals of what is served, kept as Services change so that nobody has to count them all."""

from __future__ import annotations

from typing import NamedTuple

from proxyd.desired.forwarding import Forwarding, HealthCheck
from proxyd.model import ServiceKey


class Counts(NamedTuple):
    """Endpoints, and ServicePorts that have endpoints but none on this node while their policy is Local."""

    endpoints: int = 0
    no_local_internal: int = 0
    no_local_external: int = 0


class Tally:
    """Counts of each Service in the kernel and their sums."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, Counts] = {}
        self._health_checks: dict[ServiceKey, HealthCheck] = {}
        self.total = Counts()

    @property
    def services(self) -> int:
        """How many Services are served."""
        return len(self._of)

    @property
    def health_checks(self) -> tuple[HealthCheck, ...]:
        """The Services that load balancers ask about."""
        return tuple(self._health_checks.values())

    def note(self, key: ServiceKey, forwarding: Forwarding | None) -> None:
        """Takes the present state of one Service."""
        old = self._of.pop(key, Counts())
        new = Counts()
        self._health_checks.pop(key, None)
        if forwarding is not None and forwarding.health_check is not None:
            self._health_checks[key] = forwarding.health_check
        if forwarding is not None:
            new = self._of[key] = count(forwarding)
        self.total = Counts(
            *(total - before + after for total, before, after in zip(self.total, old, new, strict=True))
        )


def count(forwarding: Forwarding) -> Counts:
    """Counts one Service."""
    ports = forwarding.ports
    return Counts(
        sum(len(port.cluster) or len(port.local) for port in ports),
        sum(port.no_local_internal for port in ports),
        sum(port.no_local_external for port in ports),
    )
