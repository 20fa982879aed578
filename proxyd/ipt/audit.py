"""Whether a saved rule set has what proxyd has written: counted, not read, since it may be very long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from proxyd.ipt.fixed import JUMPS, SHARED_JUMPS
from proxyd.ipt.jumps import find_jump
from proxyd.ipt.names import CANARY, FIREWALL, PREFIXES
from proxyd.ipt.objects import Placed, Table

_BUILT_IN_LINES = ("-A PREROUTING ", "-A INPUT ", "-A FORWARD ", "-A OUTPUT ", "-A POSTROUTING ")
_OF_SERVICES = tuple(f"-A {prefix}" for prefix in PREFIXES)


def audit(saved: Mapping[Table, Iterable[str]], expected: Mapping[tuple[Table, str], int]) -> frozenset[str] | None:
    """Gives the chains in which rules are missing or too many, each with its table (``nat KUBE-SERVICES``).

    ``saved`` are the lines of tables. ``expected`` counts rules by chain, and with "" those of all chains of Services of a
    table: None where these differ, since then any of them may.
    """
    counted: Counter[tuple[Table, str]] = Counter()
    jumps: set[Placed] = set()
    chains: set[tuple[Table, str]] = set()
    for table, lines in saved.items():
        for line in lines:
            if line.startswith(_OF_SERVICES):
                counted[table, ""] += 1
            elif line.startswith(_BUILT_IN_LINES):
                jumps.update(filter(None, (find_jump(table, line),)))
            elif line.startswith("-A "):
                counted[table, line.split(None, 2)[1]] += 1
            elif line.startswith(":"):
                chains.add((table, line[1:].split(" ", 1)[0]))
    if any(counted[place] != number for place, number in expected.items() if not place[1]):
        return None
    wrong = {place for place, number in expected.items() if place[1] and _differs(place, counted[place], number)}
    wrong |= {(table, CANARY) for table in saved if (table, CANARY) not in chains}
    missing = {(each.table, each.chain) for each in (*JUMPS, *SHARED_JUMPS) if each not in jumps}
    return frozenset(f"{table} {chain}" for table, chain in wrong | missing)


def _differs(place: tuple[Table, str], found: int, expected: int) -> bool:
    # The kubelet may have rules of its own in this one.
    return found < expected if place == (Table.FILTER, FIREWALL) else found != expected
