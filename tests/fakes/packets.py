"""What happens to a new connection: walks the rules of a FakeRuleset as the kernel would, through every random branch.

The answer is exact: all outcomes with their probabilities as fractions, so that a test can say "each of n endpoints
with probability 1/n".
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from proxyd.model import Family
from proxyd.nft import objects as o
from tests.fakes.ruleset import FakeContainer, FakeRuleset, FakeTable
from tests.fakes.values import Plain, Verdict, address_number, check_range

Pin = tuple[str, int]


class Packet(NamedTuple):
    """The first packet of a connection. ``iif`` is the interface it came in by, "" where the node itself sends it."""

    source: str
    destination: str
    port: int
    protocol: str = "tcp"
    iif: str = "eth0"


class Host(NamedTuple):
    """What the kernel knows beside rules: the node's addresses, and the pins in the affinity set."""

    addresses: frozenset[str] = frozenset()
    pins: frozenset[Pin] = frozenset()
    affinity_full: bool = False

    def is_local(self, address: str) -> bool:
        """Whether the address is one of the node's, loopback included."""
        return address in self.addresses or ipaddress.ip_address(address).is_loopback


class Outcome(NamedTuple):
    """Where a connection ends. ``pins`` are the (source, number) that were put into the affinity set on the way.

    ``destination`` is what the packet carries then; a masqueraded one has the node's address as its source.
    """

    verdict: str
    destination: tuple[str, int]
    masqueraded: bool = False
    mark: int = 0
    pins: tuple[Pin, ...] = ()


class _State(NamedTuple):
    """A packet on its way: ``lookups`` so far, in sets and maps, and how many of them before it entered this base chain."""

    destination: str
    port: int
    iif: str
    mark: int = 0
    dnat: bool = False
    masqueraded: bool = False
    pins: tuple[Pin, ...] = ()
    lookups: int = 0
    entered: int = 0

    def looked_up(self) -> _State:
        return self._replace(lookups=self.lookups + 1)


_Branches = Iterator[tuple[Fraction, _State, str]]
# How a statement, a rule or a chain ends, beside a final verdict: the next statement is due, the rule does not match,
# or the calling chain goes on.
_NEXT, _BREAK, _RETURN = "next", "break", "return"
_ONE = Fraction(1)
# More than any packet makes.
_MOST_LOOKUPS = 14


def distribution(ruleset: FakeRuleset, packet: Packet, host: Host) -> list[tuple[Fraction, Outcome]]:
    """All outcomes with their probabilities, which sum up to one; sorted."""
    family = Family.IPV6 if ":" in packet.destination else Family.IPV4
    table = ruleset.tables.get(family) or FakeTable("")
    counted: Counter[Outcome] = Counter()
    for probability, outcome in _Walk(table, packet, host, family).outcomes():
        counted[outcome] += probability  # type: ignore[assignment]
    return sorted(((Fraction(p), outcome) for outcome, p in counted.items()), key=lambda each: each[1])


def overtaken(old: FakeTable, new: FakeTable, packet: Packet, host: Host) -> set[Outcome]:
    """What can become of a packet that a commit overtakes, whenever it does: after none of its lookups, one, two, ...

    The rules of all chains are those that held when it entered the base chain; elements are those of the moment.
    """
    family = Family.IPV6 if ":" in packet.destination else Family.IPV4
    found: set[Outcome] = set()
    for lookups in range(_MOST_LOOKUPS if new is not old else 1):
        found |= {outcome for _, outcome in _Overtaken(old, new, lookups, packet, host, family).outcomes()}
    return found


