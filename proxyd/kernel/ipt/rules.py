"""The rules of iptables mode in one family: what the sync thread may ask of them, and the real ones, through the tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from proxyd.ipt.jumps import JUMP_PLACES, find_jump
from proxyd.ipt.objects import Placed, Table, Transaction
from proxyd.ipt.restore import restore_input
from proxyd.ipt.saved import Contents, read
from proxyd.kernel.ipt.iptables import (
    Backend,
    IptablesKilledError,
    IptablesLockedError,
    IptablesRefusedError,
    IptablesTools,
    IptablesUnavailableError,
)
from proxyd.kernel.refused import EndedFromOutsideError, KernelRefusedError, OutcomeUnclearError

# Chains in one call. iptables-nft takes time with the square of it, iptables-legacy the same for every call (it reads and
# writes the whole table).
BATCH = {Backend.NFT: 600, Backend.LEGACY: 1_000_000}


class RulesLockedError(OutcomeUnclearError):
    """Somebody else held the lock of the tools for too long. It is taken for each table anew."""


class RulesUnreadableError(KernelRefusedError):
    """The rules could not be read."""


class IptRules(Protocol):
    """iptables of one family in one network namespace."""

    batch: int
    """How many chains one call should touch at most."""

    def commit(self, transactions: Iterable[Transaction]) -> None:
        """Carries transactions out in one call, each table whole or not at all. They may be made while it runs.

        Raises ``KernelRefusedError``; part of the tables may have been written then. Raises ``OutcomeUnclearError`` where
        the one that was refused may have been too, ``EndedFromOutsideError`` where the tool was ended.
        """

    def contents(self) -> Contents:
        """Reads all rules. Raises ``RulesUnreadableError``."""

    def jumps(self) -> frozenset[Placed]:
        """Those of our jumps that are there. Raises ``RulesUnreadableError``."""


class ToolRules:
    """The real one. Not for several threads at once."""

    def __init__(self, tools: IptablesTools) -> None:
        self.batch = BATCH[tools.backend]
        self._tools = tools

    def commit(self, transactions: Iterable[Transaction]) -> None:
        """See ``IptRules``."""
        try:
            self._tools.restore(restore_input(transactions))
        except IptablesLockedError as error:
            raise RulesLockedError(str(error)) from error
        except IptablesKilledError as error:
            raise EndedFromOutsideError(str(error)) from error
        except (IptablesRefusedError, IptablesUnavailableError) as error:
            raise KernelRefusedError(str(error)) from error

    def contents(self) -> Contents:
        """See ``IptRules``."""
        try:
            return read(self._tools.everything())
        except (IptablesRefusedError, IptablesUnavailableError) as error:
            raise RulesUnreadableError(str(error)) from error

    def jumps(self) -> frozenset[Placed]:
        """See ``IptRules``."""
        try:
            existing = self._tools.tables() if self._tools.backend is Backend.LEGACY else tuple(Table)
            places = [place for place in JUMP_PLACES if place[0] in existing]
            listed = (
                find_jump(table, line) for table, chain in places for line in self._tools.list_chain(table, chain)
            )
            return frozenset(each for each in listed if each is not None)
        except (IptablesRefusedError, IptablesUnavailableError) as error:
            raise RulesUnreadableError(str(error)) from error
