"""What the kernel checks about rules: references, types, and where statements may stand."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft import objects as o
from tests.fakes.values import NUMBERS, check_address, check_number, check_range

# Jumps and gotos that may lie within each other, as the kernel counts them (NFT_JUMP_STACK_SIZE).
DEPTH = 16
INTERFACE_LENGTH = 15
TERMINAL = (o.Jump, o.Goto, o.Drop, o.Reject, o.Dnat, o.DnatMap, o.Masquerade)

_HOOKS = {
    "filter": {"prerouting", "input", "forward", "output", "postrouting"},
    "nat": {"prerouting", "input", "output", "postrouting"},
}
_FIELD_TYPES = {
    o.Field.SADDR: o.KeyType.ADDRESS,
    o.Field.DADDR: o.KeyType.ADDRESS,
    o.Field.L4PROTO: o.KeyType.PROTOCOL,
    o.Field.SPORT: o.KeyType.PORT,
    o.Field.DPORT: o.KeyType.PORT,
    o.Field.ORIGINAL_DADDR: o.KeyType.ADDRESS,
    o.Field.ORIGINAL_DPORT: o.KeyType.PORT,
}
_WORDS = {
    o.Field.CT_STATE: {"new", "established", "related", "invalid"},
    o.Field.CT_STATUS: {"dnat", "snat"},
    o.Field.SADDR_TYPE: {"local", "unicast"},
    o.Field.DADDR_TYPE: {"local", "unicast"},
    o.Field.L4PROTO: {"tcp", "udp", "sctp"},
}
_ALLOWED: dict[type[o.Statement], tuple[set[str], set[str]]] = {
    o.Dnat: ({"nat"}, {"prerouting", "output"}),
    o.DnatMap: ({"nat"}, {"prerouting", "output"}),
    o.Masquerade: ({"nat"}, {"postrouting"}),
    o.Reject: ({"filter", "nat"}, {"prerouting", "input", "forward", "output"}),
}

Containers = Mapping[str, o.Container]
Chains = Mapping[str, o.Chain]


def check_hook(hook: o.Hook | None) -> None:
    """Refuses base chains where there is no such hook, and NAT before connection tracking."""
    if hook is None:
        return
    if hook.hook not in _HOOKS.get(hook.type, ()) or (hook.type == "nat" and hook.priority <= -200):
        raise KernelRefusedError(f"Operation not supported: {hook}")


def check_rule(rule: o.Rule, family: Family, containers: Containers, chains: Chains, counters: Collection[str]) -> None:
    """Refuses a rule that refers to what does not exist or is of another kind, and values that cannot be."""
    if not rule:
        raise KernelRefusedError("syntax error: empty rule")
    if any(isinstance(statement, TERMINAL) for statement in rule[:-1]):
        raise KernelRefusedError("Statement after terminal statement has no effect")
    for statement in rule:
        if isinstance(statement, o.Count) and statement.counter not in counters:
            raise KernelRefusedError(f"No such file or directory: counter {statement.counter}")
        _check_statement(statement, family, containers, chains)


def _check_statement(s: o.Statement, family: Family, containers: Containers, chains: Chains) -> None:
    match s:
        case o.InSet():
            _check_key(s.key, _container(s.set, containers))
        case o.VerdictMap():
            _check_key(s.key, _container(s.map, containers), value=())
        case o.DnatMap():
            _check_key(s.key, _container(s.map, containers), value=(o.KeyType.ADDRESS, o.KeyType.PORT))
        case o.UpdateSet():
            container = _container(s.set, containers)
            _check_key(s.key, container)
            if not container.timeout:
                raise KernelRefusedError(f"Operation not supported: {s.set} is not dynamic")
        case o.Jump() | o.Goto():
            if s.chain not in chains:
                raise KernelRefusedError(f"No such file or directory: {s.chain}")
            if chains[s.chain].hook is not None:
                raise KernelRefusedError(f"Operation not supported: {s.chain} is a base chain")
        case _:
            _check_values(s, family)


def _check_values(s: o.Statement, family: Family) -> None:
    match s:
        case o.Match():
            _check_match(s, family)
        case o.Chance(modulus=0):
            raise KernelRefusedError("Numerical result out of range: modulus 0")
        case o.Dnat():
            check_address(s.address, family)
            check_number(str(s.port), 65535)
        case o.Marked() | o.SetMark() | o.FlipMark():
            check_number(str(s.bit), NUMBERS - 1)
        case _:
            pass


def _container(name: str, containers: Containers) -> o.Container:
    if name not in containers:
        raise KernelRefusedError(f"No such file or directory: {name}")
    return containers[name]


def _check_key(key: o.Key, container: o.Container, value: tuple[o.KeyType, ...] | None = None) -> None:
    """The kernel lets maps be used as sets, but not the other way round."""
    if value is not None and container.value != value:
        raise KernelRefusedError(f"datatype mismatch: values of {container.name}")
    kinds = tuple(o.KeyType.NUMBER if isinstance(part, o.Random) else _FIELD_TYPES.get(part) for part in key)
    if kinds != container.key:
        raise KernelRefusedError(f"datatype mismatch: key of {container.name}")
    for part in key:
        if isinstance(part, o.Random):
            if not part.modulus:
                raise KernelRefusedError("Numerical result out of range: modulus 0")
            if part.offset + part.modulus - 1 >= NUMBERS:
                raise KernelRefusedError("Value too large for defined data type")


def _check_match(s: o.Match, family: Family) -> None:
    match s.field:
        case o.Field.SADDR | o.Field.DADDR:
            check_range(s.value, family)
        case o.Field.DPORT:
            check_number(s.value, 65535)
        case o.Field.IIFNAME:
            if s.value in ("", "*") or len(s.value) > INTERFACE_LENGTH:
                raise KernelRefusedError(f"not an interface name: {s.value!r}")
        case _:
            if s.value not in _WORDS[s.field]:
                raise KernelRefusedError(f"could not parse {s.field} {s.value!r}")


def chains_of(chain: o.Chain) -> list[str]:
    """The chains that rules of a chain jump or go to, as often as they do."""
    return [s.chain for rule in chain.rules for s in rule if isinstance(s, o.Jump | o.Goto)]


def containers_of(rule: o.Rule) -> Iterator[str]:
    """The sets and maps that a rule refers to."""
    for s in rule:
        match s:
            case o.InSet() | o.UpdateSet():
                yield s.set
            case o.VerdictMap() | o.DnatMap():
                yield s.map
            case _:
                pass


def check_reachable(chains: Chains, targets: Mapping[str, list[str]]) -> None:
    """Follows base chains as the kernel does; ``targets`` are the chains that each verdict map leads to."""
    heights: dict[str, int] = {}
    for chain in chains.values():
        if chain.hook is not None:
            reached: set[str] = set()
            _walk(chain.name, chains, targets, heights, reached)
            if heights[chain.name] > DEPTH:
                raise KernelRefusedError(f"Too many links: from {chain.name}")
            for name in reached:
                _check_place(chains[name], chain.hook)


def _walk(
    name: str, chains: Chains, targets: Mapping[str, list[str]], heights: dict[str, int], reached: set[str]
) -> None:
    """Notes what is reached, and the longest way down from each chain (a loop: longer than allowed)."""
    if name in reached:
        return
    reached.add(name)
    heights.setdefault(name, DEPTH + 1)  # stays if we come back here before we are done
    below = set(chains_of(chains[name]))
    for rule in chains[name].rules:
        for s in rule:
            if isinstance(s, o.VerdictMap):
                below.update(targets[s.map])
    for each in below:
        _walk(each, chains, targets, heights, reached)
    heights[name] = 1 + max((heights[each] for each in below), default=0)


def _check_place(chain: o.Chain, hook: o.Hook) -> None:
    for rule in chain.rules:
        for s in rule:
            types, hooks = _ALLOWED.get(type(s), ({hook.type}, {hook.hook}))
            if hook.type not in types or hook.hook not in hooks:
                raise KernelRefusedError(f"Operation not supported: {type(s).__name__} in {chain.name} from {hook}")
