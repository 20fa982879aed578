"""What must become of a connection if an answer of explain is right, and whether it does: with real packets."""

from __future__ import annotations

from typing import NamedTuple

from proxyd.explain.answer import Explanation, Target, Verdict
from proxyd.model import Family
from tests.cluster.cases import PATIENCE, SILENCE
from tests.topology import (
    ADDRESSES,
    LEAVES,
    NODE,
    NODE_PORTS,
    OTHER_POD_GATEWAY,
    POD_GATEWAY,
    PODS,
    TCP_PORTS,
    UDP_PORTS,
    Answer,
    Topology,
)

LOOPBACK = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
# Connections in one go, and how often more are made as long as an endpoint has not answered (chance that one of four does
# not in all of them: 1 in 10^11).
ROUND, ROUNDS = 12, 8
NOBODY = {"timeout", "unreachable"}


class Expected(NamedTuple):
    """Who may answer (or "refused", "timeout"), each of whom must in the long run, with the source that each sees.

    ``also`` may come, and need not.
    """

    sources: dict[str, str]
    also: frozenset[str] = frozenset()


def check(world: Topology, place: str, answer: Explanation) -> Expected:
    """Connects as the question says, and compares what comes of it with the answer; gives what was expected."""
    expected = expectation(answer)
    asked = answer.asked
    silent = "timeout" in expected.sources or expected.also
    count = ROUND if answer.endpoints else 1
    found: list[Answer] = []
    for _ in range(ROUNDS):
        found += world.ask(
            place,
            asked.destination,
            asked.port,
            asked.protocol,
            count,
            timeout=SILENCE if silent else PATIENCE,
            # A node has several addresses, and the answer is about this one.
            source_ip=asked.source if place == "node" else "",
        )
        if answer.affinity_seconds or {_plain(each, expected) for each in found} >= expected.sources.keys():
            break
    by = {_plain(each, expected) for each in found}
    pinned = bool(answer.affinity_seconds and answer.endpoints)
    if pinned:
        assert len(by) == 1, (by, answer)
    else:
        assert by >= expected.sources.keys(), (by, expected, answer)
    assert by <= expected.sources.keys() | expected.also, (by, expected, answer)
    for each in found:
        if each.source and each.by in expected.sources:
            assert each.source == expected.sources[each.by], (each, answer)
    return expected


def expectation(answer: Explanation) -> Expected:
    """What must become of connections like the one that was asked about."""
    if answer.endpoints:
        return _of_endpoints(answer)
    match answer.verdict:
        case Verdict.REJECTED:
            return Expected({"refused": ""})
        case Verdict.DROPPED:
            return Expected({"timeout": ""})
    assert answer.verdict in (Verdict.UNSERVED, Verdict.UNTOUCHED), answer
    return _as_it_is(answer)


def _of_endpoints(answer: Explanation) -> Expected:
    sources, also = {}, frozenset[str]()
    for each in answer.endpoints:
        match each.verdict:
            case Verdict.REJECTED:
                sources["refused"] = ""
            case Verdict.DROPPED:
                sources["timeout"] = ""
            case Verdict.DELIVERED if _host_at(each.address):
                by = _server(each.address, each.port, answer.asked.protocol)
                sources[by] = _seen_source(answer, each)
            case _:
                # The address of another Service: it goes its way, through whatever takes it there.
                also = frozenset({*PODS, "node", "refused", *NOBODY})
    return Expected(sources, also)


def _as_it_is(answer: Explanation) -> Expected:
    """Nobody's packet: who is there answers, with its source as it was."""
    asked = answer.asked
    if _host_at(asked.destination):
        return Expected({_server(asked.destination, asked.port, asked.protocol): asked.source})
    # The node itself has IPv6 routed back to it, where it may meet what is refused to others.
    looped = {"refused"} if asked.origin == "node" and answer.family is Family.IPV6 else set()
    return Expected({}, frozenset(NOBODY | looped))


def _seen_source(answer: Explanation, target: Target) -> str:
    """The source that an endpoint must see."""
    family = answer.family
    if not target.source_replaced:
        return answer.asked.source
    host = _host_at(target.address)
    return POD_GATEWAY[family] if host in PODS and PODS[host].router == "node" else NODE[family]


def _host_at(address: str) -> str:
    """The host of the topology that has an address, "" if none does."""
    family = Family.IPV6 if ":" in address else Family.IPV4
    if address in (NODE[family], POD_GATEWAY[family], LOOPBACK[family]):
        return "node"
    if address == OTHER_POD_GATEWAY[family]:
        return "other"
    return next((name for name in LEAVES if ADDRESSES[name][family] == address), "")


def _server(address: str, port: int, protocol: str) -> str:
    """Who answers at an address and port without any rules; "refused" where nobody listens."""
    host = _host_at(address)
    listening = {"tcp": NODE_PORTS if host == "node" else TCP_PORTS, "udp": () if host == "node" else UDP_PORTS}
    return host if host in (*PODS, "node") and port in listening[protocol] else "refused"


def _plain(answer: Answer, expected: Expected) -> str:
    """What came of a connection. A datagram that the node may not send is an error there, whether told to it or dropped."""
    if answer.by == "prohibited":
        return next((each for each in ("refused", "timeout") if each in expected.sources), "refused")
    return answer.by
