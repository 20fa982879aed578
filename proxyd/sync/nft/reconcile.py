"""One family's rules: brings the kernel to what is desired, by what changed if possible and from scratch if not.

What the kernel holds is known only from commits that succeeded. Whenever that knowledge is in doubt (start, a refused
transaction) everything is written anew; what others changed in known places is mended place by place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import structlog

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.desired.services import Lookup
from proxyd.kernel.nft.ruleset import Ruleset
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family, Finding, NodeSettings, ServiceKey
from proxyd.nft.delta import NODE
from proxyd.nft.drift import Drift
from proxyd.nft.fixed import base_chains
from proxyd.nft.layout import Layout
from proxyd.nft.render import render_service
from proxyd.nft.repair import repair
from proxyd.sync.nft.commits import Changes, Commits
from proxyd.sync.nft.full import FullWriter, Written, node_objects
from proxyd.sync.nft.leftovers import Leftovers
from proxyd.sync.services import Services
from proxyd.sync.status import Counts
from proxyd.sync.tally import Tally

log = structlog.get_logger("proxyd.sync")


class NftReconciler:
    """Keeps one family's table equal to the desired state. Used by the sync thread only."""

    def __init__(
        self,
        family: Family,
        ruleset: Ruleset,
        lookup: Lookup,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[Family, int, int], None] = lambda *_: None,
        clean_flows: Callable[[Family, Mapping[FrontendKey, Live]], None] = lambda *_: None,
    ) -> None:
        self.family = family
        self.settings: NodeSettings | None = None
        """The settings that the kernel's rules were made with, None before the first pass."""
        self.rewritten = False
        """Whether the last pass wrote everything, or tried to."""
        self._services = Services(family, lookup)
        self._commits = Commits(family, ruleset)
        self._leftovers = Leftovers(self._commits)
        self._full = FullWriter(self._commits, self._services, self._leftovers, stopping, progress)
        self._clean_flows = clean_flows
        self._written: Written | None = None
        self._owed: set[ServiceKey] = set()
        self._drift: Drift | None = None

    @property
    def operations(self) -> int:
        """How much the last pass wrote."""
        return self._commits.operations

    @property
    def refusals(self) -> int:
        """How many transactions were refused in the last pass."""
        return self._commits.refusals

    @property
    def counts(self) -> Counts:
        """Rules are not counted in this mode."""
        return Counts()

    @property
    def tally(self) -> Tally:
        """Counts of what is in the kernel."""
        return self._services.tally

    @property
    def findings(self) -> dict[ServiceKey, tuple[Finding, ...]]:
        """What there is to say about each Service."""
        return self._services.findings

    def finds_rules(self) -> bool:
        """Whether the kernel has rules of an earlier run in use. Raises ``KernelRefusedError``."""
        names = {chain.name for chain in base_chains(Layout(self.family, 1, 0))}
        return not names.isdisjoint(self._commits.contents().chains)

    @property
    def full_owed(self) -> bool:
        """Whether the next pass has to write everything."""
        return self._written is None

    @property
    def cleanup_owed(self) -> bool:
        """Whether there are objects in the kernel that nothing uses any more."""
        unused = self._written is not None and self._written.holdings.plan_cleanup() is not None
        return unused or self._leftovers.owed

    @property
    def quarantined(self) -> tuple[ServiceKey, ...]:
        """The Services that the kernel refused, and that are not served until it takes them."""
        return self._services.quarantined

    def sync(
        self, dirty: Iterable[ServiceKey], all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        """One pass. ``dirty`` are Services that changed; whatever an earlier pass could not do is done as well.

        Raises ``KernelRefusedError`` where something is still owed afterwards, ``StoppedError`` at shutdown.
        """
        self._commits.begin()
        self.rewritten = False
        self._owed.update(dirty)
        self._write(all_keys, settings)
        self._hand_over_flows()

    def retry_quarantined(self) -> None:
        """Tries each Service that was refused once more, alone: the refusal may not have been about the Service."""
        if self._written is None or self.settings is None:
            return
        layout, holdings = self._written
        for key in self.quarantined:
            work = {key: self._services.work_out(key, self.settings, lambda made: render_service(made, layout))}
            try:
                self._commits.change(holdings, {key: work[key].objects})
            except KernelRefusedError:
                continue
            self._services.settled(work, self.settings)
        self._hand_over_flows()

    def forget(self) -> None:
        """Takes nothing about the kernel for known any more: the next pass writes everything."""
        self._written = self._drift = None

    def mend(self, drift: Drift) -> None:
        """Has the next pass undo what others did: in the places of ``drift``, or by writing everything."""
        if drift.everything:
            self.forget()
        elif self._written is not None:
            self._drift = self._drift.then(drift) if self._drift is not None else drift

    def cleanup(self) -> None:
        """Deletes what nothing uses any more. Raises ``KernelRefusedError``; it is then owed as before."""
        if self._leftovers.owed:
            self._leftovers.delete()
        if self._written is not None and (transaction := self._written.holdings.plan_cleanup()) is not None:
            self._commits.tidy(transaction)
            self._written.holdings.confirm_cleanup(transaction)

    def _hand_over_flows(self) -> None:
        """Only with the new rules in place: a flow that goes before them can come back as it was."""
        if changed := self._services.flows.take():
            self._clean_flows(self.family, changed)

    def _write(self, all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings) -> None:
        if self._written is not None:
            try:
                self._write_repair(self._written)
                self._write_changes(self._written, all_keys, settings)
                return
            except KernelRefusedError as error:
                # Most likely our picture of the kernel is wrong; nothing that follows may build on it.
                self.forget()
                log.warning("transaction refused, writing everything anew", ip_family=self.family, error=str(error))
        self.rewritten = True
        self._written = self._full.write([*all_keys(), *self._owed], settings)
        self.settings, self._owed = settings, set()

    def _write_repair(self, written: Written) -> None:
        drift, self._drift = self._drift, None
        if drift is None:
            return
        self._commits.write(repair(drift, written.holdings, written.layout))
        # Flows may have begun while the rules were others'.
        owners = [written.holdings.owner(*place) for place in drift.elements]
        known = {owner for owner in owners if owner is not None}
        self._services.flows.in_doubt(None if drift.chains or None in owners else known)

    def _write_changes(
        self, written: Written, all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        services, (layout, holdings) = self._services, written
        if settings != self.settings:
            self._owed.update(services.desired.affected(self.settings, settings, all_keys()))
        self._owed = services.desired.concerned(self._owed)
        if not self._owed and settings == self.settings:
            return
        changes: Changes = {}
        if settings != self.settings:
            changes[NODE] = node_objects(layout, settings)
        work = {key: services.work_out(key, settings, lambda made: render_service(made, layout)) for key in self._owed}
        changes.update((key, each.objects) for key, each in work.items() if not each.failed)
        self._commits.change(holdings, changes)
        services.settled(work, settings)
        self.settings, self._owed = settings, set()
