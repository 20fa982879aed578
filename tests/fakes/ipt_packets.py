"""What happens to a new connection under the rules of a FakeRules: every outcome with its exact probability."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from proxyd.ipt import objects as o
from proxyd.ipt.objects import Rule, Table
from tests.fakes.ipt_rules import BUILT_IN, FakeRules
from tests.fakes.packets import Host, Outcome, Packet

# A target that ends neither the rule set nor the chain.
_GO_ON, _RETURN = "go on", "return"
_FINAL = {o.ACCEPT: "accept", o.DROP: "drop", o.REJECT: "reject"}
_ONE = Fraction(1)


class _State(NamedTuple):
    """A packet on its way. ``pins`` are the lists of recent clients that it was noted in."""

    destination: str
    port: int
    iif: str
    mark: int = 0
    masqueraded: bool = False
    pins: tuple[str, ...] = ()


_Branches = Iterator[tuple[Fraction, _State, str]]


def distribution(
    kernel: FakeRules, packet: Packet, host: Host, known: frozenset[str] = frozenset()
) -> list[tuple[Fraction, Outcome]]:
    """All outcomes with their probabilities, sorted. ``known`` are the recent lists that have the client already."""
    counted: Counter[Outcome] = Counter()
    start = _State(packet.destination, packet.port, packet.iif)
    for probability, state, verdict in _Walk(kernel, packet, host, known).connection(start):
        pins = tuple((name, 0) for name in state.pins)
        outcome = Outcome(verdict, (state.destination, state.port), state.masqueraded, state.mark, pins)
        counted[outcome] += probability  # type: ignore[assignment]
    return sorted(((Fraction(p), outcome) for outcome, p in counted.items()), key=lambda each: each[1])


class _Walk:
    """One packet's way through the tables."""

    def __init__(self, kernel: FakeRules, packet: Packet, host: Host, known: frozenset[str]) -> None:
        self._kernel, self._packet, self._host, self._known = kernel, packet, host, known

    def connection(self, start: _State) -> _Branches:
        first = (Table.NAT, "PREROUTING" if self._packet.iif else "OUTPUT")
        for probability, state, verdict in self._built_in(*first, start):
            for p, end, v in self._routed(state) if verdict == "accept" else ((_ONE, state, verdict),):
                yield probability * p, end, v

    def _routed(self, state: _State) -> _Branches:
        """Filtered and sent as its destination is now; from the node to itself, input follows output."""
        here = self._host.is_local(state.destination)
        if self._packet.iif:
            path = [(Table.FILTER, "INPUT")] if here else [(Table.FILTER, "FORWARD"), (Table.NAT, "POSTROUTING")]
        else:
            path = [(Table.FILTER, "OUTPUT"), (Table.NAT, "POSTROUTING")] + ([(Table.FILTER, "INPUT")] if here else [])
        yield from self._path(path, state)

    def _path(self, path: Sequence[tuple[Table, str]], state: _State) -> _Branches:
        if not path:
            yield _ONE, state, "accept"
            return
        for probability, after, verdict in self._built_in(*path[0], state):
            for p, end, v in self._path(path[1:], after) if verdict == "accept" else ((_ONE, after, verdict),):
                yield probability * p, end, v

    def _built_in(self, table: Table, chain: str, state: _State) -> _Branches:
        for probability, after, verdict in self._chain(table, chain, state):
            yield probability, after, "accept" if verdict == _RETURN else verdict

    def _chain(self, table: Table, chain: str, start: _State) -> _Branches:
        pending = [(_ONE, start)]
        for rule in self._kernel.tables[table][chain]:
            going_on = []
            for reached, state in pending:
                for probability, after, verdict in self._rule(table, rule, state):
                    if verdict == _GO_ON:
                        going_on.append((reached * probability, after))
                    else:
                        yield reached * probability, after, verdict
            pending = going_on
        for probability, state in pending:
            yield probability, state, _RETURN

    def _rule(self, table: Table, rule: Rule, state: _State) -> _Branches:
        if not self._matches(rule, state):
            yield _ONE, state, _GO_ON
            return
        chance = Fraction(1, rule.one_of) if rule.one_of else _ONE
        if chance != 1:
            yield 1 - chance, state, _GO_ON
        if rule.recent and not rule.recent.seconds:
            state = state._replace(pins=(*state.pins, rule.recent.list))
        for probability, after, verdict in self._target(table, rule, state):
            yield chance * probability, after, verdict

    def _target(self, table: Table, rule: Rule, state: _State) -> _Branches:
        match rule.target:
            case "":
                yield _ONE, state, _GO_ON
            case o.RETURN:
                yield _ONE, state, _RETURN
            case o.ACCEPT | o.DROP | o.REJECT:
                yield _ONE, state, _FINAL[rule.target]
            case o.MARK:
                yield _ONE, state._replace(mark=(state.mark | rule.set_mark) ^ rule.flip_mark), _GO_ON
            case o.MASQUERADE:
                yield _ONE, state._replace(masqueraded=True), "accept"
            case o.DNAT:
                address, port = _translated(rule.to, state.port)
                yield _ONE, state._replace(destination=address, port=port), "accept"
            case chain:
                for probability, after, verdict in self._chain(table, chain, state):
                    yield probability, after, _GO_ON if verdict == _RETURN else verdict

    def _matches(self, rule: Rule, state: _State) -> bool:
        is_local = self._host.is_local
        return (
            (not rule.protocol or rule.protocol == self._packet.protocol)
            and (not rule.port or rule.port == state.port)
            and _in_range(rule.source, self._packet.source)
            and _in_range(rule.destination, state.destination)
            and _by_interface(rule.interface, state.iif)
            and (not rule.source_local or is_local(self._packet.source))
            and (not rule.destination_local or is_local(state.destination))
            and _in_state(rule.states)
            and (not rule.marked or bool(state.mark & rule.marked))
            and (not rule.unmarked or not state.mark & rule.unmarked)
            and (rule.recent is None or not rule.recent.seconds or rule.recent.list in self._known)
        )


def _translated(to: str, port: int) -> tuple[str, int]:
    """What ``--to-destination`` means: an IPv6 address without brackets is nothing but an address."""
    if to.startswith("["):
        address, _, number = to[1:].partition("]:")
    elif to.count(":") > 1:
        address, number = to, str(port)
    else:
        address, _, number = to.partition(":")
    return address, int(number)


def _in_range(wanted: str, address: str) -> bool:
    if not wanted:
        return True
    inside = ipaddress.ip_address(address) in ipaddress.ip_network(wanted.removeprefix("!"))
    return inside != wanted.startswith("!")


def _by_interface(wanted: str, interface: str) -> bool:
    if not wanted:
        return True
    name = wanted.removeprefix("!")
    found = interface.startswith(name[:-1]) and bool(interface) if name.endswith("+") else interface == name
    return found != wanted.startswith("!")


def _in_state(wanted: str) -> bool:
    """The first packet of a connection is NEW and nothing else."""
    return not wanted or ("NEW" in wanted.removeprefix("!").split(",")) != wanted.startswith("!")


assert set(BUILT_IN) == set(Table)
