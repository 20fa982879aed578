"""From what the last successful writes left in the kernel to what is wanted: one transaction for what changed.

What a Service has in the kernel is kept as its Forwarding and the style it was written in, and made into rules again
where it is compared: a tenth of the memory of the rules themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from proxyd.desired.forwarding import Forwarding
from proxyd.ipt.objects import Chain, ChainName, Placed, Transaction
from proxyd.ipt.render import ServiceRules, render_service
from proxyd.ipt.style import Style
from proxyd.model import Family, NodeSettings, ServiceKey


class Record(NamedTuple):
    """What was written for one Service."""

    forwarding: Forwarding
    style: Style


class Plan(NamedTuple):
    """A transaction, and what is in the kernel once it has succeeded (None: nothing of the Service)."""

    transaction: Transaction
    records: dict[ServiceKey, Record | None]


class Holdings:
    """What the kernel has of each Service, under unchanging node settings. Knows only what ``confirm`` was told."""

    def __init__(self, family: Family, settings: NodeSettings) -> None:
        self.family = family
        self.settings = settings
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
        for key, forwarding in changes.items():
            records[key] = record = Record(forwarding, style) if forwarding is not None else None
            old, new = self.rules(self._records.get(key)), self.rules(record)
            before = {(chain.table, chain.name): chain for chain in old.chains}
            chains.extend(c for c in new.chains if before.pop((c.table, c.name), None) != c)
            gone.extend(ChainName(*each) for each in before)
            delete.extend(_without(old.dispatch, new.dispatch))
            insert.extend(_without(new.dispatch, old.dispatch))
        transaction = Transaction(
            self.family, chains=tuple(chains), delete=tuple(delete), insert=tuple(insert), delete_chains=tuple(gone)
        )
        return Plan(transaction, records)

    def confirm(self, plan: Plan) -> None:
        """Takes over a plan whose transaction has succeeded."""
        for key, record in plan.records.items():
            if record is None:
                self._records.pop(key, None)
            else:
                self._records[key] = record

    def rules(self, record: Record | None) -> ServiceRules:
        """The rules that a record stands for."""
        return render_service(record.forwarding, self.settings, record.style) if record else ServiceRules()


def _without(these: tuple[Placed, ...], those: tuple[Placed, ...]) -> list[Placed]:
    return [each for each in these if each not in set(those)] if these != those else []
