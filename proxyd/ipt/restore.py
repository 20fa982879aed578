"""A transaction as the text that iptables-restore reads, with --noflush. Made of validated addresses, numbers and names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache

from proxyd.ipt import objects as o
from proxyd.ipt.objects import NEW, Rule, Table, Transaction

# After nat, so that what refuses is never there without what forwards.
_LATER = (Table.MANGLE, Table.FILTER)


def restore_input(transactions: Iterable[Transaction]) -> Iterator[str]:
    """Gives the input for one call of iptables-restore, in pieces; each table is carried out whole or not at all.

    All transactions become one. They may be made while the first of them are being read: only what belongs to tables
    other than nat is kept until the end.
    """
    later: dict[Table, list[str]] = {table: [] for table in _LATER}
    begun = False
    for transaction in transactions:
        for table, kept in later.items():
            kept.extend(_lines(transaction, table))
        if lines := "\n".join(_lines(transaction, Table.NAT)):
            yield lines + "\n" if begun else f"*{Table.NAT}\n{lines}\n"
            begun = True
    if begun:
        yield "COMMIT\n"
    for table, kept in later.items():
        if kept:
            yield "\n".join((f"*{table}", *kept, "COMMIT\n"))


def _lines(t: Transaction, table: Table) -> Iterator[str]:
    chains = [chain for chain in t.chains if chain.table is table]
    gone = [chain.name for chain in t.delete_chains if chain.table is table]
    # Naming a chain makes or empties it. Those that go have to be empty first, and may refer to each other.
    for chain in chains:
        yield f":{chain.name} - [0:0]"
    for name in gone:
        yield f":{name} - [0:0]"
    for chain in chains:
        for rule in chain.rules:
            yield f"-A {chain.name}{rule_text(rule)}"
    for each in t.delete:
        if each.table is table:
            yield f"-D {each.chain}{rule_text(each.rule)}"
    for each in t.insert:
        if each.table is table:
            yield f"-I {each.chain}{rule_text(each.rule)}"
    for name in gone:
        yield f"-X {name}"


def rule_text(rule: Rule) -> str:
    """A rule as arguments, with a blank before each; comments in quotes, as iptables-save writes them.

    Matches are in kube-proxy's order: tools print them in the order in which they were given.
    """
    parts = []
    if rule.states == NEW:
        parts.append(f" -m conntrack --ctstate {NEW}")
    if rule.comment:
        parts.append(f' -m comment --comment "{rule.comment}"')
    if rule.destination_local:
        parts.append(" -m addrtype --dst-type LOCAL")
    if rule.recent:
        use = f"--rcheck --seconds {rule.recent.seconds} --reap" if rule.recent.seconds else "--set"
        parts.append(f" -m recent --name {rule.recent.list} {use}")
    if rule.protocol:
        parts.append(f" -m {rule.protocol} -p {rule.protocol}")
    if rule.source:
        parts.append(_signed("-s", rule.source))
    if rule.destination:
        parts.append(_signed("-d", rule.destination))
    if rule.port:
        parts.append(f" --dport {rule.port}")
    parts.extend(_rare(rule))
    if rule.target:
        parts.append(f" -j {rule.target}{_target(rule)}")
    return "".join(parts)


def _rare(rule: Rule) -> Iterator[str]:
    if rule.interface:
        yield _signed("-i", rule.interface)
    if rule.source_local:
        yield " -m addrtype --src-type LOCAL"
    if rule.states and rule.states != NEW:
        yield " -m conntrack" + _signed("--ctstate", rule.states)
    if rule.marked or rule.unmarked:
        bit = f"{rule.marked or rule.unmarked:#010x}"
        yield f" -m mark{' !' if rule.unmarked else ''} --mark {bit}/{bit}"
    if rule.one_of:
        yield f" -m statistic --mode random --probability {probability(rule.one_of)}"
    if rule.counter:
        yield f" -m nfacct --nfacct-name {rule.counter}"


def _target(rule: Rule) -> str:
    if rule.target == o.DNAT:
        return f" --to-destination {rule.to}"
    if rule.target == o.MARK:
        return f" --or-mark {rule.set_mark:#010x}" if rule.set_mark else f" --xor-mark {rule.flip_mark:#010x}"
    if rule.target == o.MASQUERADE and rule.random_ports:
        return " --random-fully"
    return ""


def _signed(option: str, value: str) -> str:
    return f" ! {option} {value[1:]}" if value.startswith("!") else f" {option} {value}"


@cache
def probability(one_of: int) -> str:
    """1/n with ten decimals, as kube-proxy writes it. ``one_of`` is bounded by the endpoints of a Service."""
    return f"{1 / one_of:.10f}"
