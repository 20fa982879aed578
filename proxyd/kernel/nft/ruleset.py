"""The interface to the kernel's nftables: what the sync thread may ask of it."""

from __future__ import annotations

from typing import Protocol

import msgspec

from proxyd.model import Family
from proxyd.nft.objects import Transaction


class Contents(msgspec.Struct, frozen=True):
    """Names of what is in our table: chains, and sets and maps with whether each is a map. Empty without the table."""

    chains: frozenset[str] = frozenset()
    containers: dict[str, bool] = {}


class Ruleset(Protocol):
    """nftables of one network namespace."""

    def commit(self, transaction: Transaction) -> None:
        """Carries out a transaction whole, or raises ``KernelRefusedError`` and leaves everything as it was.

        Raises ``OutcomeUnclearError`` where it may have been carried out nevertheless.
        """

    def contents(self, family: Family) -> Contents:
        """Lists names in our table, never elements or rules. Raises ``KernelRefusedError``."""
