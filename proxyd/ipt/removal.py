"""kube-proxy's part of a saved rule set, and the restore input that removes it in steps which each leave things working.

Jumps go first: that takes everything out of the packets' path at once, and what follows can take its time. Of the jumps
those to the translation of destinations go before the others, so that no packet is translated and then not masqueraded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from proxyd.ipt.ownership import MARK_MASQ, OWN_MARK, is_own_chain, is_own_jump, translates

# Chains in one call: both backends take longer than in proportion to it.
BATCH = 1000
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_TARGET = re.compile(r" -[jg] (\S+)")


class Jump(msgspec.Struct, frozen=True):
    """A rule of a built-in chain that leads to kube-proxy. ``rule`` names it: its text in a save, or nftables' handle."""

    table: str
    chain: str
    rule: str


class Chain(msgspec.Struct, frozen=True, order=True):
    """A chain by its names."""

    table: str
    name: str


class Found(msgspec.Struct, frozen=True):
    """What there is of kube-proxy: jumps and chains that can go, and chains that stay since others' rules lead to them.

    ``forward_drops``: the policy of the filter table's FORWARD is to drop, and kube-proxy accepted traffic before that.
    ``own``: it was proxyd that wrote them, in its other mode.
    """

    jumps: tuple[Jump, ...] = ()
    chains: tuple[Chain, ...] = ()
    kept: tuple[Chain, ...] = ()
    forward_drops: bool = False
    own: bool = False

    @property
    def whose(self) -> str:
        """Whose rules these are, for people."""
        return "proxyd's other mode" if self.own else "kube-proxy"

    @property
    def emptied(self) -> tuple[Chain, ...]:
        """The chains that stay, but without rules. The rule of KUBE-MARK-MASQ leads nowhere else and stays too."""
        return tuple(each for each in self.kept if each.name != MARK_MASQ)


def find(saved: Iterable[str]) -> Found | None:
    """Finds kube-proxy's part in the lines of ``iptables-save`` (any tables); None where there is nothing that can go."""
    table = ""
    chains: set[Chain] = set()
    jumps: list[Jump] = []
    used: set[Chain] = set()
    drops = False
    for line in saved:
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":"):
            name, policy = line[1:].split()[:2]
            drops = drops or (table, name, policy) == ("filter", "FORWARD", "DROP")
            if is_own_chain(table, name):
                chains.add(Chain(table, name))
        elif line.startswith("-A "):
            chain, target = _reads(line)
            if is_own_jump(table, chain, target):
                jumps.append(Jump(table, chain, line[len("-A ") + len(chain) + 1 :].rstrip("\n")))
            elif target and is_own_chain(table, target) and not is_own_chain(table, chain):
                used.add(Chain(table, target))
    return found(jumps, chains, used, drops=drops)


def found(jumps: Iterable[Jump], chains: set[Chain], used: set[Chain], *, drops: bool) -> Found | None:
    """``Found`` of all jumps, all chains, and the chains that others' rules lead to; None where nothing can go."""
    jumps, going = tuple(jumps), tuple(sorted(chains - used))
    accepting = any(jump.chain == "FORWARD" for jump in jumps)
    if not jumps and not going:
        return None
    own = Chain("nat", OWN_MARK) in chains
    return Found(jumps, going, tuple(sorted(chains & used)), drops and accepting, own)


def steps(jumps: Sequence[Jump]) -> list[list[Jump]]:
    """The jumps in the order in which they have to go: one step after the other."""
    first = [jump for jump in jumps if translates(jump.table, jump.chain)]
    then = [jump for jump in jumps if not translates(jump.table, jump.chain)]
    return [step for step in (first, then) if step]


def batches(chains: Sequence[Chain], size: int = BATCH) -> Iterator[tuple[str, list[str]]]:
    """Chains by table, no more than ``size`` at a time."""
    for table, group in groupby(chains, key=lambda chain: chain.table):
        names = [chain.name for chain in group]
        for start in range(0, len(names), size):
            yield table, names[start : start + size]


def restores(what: Found) -> Iterator[str]:
    """Inputs for ``iptables-restore --noflush``, to be given one after the other. Emptying before deleting frees all."""
    for step in steps(what.jumps):
        by_table = groupby(sorted(step, key=lambda jump: jump.table), key=lambda jump: jump.table)
        yield "".join(_restore(table, [f"-D {jump.chain} {jump.rule}" for jump in group]) for table, group in by_table)
    for table, names in batches(tuple(sorted((*what.chains, *what.emptied)))):
        yield _restore(table, [f":{name} - [0:0]" for name in names])
    for table, names in batches(what.chains):
        yield _restore(table, [f"-X {name}" for name in names])


def _restore(table: str, lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (f"*{table}", *lines, "COMMIT"))


def _reads(line: str) -> tuple[str, str]:
    """The chain of a rule and the chain or target it leads to, if any; what is quoted may look like anything."""
    bare = _QUOTED.sub('""', line)
    target = _TARGET.search(bare)
    return bare.split(" ", 2)[1].strip(), target[1] if target else ""
