"""The rules of iptables mode in one family: what the sync thread may ask of them, and the real ones, through the tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from proxyd.ipt.jumps import JUMP_PLACES, find_jump
from proxyd.ipt.objects import ChainName, Placed, Table, Transaction
from proxyd.ipt.ownership import BUILT_IN
from proxyd.ipt.restore import restore_input
from proxyd.kernel import nfnetlink
from proxyd.kernel.iptables import Backend, IptablesRefusedError, IptablesTools, IptablesUnavailableError
from proxyd.kernel.ruleset import KernelRefusedError
from proxyd.model import Family

# Chains in one call. iptables-nft takes time with the square of it, iptables-legacy the same for every call (it reads and
# writes the whole table).
BATCH = {Backend.NFT: 600, Backend.LEGACY: 1_000_000}
_NFT_FAMILIES = {Family.IPV4: 2, Family.IPV6: 10}


class RuleContents(msgspec.Struct, frozen=True):
    """What there is: chains that are not built in, and those of our jumps that are there."""

    chains: frozenset[ChainName] = frozenset()
    jumps: frozenset[Placed] = frozenset()


class IptRules(Protocol):
    """iptables of one family in one network namespace."""

    batch: int
    """How many chains one call should touch at most."""

    def commit(self, transactions: Iterable[Transaction]) -> None:
        """Carries transactions out in one call, each table whole or not at all. They may be made while it runs.

        Raises ``KernelRefusedError``; part of the tables may have been written then.
        """

    def contents(self) -> RuleContents:
        """Lists names of chains, and our jumps. Raises ``KernelRefusedError``."""

    def jumps(self) -> frozenset[Placed]:
        """Those of our jumps that are there. Raises ``KernelRefusedError``."""


class ToolRules:
    """The real one. Not for several threads at once."""

    def __init__(self, tools: IptablesTools) -> None:
        self.batch = BATCH[tools.backend]
        self._tools = tools

    def commit(self, transactions: Iterable[Transaction]) -> None:
        """See ``IptRules``."""
        try:
            self._tools.restore(restore_input(transactions))
        except (IptablesRefusedError, IptablesUnavailableError) as error:
            raise KernelRefusedError(str(error)) from error

    def contents(self) -> RuleContents:
        """See ``IptRules``."""
        try:
            if self._tools.backend is Backend.NFT:
                return RuleContents(self._nft_chains(), self.jumps())
            return self._saved()
        except (IptablesRefusedError, IptablesUnavailableError) as error:
            raise KernelRefusedError(str(error)) from error
        except OSError as error:
            raise KernelRefusedError(error.strerror or str(error)) from error

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
            raise KernelRefusedError(str(error)) from error

    def _nft_chains(self) -> frozenset[ChainName]:
        """By netlink: the tool would read all rules too."""
        found = set()
        for number, attributes in nfnetlink.dump(nfnetlink.GET_CHAIN):
            table, name = (nfnetlink.text(attributes.get(each, b"")) for each in (1, 3))
            if number == _NFT_FAMILIES[self._tools.family] and table in _TABLES and name not in BUILT_IN:
                found.add(ChainName(Table(table), name))
        return frozenset(found)

    def _saved(self) -> RuleContents:
        """From what the tool prints: there is no other way to the names of chains."""
        chains: set[ChainName] = set()
        jumps: set[Placed] = set()
        for table in self._tools.tables():
            for line in self._tools.save(table) if table in _TABLES else ():
                if line.startswith(":"):
                    name = line[1:].split(" ", 1)[0]
                    chains.update(() if name in BUILT_IN else (ChainName(Table(table), name),))
                elif (jump := find_jump(table, line)) is not None:
                    jumps.add(jump)
        return RuleContents(frozenset(chains), frozenset(jumps))


_TABLES = {str(table) for table in Table}
