"""A transaction as nft's text. Everything in it comes from validated addresses, numbers and names of the layout."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from proxyd.model import Family
from proxyd.nft import objects as o
from proxyd.nft.layout import TABLE

FAMILY_WORD = {Family.IPV4: "ip", Family.IPV6: "ip6"}
# Elements on one line: long lines are slow to report on when refused, short ones slow to read.
_LINE = 200


def script(transaction: o.Transaction, *, by_expressions: bool = False) -> str:
    """Gives the text of a transaction for one call of libnftables, which carries it out whole or not at all.

    ``by_expressions`` declares keys by expressions also where types have names: see decision 0031.
    """
    return "\n".join(_lines(transaction, by_expressions)) + "\n"


def _lines(t: o.Transaction, by_expressions: bool) -> Iterator[str]:
    family = FAMILY_WORD[t.family]
    table = f"{family} {TABLE}"
    if t.table is not None:
        yield f'add table {table} {{ comment "{t.table}"; }}'
    for container in t.containers:
        declared = f"{_key_types(container, family, by_expressions)}; {_properties(container)}".rstrip()
        yield f"add {_kind(container.is_map)} {table} {container.name} {{ {declared} }}"
    for counter in t.counters:
        yield f"add counter {table} {counter}"
    for chain in t.chains:
        yield f"add chain {table} {chain.name}{_chain_block(chain)}"
    for chain in t.chains:
        yield f"flush chain {table} {chain.name}"
        for rule in chain.rules:
            yield f"add rule {table} {chain.name} {rule_text(rule, family)}"
    yield from _elements("delete", table, t.delete_elements)
    yield from _elements("add", table, t.add_elements)
    for name, is_map in t.delete_containers:
        yield f"delete {_kind(is_map)} {table} {name}"
    for name in t.delete_chains:
        yield f"delete chain {table} {name}"
    if t.delete_table:
        yield f"delete table {table}"


def _kind(is_map: bool) -> str:
    return "map" if is_map else "set"


def _chain_block(chain: o.Chain) -> str:
    comment = f'comment "{chain.comment}"; ' if chain.comment else ""
    if chain.hook is not None:
        # The policy is said, so that one that somebody has changed is put right.
        hook = f"type {chain.hook.type} hook {chain.hook.hook} priority {chain.hook.priority}; policy accept;"
        return f" {{ {hook} {comment}}}"
    return f" {{ {comment}}}" if comment else ""


def _elements(verb: str, table: str, elements: Iterable[o.Element]) -> Iterator[str]:
    for container, group in groupby(elements, key=lambda e: e.container):
        texts = [_element_text(e, verb == "add") for e in group]
        for start in range(0, len(texts), _LINE):
            yield f"{verb} element {table} {container} {{ {', '.join(texts[start : start + _LINE])} }}"


def _element_text(element: o.Element, whole: bool) -> str:
    """A deletion needs the key only."""
    if not whole:
        return element.key
    comment = f' comment "{element.comment}"' if element.comment else ""
    return f"{element.key}{comment} : {element.value}" if element.value else f"{element.key}{comment}"


_ADDRESS_TYPE = {"ip": "ipv4_addr", "ip6": "ipv6_addr"}
_TYPE = {o.KeyType.PROTOCOL: "inet_proto", o.KeyType.PORT: "inet_service"}
# Numbers have no type name of their own, so a container with one is described by expressions; any modulus will do. The
# port must then be one of a named protocol: nft 1.0.6 cannot reread a map of "th dport" when a later command refers to it.
_TYPEOF = {
    o.KeyType.ADDRESS: "{family} daddr",
    o.KeyType.PROTOCOL: "meta l4proto",
    o.KeyType.PORT: "{protocol} dport",
    o.KeyType.NUMBER: "numgen random mod 2",
}
_ANY_PROTOCOL = "th"


def _key_types(container: o.Container, family: str, by_expressions: bool) -> str:
    if by_expressions or o.KeyType.NUMBER in container.key:
        protocol = container.protocol or _ANY_PROTOCOL
        word, words = "typeof", {part: text.format(family=family, protocol=protocol) for part, text in _TYPEOF.items()}
    else:
        word, words = "type", {**_TYPE, o.KeyType.ADDRESS: _ADDRESS_TYPE[family]}
    key = " . ".join(words[part] for part in container.key)
    if not container.is_map:
        return f"{word} {key}"
    return f"{word} {key} : {' . '.join(words[part] for part in container.value or ()) or 'verdict'}"


def _properties(container: o.Container) -> str:
    parts = []
    flags = [flag for flag, on in (("interval", container.interval), ("dynamic,timeout", container.timeout)) if on]
    if flags:
        parts.append(f"flags {','.join(flags)}")
    if container.size:
        parts.append(f"size {container.size}")
    if container.counter:
        parts.append("counter")
    return " ".join(f"{part};" for part in parts)


_FIELDS = {
    o.Field.SADDR: "{family} saddr",
    o.Field.DADDR: "{family} daddr",
    o.Field.L4PROTO: "meta l4proto",
    o.Field.SPORT: "th sport",
    o.Field.DPORT: "th dport",
    o.Field.IIFNAME: "iifname",
    o.Field.CT_STATE: "ct state",
    o.Field.CT_STATUS: "ct status",
    o.Field.ORIGINAL_DADDR: "ct original {family} daddr",
    o.Field.ORIGINAL_DPORT: "ct original proto-dst",
    o.Field.SADDR_TYPE: "fib saddr type",
    o.Field.DADDR_TYPE: "fib daddr type",
}


def _key_text(key: o.Key, family: str) -> str:
    return " . ".join(_random_text(part) if isinstance(part, o.Random) else _field_text(part, family) for part in key)


def _field_text(field: o.Field, family: str) -> str:
    return _FIELDS[field].format(family=family)


def _random_text(random: o.Random) -> str:
    return f"numgen random mod {random.modulus}" + (f" offset {random.offset}" if random.offset else "")


def rule_text(rule: o.Rule, family: str) -> str:
    """A rule in nft's words; ``family`` is "ip" or "ip6"."""
    return " ".join(_statement_text(statement, family) for statement in rule)


