"""Writes to iptables of one family, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from proxyd.ipt.objects import Placed, Table, Transaction
from proxyd.ipt.saved import Contents
from proxyd.kernel.ipt.rules import IptRules, RulesLockedError
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family
from proxyd.sync.stopwatch import Stopwatch


class RuleCommits:
    """Calls for one family: ``operations`` that were written, ``rules`` among them by table, ``refusals`` of calls.

    ``locked`` of these were refused since somebody else held the lock. ``in_kernel`` is the time in calls of the tools, and
    so that of making rules while one runs.
    """

    def __init__(self, family: Family, kernel: IptRules) -> None:
        self.family = family
        self.batch = kernel.batch
        self.operations = 0
        self.refusals = 0
        self.locked = 0
        self.rules: Counter[Table] = Counter()
        self.in_kernel = Stopwatch()
        self._kernel = kernel

    def begin(self) -> None:
        """Counts from 0 again."""
        self.operations = self.refusals = self.locked = 0
        self.rules = Counter()
        self.in_kernel = Stopwatch()

    def contents(self) -> Contents:
        """See ``IptRules``."""
        with self.in_kernel:
            return self._kernel.contents()

    def jumps(self) -> frozenset[Placed]:
        """See ``IptRules``."""
        with self.in_kernel:
            return self._kernel.jumps()

    def write(self, *transactions: Transaction) -> None:
        """Carries transactions out, in one call. Raises ``KernelRefusedError``; nothing has changed then.

        Raises ``OutcomeUnclearError`` where some of it may have been written.
        """
        self.stream(transactions)

    def stream(self, transactions: Iterable[Transaction]) -> None:
        """As ``write``, with transactions that are made while the call runs."""
        operations, rules, tables = 0, Counter[Table](), set[Table]()

        def counted() -> Iterator[Transaction]:
            nonlocal operations
            for each in transactions:
                operations += each.size
                rules.update(_rules(each))
                tables.update(_tables(each))
                yield each

        try:
            with self.in_kernel:
                self._kernel.commit(counted())
        except KernelRefusedError as error:
            self.refusals += 1
            self.locked += isinstance(error, RulesLockedError)
            if len(tables) > 1 and not isinstance(error, OutcomeUnclearError):
                # Each table is written whole or not at all, but one after the other.
                raise OutcomeUnclearError(str(error)) from error
            raise
        self.operations += operations
        self.rules.update(rules)


def _tables(transaction: Transaction) -> set[Table]:
    t = transaction
    chains = {each.table for each in t.chains} | {each.table for each in t.delete_chains}
    return chains | {each.table for each in (*t.delete, *t.insert)}


def _rules(transaction: Transaction) -> Counter[Table]:
    found = Counter(each.table for each in transaction.insert)
    for each in transaction.chains:
        found[each.table] += len(each.rules)
    return found
