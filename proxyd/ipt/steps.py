"""How a transaction is carried out in calls that are each of a size that the tools can cope with.

Chains of Services first, then the rules that lead to them, and what nothing leads to any more last: whatever call is the
last one that succeeded, every connection goes where it went before or where it is to go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from proxyd.ipt import names
from proxyd.ipt.objects import Chain, ChainName, Transaction
from proxyd.model import Family

T = TypeVar("T")
_INNERMOST = (names.ENDPOINT, names.SERVICE, names.LOCAL, names.EXTERNAL, names.SOURCES)


def steps(transaction: Transaction, batch: int) -> Iterator[Transaction]:
    """The transaction in calls that touch at most ``batch`` chains each; a small one stays whole."""
    t = transaction
    if len(t.chains) + len(t.delete_chains) <= batch:
        yield t
        return
    for chains in _parts(sorted(t.chains, key=_depth), batch):
        yield Transaction(t.family, chains=tuple(chains))
    if t.delete or t.insert:
        yield Transaction(t.family, delete=t.delete, insert=t.insert)
    yield from removal(t.family, t.delete_chains, batch)


def _depth(chain: Chain) -> int:
    """What rules lead to has to be there before them."""
    return next((depth for depth, prefix in enumerate(_INNERMOST) if chain.name.startswith(prefix)), len(_INNERMOST))


def removal(family: Family, chains: Sequence[ChainName], batch: int) -> Iterator[Transaction]:
    """Takes chains away that nothing else leads to. Where that takes several calls, all are emptied before any goes."""
    if len(chains) <= batch:
        yield Transaction(family, delete_chains=tuple(chains))
        return
    for part in _parts(chains, batch):
        yield Transaction(family, chains=tuple(Chain(each.table, each.name) for each in part))
    for part in _parts(chains, batch):
        yield Transaction(family, delete_chains=tuple(part))


def _parts(whole: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(whole), size):
        yield whole[start : start + size]
