"""From what the last successful writes left in the kernel to what is wanted: one transaction for what changed.

What a Service has in the kernel is kept as its Forwarding and the style it was written in, and made into rules again
where it is compared: a tenth of the memory of the rules themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from proxyd.desired.forwarding import Forwarding
from proxyd.ipt.objects import Chain, ChainName, Placed, Table, Transaction
from proxyd.ipt.render import ServiceRules, chain_names, render_dispatch, render_service
from proxyd.ipt.style import Style
from proxyd.model import Family, NodeSettings, ServiceKey

# A chain that Services share, or a table with "" for all chains of Services together.
Place = tuple[Table, str]


class Record(NamedTuple):
    """What was written for one Service."""

    forwarding: Forwarding
    style: Style


class Plan(NamedTuple):
    """A transaction, and what is in the kernel once it has succeeded (None: nothing of the Service)."""

    transaction: Transaction
    records: dict[ServiceKey, Record | None]
    counts: Mapping[Place, int] = {}
    """How many rules there will be more, or fewer."""


def count(rules: ServiceRules) -> Counter[Place]:
    """How many rules these are in each place."""
    counted = Counter((each.table, each.chain) for each in rules.dispatch)
    for chain in rules.chains:
        counted[chain.table, ""] += len(chain.rules)
    return counted


class Holdings:
    """What the kernel has of each Service, under unchanging node settings. Knows only what ``confirm`` was told."""

    def __init__(self, family: Family, settings: NodeSettings) -> None:
        self.family = family
        self.settings = settings
        self.counts: Counter[Place] = Counter()
        """How many rules of Services there are in each place."""
        self._records: dict[ServiceKey, Record] = {}

    def __contains__(self, key: ServiceKey) -> bool:
        return key in self._records

    def keys(self) -> set[ServiceKey]:
        """The Services that have something in the kernel."""
        return set(self._records)

    def plan(self, changes: Mapping[ServiceKey, Forwarding | None], style: Style) -> Plan:
        """Works out what has to happen so that these Services are as given (None: gone), and all others as they are."""
        chains: list[Chain] = []
        delete: list[Placed] = []
        insert: list[Placed] = []
        gone: list[ChainName] = []
        records: dict[ServiceKey, Record | None] = {}
        counts: Counter[Place] = Counter()
        for key, forwarding in changes.items():
            records[key] = record = Record(forwarding, style) if forwarding is not None else None
            old, new = self.rules(self._records.get(key)), self.rules(record)
            counts.update(count(new))
            counts.subtract(count(old))
            before = {(chain.table, chain.name): chain for chain in old.chains}
            chains.extend(c for c in new.chains if before.pop((c.table, c.name), None) != c)
            gone.extend(ChainName(*each) for each in before)
            delete.extend(_without(old.dispatch, new.dispatch))
            insert.extend(_without(new.dispatch, old.dispatch))
        transaction = Transaction(
            self.family, chains=tuple(chains), delete=tuple(delete), insert=tuple(insert), delete_chains=tuple(gone)
        )
        return Plan(transaction, records, counts)

    def confirm(self, plan: Plan) -> None:
        """Takes over a plan whose transaction has succeeded."""
        self.counts.update(plan.counts)
        for key, record in plan.records.items():
            if record is None:
                self._records.pop(key, None)
            else:
                self._records[key] = record

    def take(self, records: Mapping[ServiceKey, Record], counts: Mapping[Place, int]) -> None:
        """Takes over Services that had nothing before and have been written whole, with so many rules."""
        self.counts.update(counts)
        self._records.update(records)

    def dispatch(self) -> Iterator[Placed]:
        """All rules of Services in chains that they share."""
        for forwarding, style in self._records.values():
            yield from render_dispatch(forwarding, self.settings, style)

    def chain_names(self) -> set[str]:
        """The names of all chains that Services have."""
        return {name for record in self._records.values() for name in chain_names(record.forwarding)}

    def chains(self, named: Iterable[str]) -> Iterator[Chain]:
        """Those of the chains of Services that have these names, as they should be."""
        wanted = frozenset(named)
        for record in self._records.values():
            if not wanted.isdisjoint(chain_names(record.forwarding)):
                yield from (chain for chain in self.rules(record).chains if chain.name in wanted)

    def rules(self, record: Record | None) -> ServiceRules:
        """The rules that a record stands for."""
        return render_service(record.forwarding, self.settings, record.style) if record else ServiceRules()


def _without(these: tuple[Placed, ...], those: tuple[Placed, ...]) -> list[Placed]:
    return [each for each in these if each not in set(those)] if these != those else []
