"""What passes over one family's rules have in common in both modes: what is owed, and what comes first.

What the kernel holds is known only from writes that succeeded. Whenever that knowledge is in doubt (start, a refused
write) everything is written anew; what others changed in known places is mended place by place. A Service that the kernel
refused is written alone from there on: the kernel has nothing of it, so that another clear refusal puts nothing in doubt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Generic, Protocol, TypeVar

import structlog

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family, Finding, NodeSettings, ServiceKey
from proxyd.nft.drift import Drift
from proxyd.sync.services import Services
from proxyd.sync.stopwatch import Stopwatch
from proxyd.sync.tally import Tally

log = structlog.get_logger("proxyd.sync")

AllKeys = Callable[[], list[ServiceKey]]
CleanFlows = Callable[[Family, Mapping[FrontendKey, Live]], None]
Held = TypeVar("Held")


class Counted(Protocol):
    """Writes to the kernel, counted since ``begin``."""

    operations: int
    refusals: int
    in_kernel: Stopwatch

    def begin(self) -> None:
        """Counts from 0 again."""


class Reconciler(ABC, Generic[Held]):
    """Most of a ``FamilyRules``. ``Held`` is what a mode knows of what the kernel holds. Used by the sync thread only."""

    def __init__(self, services: Services, counted: Counted, clean_flows: CleanFlows) -> None:
        self.family = services.family
        self.settings: NodeSettings | None = None
        self.rewritten = False
        self.concerned: Set[ServiceKey] = frozenset()
        self.changes_refused = False
        """Whether the kernel refused what changed in the last pass, so that everything had to be written."""
        self._services = services
        self._counted = counted
        self._clean_flows = clean_flows
        self._held: Held | None = None
        self._owed: set[ServiceKey] = set()
        self._drift: Drift | None = None

    @property
    def operations(self) -> int:
        """See ``FamilyRules``."""
        return self._counted.operations

    @property
    def refusals(self) -> int:
        """See ``FamilyRules``."""
        return self._counted.refusals

    @property
    def in_kernel(self) -> float:
        """See ``FamilyRules``."""
        return self._counted.in_kernel.seconds

    @property
    def tally(self) -> Tally:
        """See ``FamilyRules``."""
        return self._services.tally

    @property
    def findings(self) -> dict[ServiceKey, tuple[Finding, ...]]:
        """See ``FamilyRules``."""
        return self._services.findings

    @property
    def quarantined(self) -> tuple[ServiceKey, ...]:
        """See ``FamilyRules``."""
        return self._services.quarantined

    @property
    def full_owed(self) -> bool:
        """Whether the next pass has to write everything."""
        return self._held is None

    def sync(self, dirty: Iterable[ServiceKey], all_keys: AllKeys, settings: NodeSettings) -> None:
        """See ``FamilyRules``."""
        self._counted.begin()
        self.rewritten = self.changes_refused = False
        self._owed.update(dirty)
        self.concerned = self._owed
        self._write(all_keys, settings)
        self._hand_over_flows()

    def retry_quarantined(self, all_keys: AllKeys) -> None:
        """See ``FamilyRules``."""
        if self._held is None or self.settings is None:
            return
        try:
            self._write_alone(self._held, self.quarantined, self.settings)
        except OutcomeUnclearError as error:
            log.warning("outcome not known, everything is written anew", ip_family=self.family, error=str(error))
            self.forget()
            self._write(all_keys, self.settings)
        self._hand_over_flows()

    def forget(self) -> None:
        """See ``FamilyRules``."""
        self._held = self._drift = None

    def mend(self, drift: Drift) -> None:
        """See ``FamilyRules``."""
        if drift.everything:
            self.forget()
        elif self._held is not None:
            self._drift = self._drift.then(drift) if self._drift is not None else drift

    def _write(self, all_keys: AllKeys, settings: NodeSettings) -> None:
        if self._held is not None and self._can_change(settings):
            try:
                if self._drift is not None:
                    drift, self._drift = self._drift, None
                    self._repair(self._held, drift)
                    # The kernel may have refused Services because of what is undone now.
                    self._owed.update(self.quarantined)
                self._write_changes(self._held, all_keys, settings)
                return
            except KernelRefusedError as error:
                self.changes_refused = True
                log.warning("transaction refused, writing everything anew", ip_family=self.family, error=str(error))
        # After a refusal our picture of the kernel is most likely wrong; nothing that follows may build on it.
        self.forget()
        self.rewritten = True
        self._held = self._write_all([*all_keys(), *self._owed], settings)
        self.settings, self._owed = settings, set()

    def _write_owed(self, held: Held, settings: NodeSettings) -> None:
        """Writes what is owed. Raises ``KernelRefusedError``, and nothing is known then of what the kernel holds."""
        refused_before = self._owed.intersection(self.quarantined)
        self._change(held, self._owed - refused_before, settings)
        self._write_alone(held, refused_before, settings)
        self._owed = set()

    def _write_alone(self, held: Held, keys: Iterable[ServiceKey], settings: NodeSettings) -> None:
        """Writes Services that the kernel refused before; one that it refuses again stays so, and costs no other.

        Raises ``OutcomeUnclearError``.
        """
        for key in sorted(keys):
            try:
                self._change(held, {key}, settings)
            except OutcomeUnclearError:
                raise
            except KernelRefusedError as error:
                self._services.refused(key, str(error))

    def _hand_over_flows(self) -> None:
        """Only with the new rules in place: a flow that goes before them can come back as it was."""
        if changed := self._services.flows.take():
            self._clean_flows(self.family, changed)

    @abstractmethod
    def _can_change(self, settings: NodeSettings) -> bool:
        """Whether these settings can take the place of the present ones without everything being written."""

    @abstractmethod
    def _write_all(self, keys: list[ServiceKey], settings: NodeSettings) -> Held | None:
        """Writes everything, with nothing known. Raises ``KernelRefusedError``, ``StoppedError``.

        Gives None where the kernel may have more than was accepted, so that the next pass has to write everything again.
        """

    @abstractmethod
    def _write_changes(self, held: Held, all_keys: AllKeys, settings: NodeSettings) -> None:
        """Writes what is owed and what these settings make different. Raises ``KernelRefusedError``."""

    @abstractmethod
    def _change(self, held: Held, keys: Set[ServiceKey], settings: NodeSettings) -> None:
        """Writes these Services as they are now. Raises ``KernelRefusedError``, with nothing noted of them."""

    @abstractmethod
    def _repair(self, held: Held, drift: Drift) -> None:
        """Undoes what others did. Raises ``KernelRefusedError``."""
