"""What kube-proxy left on this node, in each of the places where it can be: found, and removed without a gap.

There are three for each family: the table of its nftables mode, and the chains of its iptables mode in either backend of
iptables. The chains of the nft backend are read and removed through nftables too: that needs no tools, does not depend on
which version wrote the rules, and a large rule set takes a fraction of the time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from proxyd.ipt import removal
from proxyd.ipt.ownership import NFT_TABLE, NFT_TRANSLATING, TABLES, is_own_chain, is_own_jump
from proxyd.ipt.removal import Chain, Found, Jump
from proxyd.kernel import netlink
from proxyd.kernel.ipt.iptables import Backend, Iptables, IptablesRefusedError, IptablesTools, IptablesUnavailableError
from proxyd.kernel.nft import nfnetlink
from proxyd.kernel.nft.libnftables import Library, NftablesUnavailableError
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft.layout import TABLE
from proxyd.nft.script import FAMILY_WORD

Rest = Callable[[float], object]

# Chains in one transaction: each of their rules is a notification to everybody who listens, and that is us too.
_NFT_BATCH = 500
_FORWARD = Chain("filter", "FORWARD")
# As the kernel's netlink interface numbers them: families of tables, and the policy of a base chain.
_NUMBERS = {Family.IPV4: 2, Family.IPV6: 10}
_DROP = bytes(4)


class PredecessorError(Exception):
    """It could not be looked at or not be removed; the text says why. What is still there works as before."""


class Predecessor(Protocol):
    """kube-proxy's rules of one family in one place. ``place`` is for people."""

    family: Family
    place: str

    def find(self) -> Found | None:
        """What is there; None where nothing is that could go. Raises ``PredecessorError``."""

    def remove(self, found: Found, rest: Rest = lambda _: None) -> None:
        """Removes what was found, calling ``rest`` after each of many steps with the seconds that it took.

        Raises ``PredecessorError``, and what ``rest`` raises; then part of it may be gone, what translates first.
        """


def predecessors(families: Iterable[Family], own: Backend | None = None) -> list[Predecessor]:
    """All places on this machine; they are in the namespace of the thread that uses them.

    With ``own``, the backend that proxyd writes its own rules to: the places beside that, and its table of nftables mode.
    """
    found: list[Predecessor] = []
    for family in families:
        found.append(NftTable(family))
        if own is not None:
            found.append(OwnTable(family))
        if own is not Backend.NFT:
            found.append(NftChains(family))
        if own is not Backend.LEGACY:
            found.append(LegacyChains(family, IptablesTools(family, Backend.LEGACY)))
    return found


class NftTable:
    """The table ``kube-proxy`` of kube-proxy's nftables mode."""

    def __init__(self, family: Family, library: Callable[[], Library] = Library) -> None:
        self.family = family
        self.place = f"nftables table {FAMILY_WORD[family]} {NFT_TABLE}"
        self._library = library

    def find(self) -> Found | None:
        """See ``Predecessor``."""
        with _telling():
            chains = [each for each, _ in _chains(self.family) if each.table == NFT_TABLE]
        return Found(chains=tuple(sorted(chains))) if chains else None

    def remove(self, found: Found, rest: Rest = lambda _: None) -> None:  # noqa: ARG002  (few steps)
        """See ``Predecessor``."""
        table = f"{FAMILY_WORD[self.family]} {NFT_TABLE}"
        translating = [each.name for each in found.chains if each.name in NFT_TRANSLATING]
        with _telling():
            library = self._library()
            if translating:
                # Before the rest: nothing must be translated and then not be masqueraded.
                library.run("".join(f"flush chain {table} {name}\n" for name in translating))
            library.run(f"delete table {table}\n")


class OwnTable:
    """proxyd's own table of nftables mode, where it is in iptables mode now."""

    def __init__(self, family: Family, library: Callable[[], Library] = Library) -> None:
        self.family = family
        self.place = f"nftables table {FAMILY_WORD[family]} {TABLE}"
        self._library = library

    def find(self) -> Found | None:
        """See ``Predecessor``."""
        with _telling():
            chains = [each for each, _ in _chains(self.family) if each.table == TABLE]
        return Found(chains=tuple(sorted(chains)), own=True) if chains else None

    def remove(self, found: Found, rest: Rest = lambda _: None) -> None:  # noqa: ARG002  (all of it goes)
        """See ``Predecessor``. In one transaction: every connection meets all of it, or nothing."""
        with _telling():
            self._library().run(f"delete table {FAMILY_WORD[self.family]} {TABLE}\n")


