"""Rules as the tools print them and as they are given, made comparable: the same rule is the same number.

Tools print options in another order than they were given, and some values in another way. What is not understood here
differs, and is then written anew: that is slower, and right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from proxyd.ipt.fixed import DISPATCH
from proxyd.ipt.jumps import find_jump
from proxyd.ipt.objects import MARK, REJECT, Chain, ChainName, Placed, Rule, Table
from proxyd.ipt.ownership import BUILT_IN
from proxyd.ipt.restore import probability, rule_text
from proxyd.model import Family

# What is printed of a list of clients, and of a refusal, beside what is given.
_RECENT = {
    Family.IPV4: " --mask 255.255.255.255 --rsource",
    Family.IPV6: " --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource",
}
_REJECT = {
    Family.IPV4: " --reject-with icmp-port-unreachable",
    Family.IPV6: " --reject-with icmp6-port-unreachable",
}
_WORD = re.compile(r'"[^"]*"|\S+')
# The kernel keeps a probability as a whole number of these parts.
_PARTS = 0x80000000
_OR_MARK, _XOR_MARK = re.compile(r"--or-mark 0x0*(\w+)"), re.compile(r"--xor-mark 0x0*(\w+)")
_MARK = re.compile(r"--mark 0x0*(\w+)/0x0*\w+")
_TABLES = {str(table): table for table in Table}
_DISPATCH = {ChainName(*each) for each in DISPATCH}


class Contents(msgspec.Struct, frozen=True):
    """What there is of a family.

    ``chains`` are those that are not built in, each with the number of all its rules; ``dispatch`` has the numbers of the
    single rules of chains that Services share; ``jumps`` are those of ours that are there.
    """

    chains: Mapping[ChainName, int] = {}
    dispatch: Mapping[ChainName, tuple[int, ...]] = {}
    jumps: frozenset[Placed] = frozenset()


def read(lines: Iterable[str]) -> Contents:
    """Reads what ``iptables-save`` prints; of each table the rules of a chain follow each other."""
    chains: dict[ChainName, int] = {}
    dispatch: dict[ChainName, tuple[int, ...]] = {}
    jumps: set[Placed] = set()
    table: Table | None = None
    rules: dict[ChainName, list[int]] = {}
    for line in lines:
        if line.startswith("*"):
            table = _TABLES.get(line[1:].strip())
        elif table is None:
            continue
        elif line.startswith(":"):
            name = line[1:].split(" ", 1)[0]
            if name not in BUILT_IN:
                chains[ChainName(table, name)] = _EMPTY
        elif line.startswith("-A "):
            _, name, rule = line.rstrip("\n").split(" ", 2)
            if name in BUILT_IN:
                jumps.update(filter(None, (find_jump(table, line),)))
                continue
            chain = ChainName(table, name)
            if chain not in rules:
                _close(rules, chains, dispatch)
            rules.setdefault(chain, []).append(_fingerprint(rule))
    _close(rules, chains, dispatch)
    return Contents(chains, dispatch, frozenset(jumps))


def _close(
    rules: dict[ChainName, list[int]], chains: dict[ChainName, int], dispatch: dict[ChainName, tuple[int, ...]]
) -> None:
    """A chain is complete: its rules become one number, so that only one chain's are kept at a time."""
    for chain, found in rules.items():
        chains[chain] = hash(tuple(found))
        if chain in _DISPATCH:
            dispatch[chain] = tuple(found)
    rules.clear()


def rule_print(rule: Rule, family: Family) -> int:
    """The number of a rule as it will be printed."""
    return _fingerprint(printed(rule, family))


def printed(rule: Rule, family: Family) -> str:
    """A rule as the tools print it, but for the order of its options (tried by tests/kernel/test_ipt_rules.py)."""
    text = rule_text(rule)
    if rule.one_of:
        given = probability(rule.one_of)
        text = text.replace(given, f"{round(float(given) * _PARTS) / _PARTS:.11f}")
    if rule.recent:
        text += _RECENT[family]
    if rule.target == REJECT:
        text += _REJECT[family]
    if rule.target == MARK or rule.marked or rule.unmarked:
        text = _OR_MARK.sub(r"--set-xmark 0x\1/0x\1", text)
        text = _XOR_MARK.sub(r"--set-xmark 0x\1/0x0", text)
        text = _MARK.sub(r"--mark 0x\1/0x\1", text)
    return text


def chain_print(chain: Chain, family: Family) -> int:
    """The number of a chain whose rules are as given."""
    return hash(tuple(rule_print(rule, family) for rule in chain.rules))


def _fingerprint(text: str) -> int:
    """A number for the words of a rule, whatever the order of its options."""
    groups: list[str] = []
    negated = ""
    for word in _WORD.findall(text):
        if word == "!":
            negated = word
        elif word[0] == "-":
            groups.append(negated + word)
            negated = ""
        elif groups:
            groups[-1] += " " + word.strip('"')
    groups.sort()
    return hash(tuple(groups))


_EMPTY = hash(())
