"""An in-memory iptables of one family that carries transactions out, and refuses what iptables-restore refuses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping

from proxyd.ipt import objects as o
from proxyd.ipt.objects import Chain, Placed, Rule, Table, Transaction
from proxyd.kernel.refused import KernelRefusedError

BUILT_IN: Mapping[Table, tuple[str, ...]] = {
    Table.NAT: ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
    Table.FILTER: ("INPUT", "FORWARD", "OUTPUT"),
    Table.MANGLE: ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
}
_TARGETS = {
    o.ACCEPT: set(Table),
    o.DROP: set(Table),
    o.RETURN: set(Table),
    o.MARK: set(Table),
    o.REJECT: {Table.FILTER},
    o.DNAT: {Table.NAT},
    o.MASQUERADE: {Table.NAT},
}
NAME_LENGTH, COMMENT_LENGTH, INTERFACE_LENGTH = 28, 255, 15
_COMMENT = re.compile(r'[^"\\\n]*')

Chains = dict[str, list[Rule]]


class FakeRules:
    """Tables with their chains and rules.

    ``counters`` are the nfacct objects that there are; ``lacking`` tells rules that this kernel has no module for.
    """

    def __init__(self, counters: frozenset[str] = frozenset()) -> None:
        self.counters = counters
        self.lacking: Callable[[Table, Rule], bool] = lambda *_: False
        self.tables: dict[Table, Chains] = {table: {name: [] for name in names} for table, names in BUILT_IN.items()}

    def commit(self, transaction: Transaction) -> None:
        """Carries it out, table by table in the order of ``ipt.restore``; each table whole or not at all."""
        for table in (Table.MANGLE, Table.NAT, Table.FILTER):
            self.tables[table] = self._after(table, transaction)

    def rules(self, table: Table, chain: str) -> list[Rule]:
        """The rules of a chain; none where there is no such chain."""
        return self.tables[table].get(chain, [])

    def _after(self, table: Table, t: Transaction) -> Chains:
        chains = {name: list(rules) for name, rules in self.tables[table].items()}
        gone = [each.name for each in t.delete_chains if each.table is table]
        written = [chain for chain in t.chains if chain.table is table]
        for name in [chain.name for chain in written] + gone:
            if name in BUILT_IN[table] or len(name) > NAME_LENGTH:
                raise KernelRefusedError(f"chain name {name!r} cannot be")
            chains[name] = []
        for chain in written:
            for rule in chain.rules:
                self._check(table, rule, chains)
                chains[chain.name].append(rule)
        for each in t.delete:
            if each.table is table:
                _delete(chains, each)
        for each in t.insert:
            if each.table is table:
                self._check(table, each.rule, chains)
                _chain(chains, each.chain).insert(0, each.rule)
        for name in gone:
            if chains[name] or any(rule.target == name for rules in chains.values() for rule in rules):
                raise KernelRefusedError(f"Device or resource busy: {name}")
            del chains[name]
        return chains

    def _check(self, table: Table, rule: Rule, chains: Chains) -> None:
        if self.lacking(table, rule):
            raise KernelRefusedError(f"Couldn't load match: {rule.destination}")
        if rule.target in _TARGETS:
            if table not in _TARGETS[rule.target]:
                raise KernelRefusedError(f"target {rule.target} is not for table {table}")
        elif rule.target and (rule.target not in chains or rule.target in BUILT_IN[table]):
            raise KernelRefusedError(f"Couldn't load target `{rule.target}'")
        if not _COMMENT.fullmatch(rule.comment) or len(rule.comment) > COMMENT_LENGTH:
            raise KernelRefusedError(f"comment {rule.comment!r} cannot be")
        if len(rule.interface.removeprefix("!")) > INTERFACE_LENGTH:
            raise KernelRefusedError(f"interface name {rule.interface!r} must be shorter than IFNAMSIZ")
        if rule.port and rule.protocol not in ("tcp", "udp", "sctp"):
            raise KernelRefusedError("a port needs a protocol")
        if rule.counter and rule.counter not in self.counters:
            raise KernelRefusedError(f"xt_nfacct: accounting object `{rule.counter}' does not exist")
        for text in (rule.source, rule.destination):
            if text:
                ipaddress.ip_network(text.removeprefix("!"))
        if (rule.target == o.DNAT) != bool(rule.to):
            raise KernelRefusedError("DNAT and its destination go together")


def _chain(chains: Chains, name: str) -> list[Rule]:
    if name not in chains:
        raise KernelRefusedError(f"No chain/target/match by that name: {name}")
    return chains[name]


def _delete(chains: Chains, placed: Placed) -> None:
    rules = _chain(chains, placed.chain)
    if placed.rule not in rules:
        raise KernelRefusedError(f"Bad rule (does a matching rule exist in that chain?): {placed.chain}")
    rules.remove(placed.rule)


def snapshot(kernel: FakeRules) -> Iterator[Chain]:
    """Every chain with its rules."""
    for table, chains in kernel.tables.items():
        for name, rules in chains.items():
            yield Chain(table, name, tuple(rules))
