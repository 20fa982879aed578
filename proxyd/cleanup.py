"""Removes all rules of proxyd and of kube-proxy, in every mode and backend, from this network namespace."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from proxyd.kernel.host import supported_families
from proxyd.kernel.lock import AlreadyRunningError, lock_namespace
from proxyd.kernel.nft.libnftables import LibNftables, NftablesUnavailableError
from proxyd.kernel.predecessor import Predecessor, PredecessorError, predecessors
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft.layout import TABLE, TABLE_COMMENT
from proxyd.nft.objects import Transaction
from proxyd.nft.script import FAMILY_WORD

# Rules that come while others are being removed: whoever writes them is asked to stop.
ATTEMPTS = 3


def cleanup(*, own_only: bool = False) -> int:
    """Removes the rules, or with ``own_only`` those of proxyd alone; gives the exit status, 1 if any could not be removed.

    The chains of iptables mode have kube-proxy's names: they are proxyd's where it was the last to write them.

    What is removed is told on standard output, what is not on standard error. Sysctls stay as they are, connections too.
    """
    try:
        lock = lock_namespace()
    except AlreadyRunningError as error:
        return _fail([f"{error}: stop it first"])
    with lock:
        families = supported_families()
        problems = _remove_own(families)
        for each in predecessors(families):
            problems += remove(each, _say, own_only=own_only)
    return _fail(problems) if problems else 0


def remove(place: Predecessor, say: Callable[[str], None], *, own_only: bool = False) -> list[str]:
    """Removes what kube-proxy has in one place (or only what proxyd wrote there), telling what.

    Gives what could not be removed and why.
    """
    try:
        for _ in range(ATTEMPTS):
            if (found := place.find()) is None:
                return []
            if own_only and not found.own:
                say(f"left alone, since kube-proxy wrote them: the rules in {place.place}")
                return []
            place.remove(found)
            whose = "proxyd's" if found.own else "kube-proxy's"
            say(f"{whose} rules removed: {place.place} ({len(found.chains)} chains, {len(found.jumps)} jumps)")
            for chain in found.kept:
                say(
                    f"kept, because rules of others lead to it: {place.place}, chain {chain.name} of table {chain.table}"
                )
        if place.find() is None:
            return []
    except PredecessorError as error:
        return [f"{place.place}: {error}"]
    return [f"{place.place}: the rules come back, stop kube-proxy first"]


def _remove_own(families: Sequence[Family]) -> list[str]:
    problems = []
    try:
        nft = LibNftables()
    except NftablesUnavailableError as error:
        return [f"nftables: {error}"]
    for family in families:
        table = f"{FAMILY_WORD[family]} {TABLE}"
        try:
            there = bool(nft.contents(family).chains)
            # Adding it first makes the deletion work whether it is there or not.
            nft.commit(Transaction(family, table=TABLE_COMMENT, delete_table=True))
            if there:
                _say(f"proxyd's rules removed: nftables table {table}")
        except KernelRefusedError as error:
            problems.append(f"nftables table {table}: {error}")
    return problems


def _say(line: str) -> None:
    print(line)  # noqa: T201 - a command, not the daemon


def _fail(problems: Sequence[str]) -> int:
    for problem in problems:
        print(f"proxyd: {problem}", file=sys.stderr)  # noqa: T201
    return 1
