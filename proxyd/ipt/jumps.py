"""Our jumps from built-in chains, found again in what the tools print."""

from __future__ import annotations

import shlex

from proxyd.ipt.fixed import JUMPS, SHARED_JUMPS
from proxyd.ipt.objects import Placed
from proxyd.ipt.restore import rule_text


def _words(table: str, line: str) -> tuple[str, ...]:
    """A rule's words in an order of their own: the tools print options in another order than they are given."""
    return (table, *sorted(shlex.split(line)))


_JUMPS = {_words(each.table, f"-A {each.chain}{rule_text(each.rule)}"): each for each in (*JUMPS, *SHARED_JUMPS)}
_CHAINS = tuple(f"-A {chain} " for chain in sorted({each.chain for each in _JUMPS.values()}))
# Chains that there are jumps from, with their table.
JUMP_PLACES = tuple(dict.fromkeys((each.table, each.chain) for each in _JUMPS.values()))


def find_jump(table: str, line: str) -> Placed | None:
    """The jump of ours that a line of a saved table is, if it is one."""
    if not line.startswith(_CHAINS):
        return None
    try:
        return _JUMPS.get(_words(table, line))
    except ValueError:  # quotes that do not end: nothing of ours
        return None
