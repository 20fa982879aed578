"""One backend of iptables in memory: keeps tables as the tools print them and refuses what they refuse.

Tried on the real tools, by tests/kernel/test_iptables_contract.py on both backends. It does not read matches: a rule is
text, which has to be given exactly as it is printed.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from proxyd.kernel.ipt.iptables import IptablesRefusedError

BUILT_IN = {
    "nat": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
}
_TARGET = re.compile(r"(?:^| )-[jg] (\S+)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_COUNTER = re.compile(r" -m nfacct --nfacct-name (\S+)")
_EXTENSIONS = {"ACCEPT", "DROP", "RETURN", "REJECT", "LOG", "MARK", "DNAT", "MASQUERADE"}

Table = dict[str, list[str]]


class FakeIptables:
    """Implements ``Iptables`` in memory. ``restored`` are the inputs that were carried out.

    ``counters`` are the names of the nfacct objects that there are; None is a kernel without the match.
    """

    def __init__(self, counters: Container[str] | None = None) -> None:
        self._counters = counters
        self._tables: dict[str, Table] = {}
        self.restored: list[str] = []

    def tables(self) -> tuple[str, ...]:
        """See ``Iptables``."""
        return tuple(self._tables)

    def save(self, table: str) -> Iterator[str]:
        """See ``Iptables``."""
        chains = self._tables.setdefault(table, _empty(table))
        yield f"*{table}\n"
        for name in chains:
            yield f":{name} {'ACCEPT' if name in BUILT_IN[table] else '-'} [0:0]\n"
        for name, rules in chains.items():
            for rule in rules:
                yield f"-A {name} {rule}\n" if rule else f"-A {name}\n"
        yield "COMMIT\n"

    def restore(self, text: str) -> None:
        """See ``Iptables``."""
        name, table = "", Table()
        for line in text.removesuffix("\n").split("\n"):
            if line.startswith("*"):
                name = line[1:]
                table = {chain: list(rules) for chain, rules in self._tables.get(name, _empty(name)).items()}
            elif line == "COMMIT":
                self._tables[name] = table
            else:
                self._check(line)
                _carry_out(table, line)
        self.restored.append(text)

    def _check(self, line: str) -> None:
        if (named := _COUNTER.search(line)) and (self._counters is None or named[1] not in self._counters):
            raise IptablesRefusedError(f"no match or counter of this name: {line}")


def _empty(table: str) -> Table:
    return {chain: [] for chain in BUILT_IN[table]}


def _carry_out(table: Table, line: str) -> None:
    verb, _, rest = line.partition(" ")
    chain, _, rule = rest.partition(" ")
    if verb.startswith(":"):
        table[verb[1:]] = []
        return
    if chain not in table:
        raise IptablesRefusedError(f"no chain {chain}: {line}")
    if verb == "-A":
        if (target := _target(rule)) and target not in table:
            raise IptablesRefusedError(f"no chain {target}: {line}")
        table[chain].append(rule)
    elif verb == "-D":
        if rule not in table[chain]:
            raise IptablesRefusedError(f"no such rule: {line}")
        table[chain].remove(rule)
    elif verb == "-X":
        if table[chain] or any(_target(each) == chain for rules in table.values() for each in rules):
            raise IptablesRefusedError(f"not empty, or used: {line}")
        del table[chain]
    else:
        raise IptablesRefusedError(f"not known here: {line}")


def _target(rule: str) -> str:
    """The chain that a rule leads to; empty where it leads to none."""
    found = _TARGET.search(_QUOTED.sub("", rule))
    return found[1] if found and found[1] not in _EXTENSIONS else ""
