"""Whose a tracked flow is, and whether its endpoint is to lose it."""

from __future__ import annotations

import pytest

from proxyd.desired.admission import admit
from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.draining import Count, Ended, Flow, PortState, port_states
from proxyd.desired.endpoints import Backend
from proxyd.draining import Drained, drained_text, waited
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, NodeSettings, Service
from tests import build

V4 = Family.IPV4
VIP = FrontendKey("10.96.0.1", "tcp", 80)
POD, OTHER, GONE = Backend("10.244.1.2", 8080), Backend("10.244.1.3", 8080), Backend("10.244.1.9", 8080)
ESTABLISHED, TIME_WAIT = 3, 7


def states(
    service: Service, *slices: EndpointSlice, settings: NodeSettings | None = None, seconds: float = 7.0
) -> list[PortState]:
    terminating = {(V4, POD.address): seconds}
    return port_states(service, admit(service).families, slices, {V4: settings or build.settings()}, terminating)


TERMINATES = build.endpoint(POD.address, **build.SERVING_TERMINATING)
WEB = states(build.service(), build.endpoint_slice("web", TERMINATES, OTHER.address))


def held(ports: list[PortState], *flows: Flow) -> dict[Backend, tuple[Ended, int]]:
    count = Count(V4, ports)
    for each in flows:
        count.add(each)
    return {Backend(each.address, each.port): (each.why, each.connections) for each in count.held(1000.0)}


def test_flows_of_a_terminating_endpoint_are_counted_and_of_others_not() -> None:
    flows = [Flow(VIP, POD, ESTABLISHED), Flow(VIP, POD, ESTABLISHED), Flow(VIP, OTHER, ESTABLISHED)]
    assert held(WEB, *flows) == {POD: (Ended.TERMINATING, 2)}


def test_one_that_terminates_and_holds_nothing_is_listed() -> None:
    assert held(WEB) == {POD: (Ended.TERMINATING, 0)}


def test_one_that_is_in_no_slice_is_listed_for_as_long_as_it_holds_something() -> None:
    assert held(WEB, Flow(VIP, GONE, ESTABLISHED))[GONE] == (Ended.GONE, 1)


@pytest.mark.parametrize(("state", "counts"), [(1, 0), (2, 1), (3, 1), (4, 1), (5, 1), (6, 0), (7, 0), (8, 0)])
def test_only_connections_that_are_open_count(state: int, counts: int) -> None:
    assert held(WEB, Flow(VIP, POD, state))[POD] == (Ended.TERMINATING, counts)
    assert (GONE in held(WEB, Flow(VIP, GONE, state))) == bool(counts)


def test_datagrams_have_no_states() -> None:
    service = build.service(ports=(build.port(protocol="udp"),))
    ports = states(service, build.endpoint_slice("web", TERMINATES, ports=(build.SlicePort("http", "udp", 8080),)))
    assert held(ports, Flow(FrontendKey("10.96.0.1", "udp", 80), POD)) == {POD: (Ended.TERMINATING, 1)}


def test_ages() -> None:
    count = Count(V4, WEB)
    for began in (990.0, 400.0, None):
        count.add(Flow(VIP, POD, ESTABLISHED, began))
    [told] = count.held(1000.0)
    assert (told.terminating_seconds, told.oldest_seconds) == (7.0, 600.0)
    assert drained_text(Drained(3, (told,))) == (
        "default/web:http 10.244.1.2:8080/tcp: terminating since 7s, 3 connections, the oldest since 10m0s\n"
    )


@pytest.mark.parametrize(("taken", "address"), [(None, ""), (("192.0.2.11",), "192.0.2.11")])
def test_node_ports_are_frontends_where_they_are_taken(taken: tuple[str, ...] | None, address: str) -> None:
    service = build.service(ports=(build.port(node_port=30080),))
    ports = states(service, build.endpoint_slice("web", TERMINATES), settings=build.settings(node_port_addresses=taken))
    front = FrontendKey(address, "tcp", 30080)
    assert set(Count(V4, ports).frontends()) == {VIP, front}
    assert held(ports, Flow(front, POD, ESTABLISHED)) == {POD: (Ended.TERMINATING, 1)}


@pytest.mark.parametrize("order", [1, -1])
def test_a_frontend_that_two_claim_is_of_the_one_that_has_it(order: int) -> None:
    other = build.service("other", ip="10.96.0.2", external_ips=("10.96.0.1",))
    ports = [*WEB, *states(other, build.endpoint_slice("other", GONE.address))]
    assert held(ports[::order], Flow(VIP, OTHER, ESTABLISHED)) == {POD: (Ended.TERMINATING, 0)}


def test_an_endpoint_that_another_slice_has_as_ready_does_not_terminate() -> None:
    ports = states(
        build.service(),
        build.endpoint_slice("web", TERMINATES, name="a"),
        build.endpoint_slice("web", POD.address, name="b"),
    )
    assert held(ports, Flow(VIP, POD, ESTABLISHED)) == {}


def test_since_when_is_kept_for_as_long_as_it_terminates() -> None:
    now = [10.0]
    store = Store(lambda: now[0])

    def put(*endpoints: object) -> dict[tuple[Family, str], float]:
        store.slices.put(build.decoded(build.endpoint_slice("web", *endpoints)))  # type: ignore[arg-type]
        now[0] += 1
        return store.terminating(build.key())

    assert put(POD.address) == {}
    assert put(TERMINATES) == {(V4, POD.address): 11.0}
    assert put(TERMINATES, OTHER.address) == {(V4, POD.address): 11.0}
    assert put(OTHER.address) == {}
    assert put(TERMINATES) == {(V4, POD.address): 14.0}
    store.slices.remove(("default", "web-1"))
    assert store.terminating(build.key()) == {}
    assert put(TERMINATES) == {(V4, POD.address): 15.0}


def test_waiting_ends_with_the_last_connection_or_the_time() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    looks = iter([Drained(2), Drained(1), Drained(0)])
    assert waited(lambda: next(looks), 60.0, lambda: now[0], sleep).connections == 0
    assert now[0] == 2.0
    assert waited(lambda: Drained(1), 2.5, lambda: now[0], sleep).connections == 1
    assert now[0] == 4.5
    assert waited(lambda: Drained(1), 0.0, lambda: now[0], sleep).connections == 1
    assert now[0] == 4.5