def _statement_text(s: o.Statement, family: str) -> str:
    match s:
        case o.Match():
            value = f'"{s.value}"' if s.field is o.Field.IIFNAME else s.value
            text = f"{_field_text(s.field, family)} {'!= ' if s.negate else ''}{value}"
        case o.InSet():
            text = f"{_key_text(s.key, family)} {'!= ' if s.negate else ''}@{s.set}"
        case o.Chance():
            text = f"numgen random mod {s.modulus} 0"
        case o.VerdictMap():
            text = f"{_key_text(s.key, family)} vmap @{s.map}"
        case o.UpdateSet():
            text = f"update @{s.set} {{ {_key_text(s.key, family)} timeout {s.timeout}s }}"
        case o.Jump() | o.Goto():
            text = f"{'jump' if isinstance(s, o.Jump) else 'goto'} {s.chain}"
        case _:
            text = _action_text(s, family)
    return text


def _action_text(s: o.Statement, family: str) -> str:
    match s:
        case o.DnatMap():
            text = f"meta l4proto {s.protocol} dnat {family} to {_key_text(s.key, family)} map @{s.map}"
        case o.Dnat():
            host = f"[{s.address}]" if ":" in s.address else s.address
            text = f"meta l4proto {s.protocol} dnat to {host}:{s.port}"
        case o.Marked():
            text = f"meta mark & {s.bit:#x} != 0"
        case o.SetMark():
            text = f"meta mark set mark or {s.bit:#x}"
        case o.FlipMark():
            text = f"meta mark set mark xor {s.bit:#x}"
        case o.Count():
            text = f'counter name "{s.counter}"'
        case o.Drop():
            text = "drop"
        case o.Reject():
            text = "reject with tcp reset" if s.reset else "reject"
        case _:
            text = "masquerade fully-random"
    return text
