"""A transaction as the text that iptables-restore reads, with --noflush. Made of validated addresses, numbers and names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache

from proxyd.ipt import objects as o
from proxyd.ipt.objects import EVERYBODY, NEW, Rule, Table, Transaction

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
        for table, lines in _by_table(transaction).items():
            if table is not Table.NAT:
                later[table].extend(lines)
                continue
            text = "\n".join(lines)
            yield f"{text}\n" if begun else f"*{Table.NAT}\n{text}\n"
            begun = True
    if begun:
        yield "COMMIT\n"
    for table, kept in later.items():
        if kept:
            yield "\n".join((f"*{table}", *kept, "COMMIT\n"))


def _by_table(t: Transaction) -> dict[Table, list[str]]:
    """The lines of each table that it is about."""
    declared, rules = defaultdict[Table, list[str]](list), defaultdict[Table, list[str]](list)
    # Naming a chain makes or empties it. Those that go have to be empty first, and may refer to each other.
    for chain in t.chains:
        declared[chain.table].append(f":{chain.name} - [0:0]")
        if chain.rules:
            append = f"-A {chain.name}"
            rules[chain.table] += [append + rule_text(rule) for rule in chain.rules]
    for name in t.delete_chains:
        declared[name.table].append(f":{name.name} - [0:0]")
    for each in t.delete:
        rules[each.table].append(f"-D {each.chain}{rule_text(each.rule)}")
    for each in t.insert:
        rules[each.table].append(f"-I {each.chain}{rule_text(each.rule)}")
    for name in t.delete_chains:
        rules[name.table].append(f"-X {name.name}")
    return {table: declared[table] + rules[table] for table in {**declared, **rules}}


def rule_text(rule: Rule) -> str:
    """A rule as arguments, with a blank before each; as iptables-save prints it.

    Matches are in kube-proxy's order, which the tools keep; addresses, interface and protocol are printed before them.
    """
    text = _signed("-s", rule.source) if rule.source and rule.source not in EVERYBODY else ""
    if rule.destination:
        text += _signed("-d", rule.destination)
    if rule.interface:
        text += _signed("-i", rule.interface)
    if rule.protocol:
        text += f" -p {rule.protocol}"
    if rule.states == NEW:
        text += f" -m conntrack --ctstate {NEW}"
    if rule.comment:
        text += f' -m comment --comment "{rule.comment}"'
    if rule.destination_local:
        text += " -m addrtype --dst-type LOCAL"
    if rule.recent:
        use = f"--rcheck --seconds {rule.recent.seconds} --reap" if rule.recent.seconds else "--set"
        text += f" -m recent {use} --name {rule.recent.list}"
    if rule.protocol:
        text += f" -m {rule.protocol}"
    if rule.port:
        text += f" --dport {rule.port}"
    if rule.one_of:
        text += f" -m statistic --mode random --probability {probability(rule.one_of)}"
    elif rule.source_local or rule.states or rule.marked or rule.unmarked or rule.counter:
        text += "".join(_rare(rule))
    return f"{text} -j {rule.target}{_target(rule)}" if rule.target else text


def _rare(rule: Rule) -> Iterator[str]:
    if rule.source_local:
        yield " -m addrtype --src-type LOCAL"
    if rule.states and rule.states != NEW:
        yield " -m conntrack" + _signed("--ctstate", rule.states)
    if rule.marked or rule.unmarked:
        bit = f"{rule.marked or rule.unmarked:#010x}"
        yield f" -m mark{' !' if rule.unmarked else ''} --mark {bit}/{bit}"
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
