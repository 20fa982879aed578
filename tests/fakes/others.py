"""Somebody else who edits our tables, in the in-memory kernel and in a real one, and what is told about each edit."""

from __future__ import annotations

import json
import queue
from typing import Protocol

from proxyd.kernel.nft.notifications import Notifications
from proxyd.kernel.nft.ruleset import Ruleset
from proxyd.model import Family
from proxyd.nft.drift import Drift, Edits
from proxyd.nft.layout import LASTING, TABLE, declared
from proxyd.nft.objects import Element, Transaction
from proxyd.nft.script import FAMILY_WORD, script
from tests.fakes.ruleset import FakeRuleset, FakeTable, apply
from tests.netns import RealRuleset, elements_of

SOON = 20.0
# All that a table holds, so that two can be compared: elements by container, rules by chain.
Table = tuple[dict[str, dict[str, str]], dict[str, list[str]]]


class Others(Protocol):
    """A kernel with us and somebody else in it."""

    @property
    def ruleset(self) -> Ruleset:
        """What we write to."""

    def edit(self, *transactions: Transaction) -> Drift:
        """Has somebody else write; gives what is told, all in one."""

    def silent(self, transaction: Transaction) -> bool:
        """Has somebody else write; gives whether nothing is told about it."""

    def table(self, family: Family) -> Table:
        """All that our table holds."""

    def close(self) -> None:
        """Ends it."""


class FakeOthers:
    """In memory; what is told is what the real kernel tells."""

    def __init__(self) -> None:
        self.ruleset = FakeRuleset()

    def edit(self, *transactions: Transaction) -> Drift:
        drifts = [drift for each in transactions if (drift := self._edit(each)) is not None]
        return _all(drifts)

    def silent(self, transaction: Transaction) -> bool:
        return self._edit(transaction) is None

    def _edit(self, transaction: Transaction) -> Drift | None:
        before = self.ruleset.tables.get(transaction.family)
        after = apply(before, transaction)
        if after is None:
            del self.ruleset.tables[transaction.family]
        else:
            self.ruleset.tables[transaction.family] = after
        return _told(before, transaction)

    def table(self, family: Family) -> Table:
        chains = self.ruleset.tables[family].chains if family in self.ruleset.tables else {}
        return self.ruleset.elements(family), {name: [repr(r) for r in each.rules] for name, each in chains.items()}

    def close(self) -> None:
        pass


def _told(before: FakeTable | None, t: Transaction) -> Drift | None:
    edits = Edits(t.family)
    chains = before.chains if before is not None else {}
    containers = before.containers if before is not None else {}
    made = before is None or any(each.name not in containers for each in t.containers)
    if made or t.delete_table or t.delete_containers or t.delete_chains or any(c.name not in chains for c in t.chains):
        edits.told("added or deleted something")
        edits.all_in_doubt()
    for chain in t.chains:
        if chain.rules or chain.name not in chains or chains[chain.name].rules:
            edits.told(f"added rule in {chain.name}")
            edits.rules(chain.name)
    for elements, there in ((t.delete_elements, False), (t.add_elements, True)):
        for element in elements:
            if element.container not in LASTING:
                edits.told(f"{'added' if there else 'deleted'} element in {element.container}")
                edits.element(element.container, _as_told(element, t.family), there=there)
    return edits.drift()


def _as_told(element: Element, family: Family) -> str:
    """The kernel tells a range of one address as any other range."""
    container = declared(element.container)
    single = container is not None and container.interval and "/" not in element.key
    return element.key + ("/32" if family is Family.IPV4 else "/128") * single


def _all(drifts: list[Drift]) -> Drift:
    first, *more = drifts
    for each in more:
        first = first.then(each)
    return first


class RealOthers:
    """In a namespace of its own, with a library context of theirs and the kernel's own notifications."""

    def __init__(self) -> None:
        self._told: queue.Queue[Drift] = queue.Queue()
        self.ruleset = RealRuleset(also=self._watch)
        self._notifications.start()

    def _watch(self, ruleset: RealRuleset) -> None:
        self._notifications = Notifications(lambda: ruleset.library.port, self._told.put)

    def edit(self, *transactions: Transaction) -> Drift:
        for each in transactions:
            self.ruleset.other(self._text(each))
        return _all([self._told.get(timeout=SOON) for _ in transactions])

    def _text(self, transaction: Transaction) -> str:
        """As people write it: a chain that is there is not declared again, which would be told as a change of the chain."""
        there = self.ruleset.contents(transaction.family).chains
        lines = script(transaction).splitlines()
        again = [f"add chain {FAMILY_WORD[transaction.family]} {TABLE} {name}" for name in there]
        return "\n".join(line for line in lines if line not in again)

    def silent(self, transaction: Transaction) -> bool:
        self.ruleset.other(script(transaction))
        # What is told last is noticed last.
        self.ruleset.other("add table ip6 proxyd\nadd chain ip6 proxyd marker\ndelete table ip6 proxyd")
        return "marker" in self._told.get(timeout=SOON).what

    def table(self, family: Family) -> Table:
        elements: dict[str, dict[str, str]] = {}
        rules: dict[str, list[str]] = {}
        for kind, each in self.ruleset.listed(family):
            if kind in ("set", "map"):
                elements[each["name"]] = elements_of(each)
            elif kind == "chain":
                rules[each["name"]] = []
            elif kind == "rule":
                rules[each["chain"]].append(json.dumps(each["expr"]))
        return elements, rules

    def close(self) -> None:
        self._notifications.stop()
