"""Implements ``IptRules`` in memory, on FakeRules: calls are counted, watched and refused on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from proxyd.ipt.fixed import JUMPS, SHARED_JUMPS
from proxyd.ipt.jumps import find_jump
from proxyd.ipt.objects import Placed, Rule, Table, Transaction
from proxyd.ipt.ownership import BUILT_IN
from proxyd.ipt.restore import rule_text
from proxyd.ipt.saved import Contents, printed, read
from proxyd.kernel.ipt.rules import RulesLockedError, RulesUnreadableError
from proxyd.kernel.refused import EndedFromOutsideError, KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family
from tests.fakes.ipt_rules import FakeRules

Predicate = Callable[[Transaction], bool]


class FakeKernel:
    """One family. ``commits`` are the calls that were carried out, ``calls`` the transactions in each.

    ``watchers`` are called after each of them.
    """

    def __init__(self, family: Family = Family.IPV4, batch: int = 100) -> None:
        self.family = family
        self.batch = batch
        self.rules = FakeRules()
        self.commits: list[Transaction] = []
        self.calls: list[tuple[Transaction, ...]] = []
        self.refused: list[Transaction] = []
        self.watchers: list[Callable[[], None]] = []
        self.listings = 0
        self._refusals = 0
        self._until_locked: int | None = None
        self._ended: list[Predicate] = []
        self._unreadable = 0
        self._predicates: list[Predicate] = []
        self._unclear: list[Predicate] = []

    def refuse_next(self, count: int = 1) -> None:
        """Refuses this many calls from now on."""
        self._refusals = count

    def lock_after(self, calls: int) -> None:
        """Somebody takes the lock after this many more calls, and keeps it."""
        self._until_locked = calls

    def end_once(self, predicate: Predicate) -> None:
        """The tool is ended from outside in the next call that the predicate holds for, before it has written anything."""
        self._ended.append(predicate)

    def unreadable_next(self) -> None:
        """The next reading of all rules fails."""
        self._unreadable = 1

    def refuse_if(self, predicate: Predicate) -> None:
        """Refuses all calls that the predicate holds for."""
        self._predicates.append(predicate)

    def unclear_if(self, predicate: Predicate) -> None:
        """Carries the calls out that the predicate holds for, and then says that this is not known."""
        self._unclear.append(predicate)

    def recover(self) -> None:
        """Ends all trouble that was asked for."""
        self._refusals = 0
        self._until_locked = None
        self._predicates.clear()
        self._unclear.clear()

    def commit(self, transactions: Iterable[Transaction]) -> None:
        """See ``IptRules``."""
        parts = list(transactions)
        transaction = _merged(self.family, parts)
        try:
            self._trouble(transaction)
            self.rules.commit(transaction)
        except KernelRefusedError:
            self.refused.append(transaction)
            raise
        self.commits.append(transaction)
        self.calls.append(tuple(parts))
        for watcher in self.watchers:
            watcher()
        if any(holds(transaction) for holds in self._unclear):
            raise OutcomeUnclearError("Interrupted: the outcome is not known")

    def contents(self) -> Contents:
        """See ``IptRules``."""
        self.listings += 1
        if self._unreadable:
            self._unreadable -= 1
            raise RulesUnreadableError("Cannot allocate memory")
        return read(line for table, lines in self.saved().items() for line in (f"*{table}", *lines))

    def jumps(self) -> frozenset[Placed]:
        """See ``IptRules``."""
        places = {(each.table, each.chain) for each in (*JUMPS, *SHARED_JUMPS)}
        listed = ((table, name, rule) for table, name in places for rule in self.rules.rules(table, name))
        found = (find_jump(table, f"-A {name}{rule_text(rule)}") for table, name, rule in listed)
        return frozenset(each for each in found if each is not None)

    def flush(self, table: Table, name: str = "") -> None:
        """Somebody empties a chain, or all of a table."""
        chains = self.rules.tables[table]
        for each in [name] if name else list(chains):
            chains[each] = []

    def delete_empty(self, table: Table) -> None:
        """Somebody deletes all chains of a table that no rule needs, but built-in ones."""
        chains = self.rules.tables[table]
        needed = {rule.target for rules in chains.values() for rule in rules}
        for each in [name for name in chains if name not in BUILT_IN and name not in needed and not chains[name]]:
            del chains[each]

    def saved(self) -> dict[Table, list[str]]:
        """The lines of all tables."""
        return {table: list(self._lines(chains)) for table, chains in self.rules.tables.items()}

    def _lines(self, chains: dict[str, list[Rule]]) -> Iterator[str]:
        yield from (f":{name} - [0:0]" for name in chains)
        for name, rules in chains.items():
            # A rule without match and target is its chain alone.
            yield from (f"-A {name} {printed(rule, self.family)}".rstrip() for rule in rules)

    def _trouble(self, transaction: Transaction) -> None:
        if self._until_locked is not None:
            if not self._until_locked:
                raise RulesLockedError("another app is currently holding the xtables lock")
            self._until_locked -= 1
        for holds in self._ended:
            if holds(transaction):
                self._ended.remove(holds)
                raise EndedFromOutsideError("ended by signal 9")
        if self._refusals:
            self._refusals -= 1
            raise KernelRefusedError("Device or resource busy: refused on demand")
        if any(holds(transaction) for holds in self._predicates):
            raise KernelRefusedError("Operation not permitted: refused on demand")


def _merged(family: Family, parts: list[Transaction]) -> Transaction:
    assert all(each.family is family for each in parts)
    return Transaction(
        family,
        chains=tuple(chain.from_iterable(each.chains for each in parts)),
        delete=tuple(chain.from_iterable(each.delete for each in parts)),
        insert=tuple(chain.from_iterable(each.insert for each in parts)),
        delete_chains=tuple(chain.from_iterable(each.delete_chains for each in parts)),
    )
