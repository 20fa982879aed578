"""Rules as the tools print them, and whether they are those that are wanted.

Rules are given in the order in which the tools print them (``ipt.restore``), so text can be compared with text. Tools of
other versions may print options in another order: where texts differ, they are compared again without regard to it. What
is not understood here differs, and is then written anew: that is slower, and right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

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


class Contents(msgspec.Struct, frozen=True):
    """What there is of a family.

    ``chains`` are those that are not built in, each with its rules as they are printed, one a line, without ``-A NAME``;
    ``jumps`` are those of ours that are there.
    """

    chains: Mapping[ChainName, str] = {}
    jumps: frozenset[Placed] = frozenset()

    def rules(self, chain: ChainName) -> tuple[str, ...]:
        """The rules of a chain, none where there is no such chain."""
        return tuple(_rules(self.chains.get(chain, "")))


def read(lines: Iterable[str]) -> Contents:
    """Reads what ``iptables-save`` prints; of each table the rules of a chain follow each other."""
    chains: dict[ChainName, str] = {}
    jumps: set[Placed] = set()
    table: Table | None = None
    current, rules = "", list[str]()
    for line in lines:
        if line.startswith("-A ") and table is not None:
            # No more than a chain where a rule has neither match nor target: it only counts.
            name, _, rule = line[3:].rstrip("\n").partition(" ")
            if name != current:
                _close(chains, table, current, rules)
                current, rules = name, []
            rules.append(rule + "\n")
            if name in BUILT_IN:
                jumps.update(filter(None, (find_jump(table, line),)))
        elif line.startswith(":") and table is not None:
            name = line[1:].split(" ", 1)[0]
            if name not in BUILT_IN:
                chains[ChainName(table, name)] = ""
        elif line.startswith("*"):
            _close(chains, table, current, rules)
            current, rules = "", []
            table = _TABLES.get(line[1:].strip())
    _close(chains, table, current, rules)
    return Contents(chains, frozenset(jumps))


def _rules(text: str) -> list[str]:
    """The rules of a chain. Not by ``splitlines``: a comment may hold more than one kind of what that takes for an end."""
    return text.split("\n")[:-1]


def _close(chains: dict[ChainName, str], table: Table | None, name: str, rules: list[str]) -> None:
    """A chain is complete."""
    if table is not None and rules and name not in BUILT_IN:
        chains[ChainName(table, name)] = "".join(rules)


def printed(rule: Rule, family: Family) -> str:
    """A rule as the tools print it, without ``-A NAME`` (tried by tests/kernel/test_ipt_rules.py)."""
    text = rule_text(rule)
    if rule.one_of:
        return text.lstrip().replace(probability(rule.one_of), _printed_probability(rule.one_of))
    if rule.recent:
        name = f"--name {rule.recent.list}"
        text = text.replace(name, name + _RECENT[family])
    if rule.target == REJECT:
        text += _REJECT[family]
    if rule.target == MARK or rule.marked or rule.unmarked:
        text = _OR_MARK.sub(r"--set-xmark 0x\1/0x\1", text)
        text = _XOR_MARK.sub(r"--set-xmark 0x\1/0x0", text)
        text = _MARK.sub(r"--mark 0x\1/0x\1", text)
    return text.lstrip()


@cache
def _printed_probability(one_of: int) -> str:
    return f"{round(float(probability(one_of)) * _PARTS) / _PARTS:.11f}"


def is_chain(found: str, wanted: Chain, family: Family) -> bool:
    """Whether the rules of a chain, as they are printed, are those that are wanted."""
    text = [printed(rule, family) for rule in wanted.rules]
    rules = _rules(found)
    return rules == text or (len(rules) == len(text) and list(map(unordered, rules)) == list(map(unordered, text)))


def unordered(text: str) -> int:
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
