"""One family's rules in iptables mode: brought to what is desired by what changed if possible, and from scratch if not.

What the kernel holds is known only from calls that succeeded. Whenever that knowledge is in doubt (start, a refused call)
everything is written anew, in place; chains that others changed are mended one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Lookup
from proxyd.ipt import names
from proxyd.ipt.delta import Holdings, Place
from proxyd.ipt.fixed import CANARIES, JUMPS, fixed_chains
from proxyd.ipt.objects import Chain, Placed, Table, Transaction
from proxyd.ipt.ownership import BUILT_IN
from proxyd.ipt.render import ServiceRules, render_service
from proxyd.ipt.steps import steps
from proxyd.ipt.style import Style
from proxyd.kernel.ipt.rules import IptRules
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family, Finding, NodeSettings, ServiceKey
from proxyd.nft.drift import Drift
from proxyd.sync.ipt.commits import RuleCommits
from proxyd.sync.ipt.full import RuleWriter, dispatch_chains, missing_jumps
from proxyd.sync.services import Services, Worked
from proxyd.sync.status import Counts
from proxyd.sync.tally import Tally

log = structlog.get_logger("proxyd.sync")

# Endpoints beyond which rules of endpoints have no comments (kube-proxy's largeClusterEndpointsThreshold).
LARGE = 1000


class IptReconciler:
    """Keeps one family's chains equal to the desired state: a ``FamilyRules``. Used by the sync thread only."""

    def __init__(
        self,
        family: Family,
        kernel: IptRules,
        lookup: Lookup,
        style: Style,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[Family, int, int], None] = lambda *_: None,
        clean_flows: Callable[[Family, Mapping[FrontendKey, Live]], None] = lambda *_: None,
    ) -> None:
        self.family = family
        self.settings: NodeSettings | None = None
        self.rewritten = False
        self.expected: Mapping[Place, int] = {}
        """How many rules there should be in each place; replaced whole after each pass. For any thread."""
        self._style = style
        self._services = Services(family, lookup)
        self._commits = RuleCommits(family, kernel)
        self._full = RuleWriter(self._commits, self._services, stopping, progress)
        self._clean_flows = clean_flows
        self._holdings: Holdings | None = None
        self._owed: set[ServiceKey] = set()
        self._drift: Drift | None = None
        self._partial_failures = 0

    @property
    def operations(self) -> int:
        """See ``FamilyRules``."""
        return self._commits.operations

    @property
    def refusals(self) -> int:
        """See ``FamilyRules``."""
        return self._commits.refusals

    @property
    def counts(self) -> Counts:
        """See ``FamilyRules``."""
        tables = (Table.NAT, Table.FILTER)
        total = Counter[str]()
        for (table, _), number in self.expected.items():
            total[table] += number
        written = {str(table): self._commits.rules[table] for table in tables}
        rules = {str(table): total[table] for table in tables}
        return Counts(rules, written, self._partial_failures, self._commits.locked)

    def finds_rules(self) -> bool:
        """See ``FamilyRules``."""
        return any(placed in JUMPS for placed in self._commits.jumps())

    @property
    def full_owed(self) -> bool:
        """Whether the next pass has to write everything."""
        return self._holdings is None

    @property
    def tally(self) -> Tally:
        """See ``FamilyRules``."""
        return self._services.tally

    @property
    def findings(self) -> dict[ServiceKey, tuple[Finding, ...]]:
        """See ``FamilyRules``."""
        return self._services.findings

    @property
    def cleanup_owed(self) -> bool:
        """See ``FamilyRules``."""
        return self._holdings is not None and bool(self._full.left)

    @property
    def quarantined(self) -> tuple[ServiceKey, ...]:
        """See ``FamilyRules``."""
        return self._services.quarantined

    def sync(
        self, dirty: Iterable[ServiceKey], all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        """See ``FamilyRules``."""
        self._commits.begin()
        self.rewritten = False
        self._partial_failures = 0
        self._owed.update(dirty)
        try:
            self._write(all_keys, settings)
        finally:
            self.expected = self._count()
        self._hand_over_flows()

    def retry_quarantined(self) -> None:
        """See ``FamilyRules``."""
        if self._holdings is None:
            return
        for key in self.quarantined:
            try:
                self._change(self._holdings, {key})
            except KernelRefusedError:
                continue
        self.expected = self._count()
        self._hand_over_flows()

    def forget(self) -> None:
        """See ``FamilyRules``."""
        self._holdings = self._drift = None

    def mend(self, drift: Drift) -> None:
        """See ``FamilyRules``. Chains are named with their table: ``nat KUBE-SERVICES``."""
        if drift.everything:
            self.forget()
        elif self._holdings is not None:
            self._drift = self._drift.then(drift) if self._drift is not None else drift

    def cleanup(self) -> None:
        """See ``FamilyRules``."""
        if self._holdings is not None and self._full.left:
            self._full.delete_left(self._holdings.chain_names())

    def _hand_over_flows(self) -> None:
        """Only with the new rules in place: a flow that goes before them can come back as it was."""
        if changed := self._services.flows.take():
            self._clean_flows(self.family, changed)

    def _write(self, all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings) -> None:
        # Where more than this changed (zone, detector), any rule may be another now.
        if self._holdings is not None and self.settings is not None and _alike(self.settings, settings):
            try:
                self._write_repair(self._holdings)
                self._write_settings(self._holdings, all_keys, settings)
                self._write_changes(self._holdings)
                return
            except KernelRefusedError as error:
                self._partial_failures = 1
                # Most likely our picture of the kernel is wrong; nothing that follows may build on it.
                log.warning("rules refused, writing everything anew", ip_family=self.family, error=str(error))
        self.forget()
        self.rewritten = True
        self._holdings, _ = self._full.write([*all_keys(), *self._owed], settings, self._style_for)
        self.settings, self._owed = settings, set()

    def _write_settings(
        self, holdings: Holdings, all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        """Other addresses take node ports: one of the chains that Services share, and the flows of those that have any."""
        if settings == self.settings:
            return
        self._owed.update(self._services.desired.affected(self.settings, settings, all_keys()))
        holdings.settings = self.settings = settings
        self._rewrite(holdings, {(Table.NAT, names.SERVICES)})

    def _write_changes(self, holdings: Holdings) -> None:
        self._owed = self._services.desired.concerned(self._owed)
        if self._owed:
            self._change(holdings, self._owed)
        self._owed = set()

    def _change(self, holdings: Holdings, keys: Iterable[ServiceKey]) -> None:
        services, style = self._services, self._style_for(self.tally.total.endpoints)

        def make(forwarding: Forwarding) -> ServiceRules:
            return render_service(forwarding, holdings.settings, style)

        work: dict[ServiceKey, Worked[ServiceRules]] = {
            key: services.work_out(key, holdings.settings, make) for key in keys
        }
        plan = holdings.plan({key: each.forwarding for key, each in work.items() if not each.failed}, style)
        for step in steps(plan.transaction, self._commits.batch) if plan.transaction.size else ():
            self._commits.write(step)
        holdings.confirm(plan)
        services.settled(work, holdings.settings)

    def _write_repair(self, holdings: Holdings) -> None:
        drift, self._drift = self._drift, None
        if drift is None:
            return
        self._rewrite(holdings, {(table, name) for table, _, name in (each.partition(" ") for each in drift.chains)})
        # Flows may have begun while the rules were others'.
        self._services.flows.in_doubt(None)

    def _rewrite(self, holdings: Holdings, named: set[tuple[str, str]]) -> None:
        """Writes chains again, whole; for a built-in one, the jumps that are missing."""
        chains = [each for each in self._own_chains(holdings.settings) if (each.table, each.name) in named]
        dispatch = {(each.table, each.name) for each in chains}
        insert = [each for each in holdings.dispatch() if (each.table, each.chain) in dispatch] if dispatch else []
        chains += holdings.chains(name for table, name in named if table == Table.NAT)
        jumps: tuple[Placed, ...] = ()
        if any(name in BUILT_IN for _, name in named):
            jumps = missing_jumps(self._commits.jumps())
        transaction = Transaction(self.family, chains=tuple(chains), insert=(*jumps, *insert))
        if transaction.size:
            for step in steps(transaction, self._commits.batch):
                self._commits.write(step)

    def _own_chains(self, settings: NodeSettings) -> tuple[Chain, ...]:
        """All chains that belong to no Service, without rules of Services."""
        style = self._style
        return (*CANARIES, *fixed_chains(settings, style), *dispatch_chains(settings, style))

    def _count(self) -> Mapping[Place, int]:
        if self._holdings is None:
            return {}
        total = Counter(self._holdings.counts)
        for chain in self._own_chains(self._holdings.settings):
            total[chain.table, chain.name] += len(chain.rules)
        return total

    def _style_for(self, endpoints: int) -> Style:
        return msgspec.structs.replace(self._style, comments=endpoints <= LARGE)


def _alike(these: NodeSettings, those: NodeSettings) -> bool:
    """Whether settings differ in nothing but the addresses that take node ports."""
    return msgspec.structs.replace(these, node_port_addresses=those.node_port_addresses) == those
