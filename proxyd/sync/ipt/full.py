"""The full write of iptables mode: in place, since chains keep their names, and so that traffic sees no gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import structlog

from proxyd.ipt import names
from proxyd.ipt.delta import Holdings, Record, count
from proxyd.ipt.fixed import CANARIES, DISPATCH, JUMPS, SHARED_JUMPS, fixed_chains, node_port_dispatch
from proxyd.ipt.objects import Chain, ChainName, Placed, Table, Transaction
from proxyd.ipt.ownership import OWN_MARK, is_own_chain
from proxyd.ipt.render import ServiceRules, chain_names, render_service
from proxyd.ipt.saved import Contents, is_chain, printed, unordered
from proxyd.ipt.steps import removal
from proxyd.ipt.style import Style
from proxyd.kernel.ipt.rules import RulesLockedError, RulesUnreadableError
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family, NodeSettings, ServiceKey
from proxyd.sync.ipt.commits import RuleCommits
from proxyd.sync.order import FIRST, StoppedError, importance
from proxyd.sync.services import Services, Worked
from proxyd.sync.splitting import Splitting

log = structlog.get_logger("proxyd.sync")

Work = dict[ServiceKey, Worked[None]]
# Chains that a Service may have beside those of its endpoints.
_BESIDE = 4
# From so many new chains in one call on, all are named first and in order (only where calls can be that large: legacy).
# The tool keeps chains sorted, and looks for one by walking from every fortieth; what comes in order stays quick to find.
_MANY = 2000
_PIECE = 500


def base(found: Contents, settings: NodeSettings, style: Style) -> Transaction:
    """Everything that belongs to no Service, with what is missing of dispatch chains and jumps."""
    declared = [(Table.FILTER, names.FIREWALL), *DISPATCH]
    missing = (Chain(*each) for each in declared if ChainName(*each) not in found.chains)
    fixed = chains_without_services(settings, style)
    known = {(each.table, each.name) for each in fixed}
    chains = (*fixed, *(each for each in missing if (each.table, each.name) not in known))
    return Transaction(settings.family, chains=chains, insert=missing_jumps(found.jumps))


def chains_without_services(settings: NodeSettings, style: Style) -> tuple[Chain, ...]:
    """The chains that never have a rule of a Service."""
    return (*CANARIES, Chain(Table.NAT, OWN_MARK), *fixed_chains(settings, style))


def missing_jumps(there: frozenset[Placed]) -> tuple[Placed, ...]:
    """The jumps to be put first, in this order."""
    return tuple(each for each in (*JUMPS, *SHARED_JUMPS) if each not in there)


def dispatch_chains(settings: NodeSettings, style: Style) -> tuple[Chain, ...]:
    """The chains that Services share, without any rule of a Service."""
    last = node_port_dispatch(settings, style)
    return tuple(Chain(*each, last if each == (Table.NAT, names.SERVICES) else ()) for each in DISPATCH)


class RuleWriter:
    """Writes everything about one family, with nothing known. Used by the sync thread only."""

    def __init__(
        self,
        commits: RuleCommits,
        services: Services,
        stopping: Callable[[], bool],
        progress: Callable[[Family, int, int], None],
    ) -> None:
        """``progress`` is told how many Services of how many are written."""
        self.left: tuple[ChainName, ...] = ()
        """Chains that nothing leads to any more, to be deleted in a quiet moment."""
        self._commits = commits
        self._services = services
        self._stopping = stopping
        self._progress = progress
        self._seen: _There | None = None

    def write(self, keys: Iterable[ServiceKey], settings: NodeSettings, style_of: Callable[[int], Style]) -> Holdings:
        """Writes all rules. ``keys`` are all Services; ``style_of`` gives the style for a number of endpoints.

        Chains of Services are replaced one by one, so what leads to them leads to something whole at any time; those that
        are right stay. What is missing of their dispatch is put before what is there; if there is more than that in the
        end, all of it is replaced.
        Raises ``KernelRefusedError``, with every Service served that was, and ``StoppedError``.
        """
        services, commits = self._services, self._commits
        self.left = ()
        services.desired.forget()
        concerned = sorted(services.desired.concerned(keys), key=importance)
        self._progress(commits.family, 0, len(concerned))
        work: Work = {key: services.work_out(key, settings, lambda _: None) for key in concerned}
        style = style_of(sum(_endpoints(each) for each in work.values()))
        holdings = Holdings(commits.family, settings)
        services.count_anew(concerned)
        self._seen = None
        self._write_base(settings, style)
        self._load(holdings, work, style)
        there = self._look()
        if there.in_use and there.has_more(holdings, style):
            self._replace_dispatch(holdings, style)
        services.flows.all_written(concerned)
        self._leave(there.found, holdings)
        self._seen = None
        return holdings

    def _write_base(self, settings: NodeSettings, style: Style) -> None:
        there = self._look()
        first = base(there.found, settings, style)
        chains = tuple(each for each in first.chains if not there.has_chain(each))
        if not there.in_use:
            empty = dispatch_chains(settings, style)
            chains = (*(each for each in chains if (each.table, each.name) not in DISPATCH), *empty)
            there.forget_dispatch()
        if chains or first.insert:
            self._commits.write(Transaction(settings.family, chains=chains, insert=first.insert))

    def _look(self) -> _There:
        """What was there before this write or, where a call of it may have been written in part, after that."""
        if self._seen is None:
            self._seen = _There(self._commits.contents(), self._commits.family)
        return self._seen

    def _load(self, holdings: Holdings, work: Work, style: Style) -> None:
        done = 0
        splitting = Splitting(self._services, about_none=(RulesLockedError, RulesUnreadableError))
        for part in self._parts(work):
            if self._stopping():
                raise StoppedError
            splitting.write(part, lambda those: self._commit(holdings, those, style))
            here = {key: each for key, each in part.items() if each.forwarding is None or key in holdings}
            self._services.settled(here, holdings.settings)
            done += len(part)
            self._progress(self._commits.family, done, len(work))

    def _parts(self, work: Work) -> Iterator[Work]:
        """The most important Services for themselves, the others by the number of their chains."""
        first = {key: work[key] for key in FIRST if key in work}
        if first:
            yield first
        part: Work = {}
        size = 0
        for key, each in work.items():
            if key in first:
                continue
            part[key] = each
            size += _chains(each)
            if size >= self._commits.batch:
                yield part
                part, size = {}, 0
        yield part

    def _commit(self, holdings: Holdings, work: Work, style: Style) -> None:
        """One call, whose rules are made while it runs."""
        records: dict[ServiceKey, Record] = {}
        counts = Holdings(holdings.family, holdings.settings).counts

        def transactions() -> Iterator[Transaction]:
            for key, each in work.items():
                if each.forwarding is None:
                    continue
                try:
                    rules = render_service(each.forwarding, holdings.settings, style)
                except Exception as error:
                    log.exception("rules of a Service could not be made", service=str(key), ip_family=holdings.family)
                    self._services.faulty(key, error)
                    continue
                records[key] = Record(each.forwarding, style)
                counts.update(count(rules))
                if (missing := self._look().missing(rules)).size:
                    yield missing

        made = transactions()
        if (first := next(made, None)) is not None:
            try:
                self._commits.stream(chain(self._declared(work), (first,), made))
            except OutcomeUnclearError:
                self._seen = None
                raise
        holdings.take(records, counts)

    def _declared(self, work: Work) -> Iterator[Transaction]:
        """Names the chains that are new, if there are many."""
        if len(work) == 1 or sum(map(_chains, work.values())) < _MANY:
            return
        forwardings = (each.forwarding for each in work.values() if each.forwarding is not None)
        new = sorted(name for each in forwardings for name in chain_names(each) if not self._look().knows(name))
        for start in range(0, len(new), _PIECE):
            chains = tuple(Chain(Table.NAT, name) for name in new[start : start + _PIECE])
            yield Transaction(self._commits.family, chains=chains)

    def _replace_dispatch(self, holdings: Holdings, style: Style) -> None:
        """Replaces what was there, in one call: before it both lead to the new chains, after it only what is known."""

        def transactions() -> Iterator[Transaction]:
            yield Transaction(holdings.family, chains=dispatch_chains(holdings.settings, style))
            for placed in holdings.dispatch():
                yield Transaction(holdings.family, insert=(placed,))

        self._commits.stream(transactions())

    def _leave(self, found: Contents, holdings: Holdings) -> None:
        if not any(is_of_service(each) for each in found.chains):
            return
        current = holdings.chain_names() | {OWN_MARK}
        self.left = tuple(sorted(each for each in found.chains if is_of_service(each) and each.name not in current))

    def delete_left(self, used: frozenset[str] | set[str]) -> None:
        """Deletes what is left over, but chains that are in use again (by name).

        Raises ``KernelRefusedError``; what is there is then owed as before.
        """
        self.left = tuple(each for each in self.left if each.name not in used)
        try:
            for step in removal(self._commits.family, self.left, self._commits.batch):
                self._commits.write(step)
        except KernelRefusedError:
            # Some of it may be gone already, and then all would be refused for ever.
            there = self._commits.contents().chains
            self.left = tuple(each for each in self.left if each in there)
            raise
        self.left = ()


class _There:
    """What was found in a full write, to be compared with what is wanted."""

    def __init__(self, found: Contents, family: Family) -> None:
        self.found = found
        self.in_use = ChainName(Table.NAT, names.SERVICES) in found.chains
        self._family = family
        self._dispatch = {name: frozenset(found.rules(name)) for name in (ChainName(*each) for each in DISPATCH)}
        self._unordered: dict[ChainName, frozenset[int]] = {}

    def forget_dispatch(self) -> None:
        """The chains that Services share are emptied now, in every table: where one was deleted, others may have rules."""
        self._dispatch = dict.fromkeys(self._dispatch, frozenset())

    def missing(self, rules: ServiceRules) -> Transaction:
        """What has to be written of a Service."""
        return Transaction(
            self._family,
            chains=tuple(each for each in rules.chains if not self.has_chain(each)),
            insert=tuple(each for each in rules.dispatch if not self._has_rule(each)),
        )

    def has_more(self, holdings: Holdings, style: Style) -> bool:
        """Whether chains that Services share had rules that do not belong there, or their last rules elsewhere."""
        last = {
            ChainName(each.table, each.name): [printed(rule, self._family) for rule in each.rules]
            for each in dispatch_chains(holdings.settings, style)
        }
        allowed = {name: list(rules) for name, rules in last.items()}
        for placed in holdings.dispatch():
            allowed[ChainName(placed.table, placed.chain)].append(printed(placed.rule, self._family))
        return any(self._has_more(name, last[name], allowed[name]) for name in last)

    def _has_more(self, name: ChainName, last: list[str], allowed: list[str]) -> bool:
        found = list(self.found.rules(name))
        if _fits(found, last, allowed):
            return False
        return not _fits(*(list(map(unordered, each)) for each in (found, last, allowed)))

    def knows(self, name: str) -> bool:
        """Whether there was a chain of a Service with this name."""
        return ChainName(Table.NAT, name) in self.found.chains

    def has_chain(self, wanted: Chain) -> bool:
        """Whether a chain was there, with the rules that it is to have."""
        found = self.found.chains.get(ChainName(wanted.table, wanted.name))
        return found is not None and is_chain(found, wanted, self._family)

    def _has_rule(self, placed: Placed) -> bool:
        name = ChainName(placed.table, placed.chain)
        if not (found := self._dispatch[name]):
            return False
        text = printed(placed.rule, self._family)
        if text in found:
            return True
        if name not in self._unordered:
            self._unordered[name] = frozenset(map(unordered, found))
        return unordered(text) in self._unordered[name]


def _fits(found: Sequence[str | int], last: Sequence[str | int], allowed: Sequence[str | int]) -> bool:
    """Whether rules are among those that are allowed, and none oftener, with the last ones last (if there are any)."""
    return not Counter(found) - Counter(allowed) and (not last or found[-len(last) :] == last)


def is_of_service(chain: ChainName) -> bool:
    """Whether a chain belongs to a port of a Service."""
    return chain.name.startswith(names.PREFIXES) and is_own_chain(chain.table, chain.name)


def _chains(work: Worked[None]) -> int:
    """How many chains a Service has at most, if it is a plain one."""
    return _endpoints(work) + _BESIDE if work.forwarding else 0


def _endpoints(work: Worked[None]) -> int:
    ports = work.forwarding.ports if work.forwarding else ()
    return sum(len(set(port.cluster + port.local)) if port.local else len(port.cluster) for port in ports)
