"""One family's rules in nftables mode: brought to what is desired by what changed, or by a generation of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from proxyd.desired.services import Lookup
from proxyd.kernel.nft.ruleset import Ruleset
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family, NodeSettings, ServiceKey
from proxyd.nft.delta import NODE, Holdings
from proxyd.nft.drift import Drift
from proxyd.nft.fixed import base_chains
from proxyd.nft.layout import Layout
from proxyd.nft.objects import Transaction
from proxyd.nft.render import render_service
from proxyd.nft.repair import repair
from proxyd.sync.nft.commits import Changes, Commits
from proxyd.sync.nft.full import FullWriter, Written, node_objects
from proxyd.sync.nft.leftovers import Leftovers
from proxyd.sync.reconciler import AllKeys, CleanFlows, Reconciler
from proxyd.sync.services import Services
from proxyd.sync.status import Counts


class NftReconciler(Reconciler[Written]):
    """Keeps one family's table equal to the desired state: a ``FamilyRules``. Used by the sync thread only."""

    def __init__(
        self,
        family: Family,
        ruleset: Ruleset,
        lookup: Lookup,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[Family, int, int], None] = lambda *_: None,
        clean_flows: CleanFlows = lambda *_: None,
        grace: float = 0.0,
    ) -> None:
        """Nothing is deleted that was in use within the last ``grace`` seconds."""
        self._commits = Commits(family, ruleset)
        super().__init__(Services(family, lookup), self._commits, clean_flows)
        self._grace = grace
        self._leftovers = Leftovers(self._commits)
        self._full = FullWriter(self._commits, self._services, self._leftovers, stopping, progress)

    @property
    def counts(self) -> Counts:
        """Rules are not counted in this mode."""
        return Counts()

    def finds_rules(self) -> bool:
        """See ``FamilyRules``."""
        names = {chain.name for chain in base_chains(Layout(self.family, 1, 0))}
        return not names.isdisjoint(self._commits.contents().chains)

    @property
    def cleanup_owed(self) -> bool:
        """See ``FamilyRules``."""
        unused = self._held is not None and self._held.holdings.plan_cleanup() is not None
        return unused or self._leftovers.owed

    def cleanup(self) -> None:
        """See ``FamilyRules``."""
        # A packet under way walks the rules that were there when it came, and kernels before 6.2 hold on to a chain for a
        # moment after its last reference.
        before = time.monotonic() - self._grace
        self._leftovers.delete(before)
        if self._held is not None:
            self._delete_unused(self._held.holdings, before)

    def _delete_unused(self, holdings: Holdings, before: float) -> None:
        transaction = holdings.plan_cleanup(before)
        if transaction is None:
            return
        try:
            self._commits.tidy(transaction)
        except KernelRefusedError:
            # Some of them may be gone already, and then all would be refused for ever.
            there = self._commits.contents().chains
            gone = tuple(name for name in transaction.delete_chains if name not in there)
            holdings.confirm_cleanup(Transaction(self.family, delete_chains=gone))
            raise
        holdings.confirm_cleanup(transaction)

    def _can_change(self, settings: NodeSettings) -> bool:  # noqa: ARG002 - whatever they are
        return True

    def _write_all(self, keys: list[ServiceKey], settings: NodeSettings) -> Written | None:
        return self._full.write(keys, settings)

    def _write_changes(self, held: Written, all_keys: AllKeys, settings: NodeSettings) -> None:
        desired = self._services.desired
        if settings != self.settings:
            self._owed.update(desired.affected(self.settings, settings, all_keys()))
        self._owed = self.concerned = desired.concerned(self._owed)
        self._write_owed(held, settings)

    def _change(self, held: Written, keys: Set[ServiceKey], settings: NodeSettings) -> None:
        services, (layout, holdings) = self._services, held
        changes: Changes = {}
        if settings != self.settings:
            changes[NODE] = node_objects(layout, settings)
        # In order, so that what is written does not depend on the process.
        in_order = sorted(keys)
        work = {key: services.work_out(key, settings, lambda made: render_service(made, layout)) for key in in_order}
        changes.update((key, each.objects) for key, each in work.items() if not each.failed)
        self._commits.change(holdings, changes)
        services.settled(work, settings)
        self.settings = settings

    def _repair(self, held: Written, drift: Drift) -> None:
        self._commits.write(repair(drift, held.holdings, held.layout))
        # Flows may have begun while the rules were others'.
        owners = [held.holdings.owner(*place) for place in drift.elements]
        known = {owner for owner in owners if owner is not None}
        self._services.flows.in_doubt(None if drift.chains or None in owners else known)
