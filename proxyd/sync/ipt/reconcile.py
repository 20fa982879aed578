"""One family's rules in iptables mode: brought to what is desired by what changed, or by writing everything in place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set

import msgspec

from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Lookup
from proxyd.ipt import names
from proxyd.ipt.delta import Holdings, Place
from proxyd.ipt.fixed import JUMPS
from proxyd.ipt.objects import Chain, Placed, Table, Transaction
from proxyd.ipt.ownership import BUILT_IN
from proxyd.ipt.render import ServiceRules, render_service
from proxyd.ipt.steps import steps
from proxyd.ipt.style import Style
from proxyd.kernel.ipt.rules import IptRules
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family, NodeSettings, ServiceKey
from proxyd.nft.drift import Drift
from proxyd.sync.ipt.commits import RuleCommits
from proxyd.sync.ipt.full import RuleWriter, chains_without_services, dispatch_chains, missing_jumps
from proxyd.sync.reconciler import AllKeys, CleanFlows, Reconciler
from proxyd.sync.services import Services, Worked
from proxyd.sync.status import Counts

# Endpoints beyond which rules of endpoints have no comments (kube-proxy's largeClusterEndpointsThreshold).
LARGE = 1000


class IptReconciler(Reconciler[Holdings]):
    """Keeps one family's chains equal to the desired state: a ``FamilyRules``. Used by the sync thread only."""

    def __init__(
        self,
        family: Family,
        kernel: IptRules,
        lookup: Lookup,
        style: Style,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[Family, int, int], None] = lambda *_: None,
        clean_flows: CleanFlows = lambda *_: None,
    ) -> None:
        self._commits = RuleCommits(family, kernel)
        super().__init__(Services(family, lookup), self._commits, clean_flows)
        self.expected: Mapping[Place, int] = {}
        """How many rules there should be in each place; replaced whole after each pass. For any thread."""
        self._style = style
        self._full = RuleWriter(self._commits, self._services, stopping, progress)

    @property
    def counts(self) -> Counts:
        """See ``FamilyRules``."""
        tables = (Table.NAT, Table.FILTER)
        total = Counter[str]()
        for (table, _), number in self.expected.items():
            total[table] += number
        written = {str(table): self._commits.rules[table] for table in tables}
        rules = {str(table): total[table] for table in tables}
        return Counts(rules, written, int(self.changes_refused), self._commits.locked)

    def finds_rules(self) -> bool:
        """See ``FamilyRules``."""
        return any(placed in JUMPS for placed in self._commits.jumps())

    @property
    def cleanup_owed(self) -> bool:
        """See ``FamilyRules``."""
        return self._held is not None and bool(self._full.left)

    def sync(self, dirty: Iterable[ServiceKey], all_keys: AllKeys, settings: NodeSettings) -> None:
        """See ``FamilyRules``."""
        try:
            super().sync(dirty, all_keys, settings)
        finally:
            self.expected = self._count()

    def retry_quarantined(self, all_keys: AllKeys) -> None:
        """See ``FamilyRules``."""
        try:
            super().retry_quarantined(all_keys)
        finally:
            self.expected = self._count()

    def cleanup(self) -> None:
        """See ``FamilyRules``."""
        if self._held is not None and self._full.left:
            self._full.delete_left(self._held.chain_names())

    def _can_change(self, settings: NodeSettings) -> bool:
        # Where more than this changed (zone, detector), any rule may be another now.
        return self.settings is not None and _alike(self.settings, settings)

    def _write_all(self, keys: list[ServiceKey], settings: NodeSettings) -> Holdings:
        return self._full.write(keys, settings, self._style_for)

    def _write_changes(self, held: Holdings, all_keys: AllKeys, settings: NodeSettings) -> None:
        if settings != self.settings:
            self._write_settings(held, all_keys, settings)
        self._owed = self.concerned = self._services.desired.concerned(self._owed)
        self._write_owed(held, settings)

    def _write_settings(self, held: Holdings, all_keys: AllKeys, settings: NodeSettings) -> None:
        """Other addresses take node ports: one of the chains that Services share, and the flows of those that have any."""
        self._owed.update(self._services.desired.affected(self.settings, settings, all_keys()))
        held.settings = self.settings = settings
        self._rewrite(held, {(Table.NAT, names.SERVICES)})

    def _change(self, held: Holdings, keys: Set[ServiceKey], settings: NodeSettings) -> None:
        services, style = self._services, self._style_for(self.tally.total.endpoints)

        def make(forwarding: Forwarding) -> ServiceRules:
            return render_service(forwarding, settings, style)

        # In order, so that what is written does not depend on the process.
        in_order = sorted(keys)
        work: dict[ServiceKey, Worked[ServiceRules]] = {key: services.work_out(key, settings, make) for key in in_order}
        plan = held.plan({key: each.forwarding for key, each in work.items() if not each.failed}, style)
        self._carry_out(plan.transaction)
        held.confirm(plan)
        services.settled(work, settings)

    def _repair(self, held: Holdings, drift: Drift) -> None:
        """Chains are named with their table: ``nat KUBE-SERVICES``."""
        self._rewrite(held, {(table, name) for table, _, name in (each.partition(" ") for each in drift.chains)})
        # Flows may have begun while the rules were others'.
        self._services.flows.in_doubt(None)

    def _rewrite(self, held: Holdings, named: set[tuple[str, str]]) -> None:
        """Writes chains again, whole; for a built-in one, the jumps that are missing."""
        chains = [each for each in self._own_chains(held.settings) if (each.table, each.name) in named]
        dispatch = {(each.table, each.name) for each in chains}
        insert = [each for each in held.dispatch() if (each.table, each.chain) in dispatch] if dispatch else []
        chains += held.chains(name for table, name in named if table == Table.NAT)
        jumps: tuple[Placed, ...] = ()
        if any(name in BUILT_IN for _, name in named):
            jumps = missing_jumps(self._commits.jumps())
        self._carry_out(Transaction(self.family, chains=tuple(chains), insert=(*jumps, *insert)))

    def _carry_out(self, transaction: Transaction) -> None:
        """Raises ``KernelRefusedError``, with nothing changed; ``OutcomeUnclearError`` where some of it may be."""
        for number, step in enumerate(steps(transaction, self._commits.batch) if transaction.size else ()):
            try:
                self._commits.write(step)
            except KernelRefusedError as error:
                if number:
                    raise OutcomeUnclearError(str(error)) from error
                raise

    def _own_chains(self, settings: NodeSettings) -> tuple[Chain, ...]:
        """All chains that belong to no Service, without rules of Services."""
        style = self._style
        return (*chains_without_services(settings, style), *dispatch_chains(settings, style))

    def _count(self) -> Mapping[Place, int]:
        if self._held is None:
            return {}
        total = Counter(self._held.counts)
        for chain in self._own_chains(self._held.settings):
            total[chain.table, chain.name] += len(chain.rules)
        return total

    def _style_for(self, endpoints: int) -> Style:
        return msgspec.structs.replace(self._style, comments=endpoints <= LARGE)


def _alike(these: NodeSettings, those: NodeSettings) -> bool:
    """Whether settings differ in nothing but the addresses that take node ports."""
    return msgspec.structs.replace(these, node_port_addresses=those.node_port_addresses) == those
