"""Writes to one family's table: what a pass has written and what was refused, and what is known of the kernel after."""

from __future__ import annotations

from proxyd.kernel.nft.ruleset import Contents, Ruleset
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family, ServiceKey
from proxyd.nft.delta import Holdings
from proxyd.nft.objects import Transaction
from proxyd.nft.render import ServiceObjects

Changes = dict[ServiceKey, ServiceObjects | None]


class Commits:
    """Commits for one family, counted: ``operations`` that were written, and ``refusals`` of transactions."""

    def __init__(self, family: Family, ruleset: Ruleset) -> None:
        self.family = family
        self.operations = 0
        self.refusals = 0
        self._ruleset = ruleset

    def begin(self) -> None:
        """Counts from 0 again."""
        self.operations = self.refusals = 0

    def contents(self) -> Contents:
        """See ``Ruleset``."""
        return self._ruleset.contents(self.family)

    def change(self, holdings: Holdings, changes: Changes) -> None:
        """Writes Services as they are to be (None: gone). Raises ``KernelRefusedError``; nothing has changed then."""
        plan = holdings.plan(changes)
        self.write(plan.transaction)
        holdings.confirm(plan)

    def write(self, transaction: Transaction) -> None:
        """Carries a transaction out. Raises ``KernelRefusedError``."""
        if not transaction.size:
            return
        try:
            self._ruleset.commit(transaction)
        except KernelRefusedError:
            self.refusals += 1
            raise
        self.operations += transaction.size

    def tidy(self, transaction: Transaction) -> None:
        """Carries out what only deletes what nothing uses; not counted. Raises ``KernelRefusedError``."""
        self._ruleset.commit(transaction)