class _Walk:
    """One packet's way through the hooks."""

    def __init__(self, table: FakeTable, packet: Packet, host: Host, family: Family) -> None:
        self._table, self._packet, self._host, self._family = table, packet, host, family

    def outcomes(self) -> Iterator[tuple[Fraction, Outcome]]:
        """The ends of all ways that there are; an outcome may come more than once."""
        start = _State(self._packet.destination, self._packet.port, self._packet.iif)
        for probability, end, verdict in self._connection(start):
            yield probability, Outcome(verdict, (end.destination, end.port), end.masqueraded, end.mark, end.pins)

    def _rules(self, _state: _State, name: str) -> o.Chain:
        """A chain with the rules that this packet sees."""
        return self._table.chains[name]

    def _container(self, _state: _State, name: str) -> FakeContainer:
        """A set or map with the elements that this packet sees."""
        return self._table.containers[name]

    def _connection(self, start: _State) -> _Branches:
        if self._packet.iif:
            yield from self._through(start, ("prerouting",), self._routed)
        else:
            yield from self._through(start, ("output",), self._sent)

    def _routed(self, state: _State) -> _Branches:
        """A packet that came in: to this node or through it, as its destination is now."""
        if self._host.is_local(state.destination):
            yield from self._through(state, ("input",), None)
        else:
            yield from self._through(state, ("forward", "postrouting"), None)

    def _sent(self, state: _State) -> _Branches:
        """A packet from this node; one to itself passes loopback, where address translation is settled already."""
        if not self._host.is_local(state.destination):
            yield from self._through(state, ("postrouting",), None)
            return
        for probability, after, verdict in self._through(state, ("postrouting",), None):
            if verdict != "accept":
                yield probability, after, verdict
                continue
            looped = after._replace(iif="lo")
            for p, end, v in self._through(looped, ("prerouting", "input"), None, nat=False):
                yield probability * p, end, v

    def _through(self, state: _State, hooks: Sequence[str], then: object, *, nat: bool = True) -> _Branches:
        chains = [
            chain
            for hook in hooks
            for chain in self._table.base_chains(hook)
            if nat or (chain.hook is not None and chain.hook.type != "nat")
        ]
        for probability, after, verdict in self._bases(chains, state):
            if verdict != "accept" or then is None:
                yield probability, after, verdict
            else:
                for p, end, v in then(after):  # type: ignore[operator]
                    yield probability * p, end, v

    def _bases(self, chains: Sequence[o.Chain], state: _State) -> _Branches:
        if not chains:
            yield _ONE, state, "accept"
            return
        state = state._replace(entered=state.lookups)
        for probability, after, verdict in self._chain(self._rules(state, chains[0].name), state):
            if verdict in ("drop", "reject"):
                yield probability, after, verdict
            else:
                for p, end, v in self._bases(chains[1:], after):
                    yield probability * p, end, v

    def _chain(self, chain: o.Chain, start: _State) -> _Branches:
        """Ends in a final verdict or in ``_RETURN``. Without recursion over rules: affinity chains are long."""
        pending = [(_ONE, start)]
        for rule in chain.rules:
            going_on = []
            for reached, state in pending:
                for probability, after, verdict in self._rule(rule, state):
                    if verdict in (_NEXT, _BREAK):
                        going_on.append((reached * probability, after))
                    else:
                        yield reached * probability, after, verdict
            pending = going_on
        for probability, state in pending:
            yield probability, state, _RETURN

    def _rule(self, rule: Sequence[o.Statement], state: _State) -> _Branches:
        if not rule:
            yield _ONE, state, _NEXT
            return
        for probability, after, verdict in self._statement(rule[0], state):
            if verdict == _NEXT:
                for p, end, v in self._rule(rule[1:], after):
                    yield probability * p, end, v
            else:
                yield probability, after, verdict

    def _statement(self, s: o.Statement, state: _State) -> _Branches:
        match s:
            case o.Match():
                yield self._test(self._matches(s, state) != s.negate, state)
            case o.Marked():
                yield self._test(bool(state.mark & s.bit), state)
            case o.Chance():
                yield Fraction(1, s.modulus), state, _NEXT
                if s.modulus > 1:
                    yield 1 - Fraction(1, s.modulus), state, _BREAK
            case o.InSet():
                for probability, key in self._keys(s.key, state):
                    found = self._contains(self._container(state, s.set), key)
                    p, after, verdict = self._test(found != s.negate, state.looked_up())
                    yield probability * p, after, verdict
            case o.VerdictMap() | o.DnatMap():
                yield from self._mapped(s, state)
            case o.UpdateSet():
                for probability, key in self._keys(s.key, state):
                    pins = o.KeyType.NUMBER in self._container(state, s.set).declared.key
                    yield probability, *(self._pin(key, state) if pins else (state, _NEXT))
            case o.Jump():
                yield from self._follow(Verdict("jump", s.chain), state)
            case o.Goto():
                yield from self._follow(Verdict("goto", s.chain), state)
            case _:
                yield _ONE, *self._act(s, state)

    def _act(self, s: o.Statement, state: _State) -> tuple[_State, str]:
        match s:
            case o.SetMark():
                return state._replace(mark=state.mark | s.bit), _NEXT
            case o.FlipMark():
                return state._replace(mark=state.mark ^ s.bit), _NEXT
            case o.Masquerade():
                return state._replace(masqueraded=True), "accept"
            case o.Dnat():
                if s.protocol != self._packet.protocol:
                    return state, _BREAK
                return state._replace(destination=s.address, port=s.port, dnat=True), "accept"
            case _:
                return state, {o.Drop: "drop", o.Reject: "reject", o.Count: _NEXT}[type(s)]

    def _test(self, true: bool, state: _State) -> tuple[Fraction, _State, str]:
        return _ONE, state, _NEXT if true else _BREAK

    def _mapped(self, s: o.VerdictMap | o.DnatMap, state: _State) -> _Branches:
        if isinstance(s, o.DnatMap) and s.protocol != self._packet.protocol:
            yield _ONE, state, _BREAK
            return
        entries, keys = self._container(state, s.map).entries, self._keys(s.key, state)
        state = state.looked_up()
        for probability, key in keys:
            found = entries.get(key)
            if found is None:
                # Without an element a verdict map lets the rule go on, any other map ends it.
                yield probability, state, _NEXT if isinstance(s, o.VerdictMap) else _BREAK
            elif isinstance(found.value, Verdict):
                for p, end, v in self._follow(found.value, state):
                    yield probability * p, end, v
            else:
                address, port = found.value or ("", 0)
                yield probability, state._replace(destination=str(address), port=int(port), dnat=True), "accept"

    def _follow(self, verdict: Verdict, state: _State) -> _Branches:
        if not verdict.chain:
            ends = {"continue": _NEXT, "return": _RETURN}
            yield _ONE, state, ends.get(verdict.kind, verdict.kind)
            return
        back = _NEXT if verdict.kind == "jump" else _RETURN
        for probability, after, end in self._chain(self._rules(state, verdict.chain), state):
            # The end of a chain that was gone to is the end of the chain that went there.
            yield probability, after, back if end == _RETURN else end

    def _pin(self, key: Plain, state: _State) -> tuple[_State, str]:
        pin = (str(key[0]), int(key[1]))
        if self._host.affinity_full and pin not in self._host.pins:
            return state, _BREAK
        return state._replace(pins=(*state.pins, pin)), _NEXT

    def _contains(self, container: FakeContainer, key: Plain) -> bool:
        if container.declared.interval:
            kinds = container.declared.key
            return container.holds(
                tuple(
                    address_number(str(part)) if kind is o.KeyType.ADDRESS else part
                    for kind, part in zip(kinds, key, strict=True)
                )
            )
        return key in container.entries or (container.declared.timeout and key in self._host.pins)

    def _keys(self, key: o.Key, state: _State) -> Iterator[tuple[Fraction, Plain]]:
        """All keys that the packet can have, which are several where a random number is part of it."""
        values = [
            range(part.offset, part.offset + part.modulus)
            if isinstance(part, o.Random)
            else (self._field(part, state),)
            for part in key
        ]
        count = 1
        for each in values:
            count *= len(each)
        for combination in product(*values):
            yield Fraction(1, count), combination

    def _field(self, field: o.Field, state: _State) -> str | int:
        packet = self._packet
        known: dict[o.Field, str | int] = {
            o.Field.SADDR: packet.source,
            o.Field.DADDR: state.destination,
            o.Field.ORIGINAL_DADDR: packet.destination,
            o.Field.L4PROTO: packet.protocol,
            o.Field.DPORT: state.port,
            o.Field.ORIGINAL_DPORT: packet.port,
            o.Field.IIFNAME: state.iif,
        }
        return known[field]

    def _matches(self, s: o.Match, state: _State) -> bool:
        match s.field:
            case o.Field.SADDR | o.Field.DADDR:
                first, last = _range(s.value, self._family)
                found = first <= address_number(str(self._field(s.field, state))) <= last
            case o.Field.CT_STATE:
                found = s.value == "new"
            case o.Field.CT_STATUS:
                found = s.value == "dnat" and state.dnat
            case o.Field.SADDR_TYPE | o.Field.DADDR_TYPE:
                address = self._packet.source if s.field is o.Field.SADDR_TYPE else state.destination
                found = self._host.is_local(address) == (s.value == "local")
            case o.Field.IIFNAME if s.value.endswith("*"):
                found = bool(state.iif) and state.iif.startswith(s.value[:-1])
            case _:
                found = str(self._field(s.field, state)) == s.value
        return found


class _Overtaken(_Walk):
    """The way of a packet that a commit overtakes after so many of its lookups."""

    def __init__(
        self, old: FakeTable, new: FakeTable, lookups: int, packet: Packet, host: Host, family: Family
    ) -> None:
        super().__init__(old, packet, host, family)
        self._new, self._lookups = new, lookups

    def _rules(self, state: _State, name: str) -> o.Chain:
        chains = (self._new if state.entered >= self._lookups else self._table).chains
        # One that is as new as what leads to it is there, and has no rules yet for whoever came before it.
        return chains.get(name) or o.Chain(name, ())

    def _container(self, state: _State, name: str) -> FakeContainer:
        return (self._new if state.lookups >= self._lookups else self._table).containers[name]


@lru_cache(maxsize=256)
def _range(text: str, family: Family) -> tuple[int, int]:
    return check_range(text, family)
