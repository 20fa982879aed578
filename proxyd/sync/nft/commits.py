"""Writes to one family's table: what a pass has written and what was refused, and what is known of the kernel after."""

from __future__ import annotations

import time

from proxyd.kernel.nft.ruleset import Contents, Ruleset
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family, ServiceKey
from proxyd.nft.delta import Holdings
from proxyd.nft.objects import Transaction
from proxyd.nft.render import ServiceObjects
from proxyd.sync.stopwatch import Stopwatch

Changes = dict[ServiceKey, ServiceObjects | None]


class Commits:
    """Commits for one family: ``operations`` that were written, ``refusals`` of transactions and time spent, counted."""

    def __init__(self, family: Family, ruleset: Ruleset) -> None:
        self.family = family
        self.operations = 0
        self.refusals = 0
        self.in_kernel = Stopwatch()
        self._ruleset = ruleset

    def begin(self) -> None:
        """Counts from 0 again."""
        self.operations = self.refusals = 0
        self.in_kernel = Stopwatch()

    def contents(self) -> Contents:
        """See ``Ruleset``."""
        with self.in_kernel:
            return self._ruleset.contents(self.family)

    def change(self, holdings: Holdings, changes: Changes) -> None:
        """Writes Services as they are to be (None: gone).

        Raises ``KernelRefusedError``, and all is served as before then; ``OutcomeUnclearError`` where it may not be.
        """
        plan = holdings.plan(changes)
        self.write(plan.before)
        holdings.confirm_before(plan)
        self.write(plan.transaction)
        try:
            self.write(plan.after)
        except KernelRefusedError as error:
            raise OutcomeUnclearError(str(error)) from error
        holdings.confirm(plan, time.monotonic())

    def write(self, transaction: Transaction) -> None:
        """Carries a transaction out. Raises ``KernelRefusedError``."""
        if not transaction.size:
            return
        try:
            with self.in_kernel:
                self._ruleset.commit(transaction)
        except KernelRefusedError:
            self.refusals += 1
            raise
        self.operations += transaction.size

    def tidy(self, transaction: Transaction) -> None:
        """Carries out what only deletes what nothing uses; not counted. Raises ``KernelRefusedError``."""
        self._ruleset.commit(transaction)