class NftChains:
    """The chains of kube-proxy's iptables mode, written by iptables-nft."""

    def __init__(self, family: Family, library: Callable[[], Library] = Library) -> None:
        self.family = family
        self.place = f"iptables-nft, {family}"
        self._library = library

    def find(self) -> Found | None:
        """See ``Predecessor``. Lists all names, but rules only of chains that are not kube-proxy's."""
        with _telling():
            library = self._library()
            listed = [each for each in _chains(self.family) if each.chain.table in TABLES]
            own = {chain for chain, _ in listed if is_own_chain(chain.table, chain.name)}
            tables = {chain.table for chain in own}
            jumps, used, drops = [], set(), False
            for chain, policy_drops in listed:
                if chain in own or chain.table not in tables:
                    continue
                drops = drops or (chain == _FORWARD and policy_drops)
                for handle, target in _verdicts(library, self.family, chain):
                    if is_own_jump(chain.table, chain.name, target):
                        jumps.append(Jump(chain.table, chain.name, str(handle)))
                    elif Chain(chain.table, target) in own:
                        used.add(Chain(chain.table, target))
        return removal.found(jumps, own, used, drops=drops)

    def remove(self, found: Found, rest: Rest = lambda _: None) -> None:
        """See ``Predecessor``."""
        word = FAMILY_WORD[self.family]
        with _telling():
            library = self._library()
            for step in removal.steps(found.jumps):
                library.run("".join(f"delete rule {word} {j.table} {j.chain} handle {j.rule}\n" for j in step))
            for verb, chains in (("flush", (*found.chains, *found.emptied)), ("delete", found.chains)):
                for table, names in removal.batches(tuple(sorted(chains)), _NFT_BATCH):
                    started = time.monotonic()
                    library.run("".join(f"{verb} chain {word} {table} {name}\n" for name in names))
                    rest(time.monotonic() - started)


class LegacyChains:
    """The chains of kube-proxy's iptables mode, written by iptables-legacy."""

    def __init__(self, family: Family, iptables: Iptables) -> None:
        self.family = family
        self.place = f"iptables-legacy, {self.family}"
        self._iptables = iptables

    def find(self) -> Found | None:
        """See ``Predecessor``."""
        with _telling():
            return removal.find(self._saved())

    def remove(self, found: Found, rest: Rest = lambda _: None) -> None:
        """See ``Predecessor``."""
        with _telling():
            for text in removal.restores(found):
                started = time.monotonic()
                self._iptables.restore(text)
                rest(time.monotonic() - started)

    def _saved(self) -> Iterator[str]:
        for table in self._iptables.tables():
            if table in TABLES:
                yield from self._iptables.save(table)


class _Listed(NamedTuple):
    """A chain, and whether its policy is to drop."""

    chain: Chain
    drops: bool


def _chains(family: Family) -> list[_Listed]:
    """All chains of a family, without their rules."""
    return [
        _Listed(Chain(netlink.text(each.get(1, b"")), netlink.text(each.get(3, b""))), each.get(5) == _DROP)
        for number, each in nfnetlink.dump(nfnetlink.GET_CHAIN)
        if number == _NUMBERS[family]
    ]


def _verdicts(library: Library, family: Family, chain: Chain) -> Iterator[tuple[int, str]]:
    """The rules of a chain that lead to another one, as handle and name of that."""
    # As JSON, since iptables allows names that nft's own words cannot say.
    named = {"family": FAMILY_WORD[family], "table": chain.table, "name": chain.name}
    for entry in library.query(json.dumps({"nftables": [{"list": {"chain": named}}]})):
        for statement in entry.get("rule", {}).get("expr", ()):
            if isinstance(statement, dict) and (verdict := statement.get("jump") or statement.get("goto")):
                yield entry["rule"]["handle"], verdict["target"]


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except (KernelRefusedError, NftablesUnavailableError, IptablesRefusedError, IptablesUnavailableError) as error:
        raise PredecessorError(str(error)) from error
    except OSError as error:
        raise PredecessorError(error.strerror or str(error)) from error
