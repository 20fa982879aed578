"""Where a Service takes UDP flows, which endpoints keep theirs, and what is stale."""

from __future__ import annotations

import pytest

from proxyd.desired.admission import admit
from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.desired.flows import Live, Place, is_stale, places
from proxyd.desired.forwarding import build_forwarding
from proxyd.model import Endpoint, Family, NodeSettings, Service, SlicePort
from tests.build import NODE_IP, SERVING_TERMINATING, endpoint, endpoint_slice, port, service, settings

V4, V6 = Family.IPV4, Family.IPV6
DNS = SlicePort("dns", "udp", 5353)
VIP, EXTERNAL, INGRESS = "10.96.0.1", "192.0.2.99", "203.0.113.10"
A, B = Backend("10.244.1.2", 5353), Backend("10.244.2.2", 5353)
HERE, THERE = endpoint("10.244.1.2"), endpoint("10.244.2.2", "node2")


def dns(**fields: object) -> Service:
    fields.setdefault("ports", (port(53, "dns", "udp", 30053),))
    return service("web", external_ips=(EXTERNAL,), ingress_ips=(INGRESS,), **fields)


def flows(built: Service, *endpoints: Endpoint, on: NodeSettings | None = None, lost: tuple[FrontendKey, ...] = ()):  # type: ignore[no-untyped-def]
    on = on or settings()
    slices = [endpoint_slice("web", *endpoints, ports=(DNS, SlicePort("http", "tcp", 8080)), family=on.family)]
    gone = dict.fromkeys(lost, built.key)
    return places(build_forwarding(built, admit(built).families[on.family], slices, on, gone), on)


def own(address: str, number: int = 53) -> Place:
    return Place(FrontendKey(address, "udp", number), node_port=False)


def node_port(address: str, number: int = 30053) -> Place:
    return Place(FrontendKey(address, "udp", number), node_port=True)


def test_every_kind_of_frontend_is_a_place_with_the_endpoints() -> None:
    everywhere = (own(VIP), own(EXTERNAL), own(INGRESS), node_port(NODE_IP[V4]))
    assert flows(dns(), HERE, THERE) == dict.fromkeys(everywhere, frozenset({A, B}))


def test_tcp_and_sctp_are_not() -> None:
    ports = (port(53, "dns", "udp"), port(53, "dns-tcp", "tcp"), port(53, "dns-sctp", "sctp"), port())
    assert set(flows(service("web", ports=ports), HERE)) == {own(VIP)}


def test_node_ports_are_on_the_addresses_that_take_them() -> None:
    on = settings(node_port_addresses=("192.0.2.11", "192.0.2.12"))
    found = {place for place in flows(dns(), HERE, on=on) if place.node_port}
    assert found == {node_port("192.0.2.11"), node_port("192.0.2.12")}


def test_node_ports_on_all_addresses_have_none_of_their_own() -> None:
    found = {place for place in flows(dns(), HERE, on=settings(node_port_addresses=None)) if place.node_port}
    assert found == {node_port("")}


def test_node_ports_that_no_address_takes_are_nowhere() -> None:
    found = flows(dns(), HERE, on=settings(node_port_addresses=()))
    assert set(found) == {own(VIP), own(EXTERNAL), own(INGRESS)}


def test_frontends_that_another_service_has_are_not_ours() -> None:
    found = flows(dns(), HERE, lost=(FrontendKey(EXTERNAL, "udp", 53), FrontendKey("", "udp", 30053)))
    assert set(found) == {own(VIP), own(INGRESS)}


@pytest.mark.parametrize(
    ("conditions", "live"),
    [
        ({}, True),
        (SERVING_TERMINATING, True),
        ({"ready": False, "serving": True}, True),
        ({"ready": True, "serving": False}, True),  # publishNotReadyAddresses: used, so it keeps what it has
        ({"ready": False, "serving": False}, False),
        ({"ready": False, "serving": False, "terminating": True}, False),
    ],
    ids=str,
)
def test_who_serves_keeps_flows_whether_new_ones_come_or_not(conditions: dict[str, bool], live: bool) -> None:
    found = flows(service("web", ports=(port(53, "dns", "udp"),)), endpoint("10.244.1.2", **conditions), THERE)
    assert found == {own(VIP): frozenset({A, B} if live else {B})}


def test_traffic_policy_and_hints_do_not_matter() -> None:
    hinted = endpoint("10.244.2.2", "node2", zone_hints=("zb",))
    near = endpoint("10.244.1.2", zone_hints=("za",))
    found = flows(dns(internal_local=True, external_local=True), near, hinted)
    assert set(found.values()) == {frozenset({A, B})}


def test_without_endpoints_the_places_are_there_all_the_same() -> None:
    found = flows(dns())
    assert len(found) == 4
    assert set(found.values()) == {frozenset()}


def test_each_family_has_its_own() -> None:
    built = service("web", cluster_ips=(VIP, "fd00:96::1"), ports=(port(53, "dns", "udp"),))
    found = flows(built, endpoint("fd00:10:244:1::2"), on=settings(V6))
    assert found == {own("fd00:96::1"): frozenset({Backend("fd00:10:244:1::2", 5353)})}


@pytest.mark.parametrize(
    ("answers", "live", "stale"),
    [
        (A, frozenset({A}), False),
        (B, frozenset({A}), True),
        (Backend("10.96.0.1", 53), frozenset({A}), True),
        (Backend("10.96.0.1", 53), frozenset(), False),
        (A, frozenset(), True),
        (Backend("10.96.0.1", 53), frozenset({Backend("10.96.0.1", 53)}), False),
        (A._replace(port=53), frozenset({A}), True),
    ],
)
def test_what_is_stale(answers: Backend, live: Live, stale: bool) -> None:
    assert is_stale("udp", Backend("10.96.0.1", 53), answers, live) is stale


@pytest.mark.parametrize("live", [frozenset(), frozenset({Backend("10.244.1.2", 8080)})])
def test_a_tcp_connection_that_is_not_translated_is_somebody_elses(live: Live) -> None:
    own = Backend("10.96.0.1", 80)
    assert not is_stale("tcp", own, own, live)
    assert is_stale("tcp", own, Backend("10.244.1.9", 8080), live)


def test_tcp_is_looked_after_only_if_asked_for_and_keeps_every_endpoint_in_a_slice() -> None:
    dead = endpoint("10.244.1.3", ready=False, serving=False, terminating=True)
    slices = [endpoint_slice("web", endpoint("10.244.1.2"), dead)]
    for asked, expected in ((False, {}), (True, {Backend("10.244.1.2", 8080), Backend("10.244.1.3", 8080)})):
        on = settings(reset_gone_tcp=asked)
        admitted = admit(service()).families[Family.IPV4]
        found = places(build_forwarding(service(), admitted, slices, on, {}), on)
        assert found == ({Place(FrontendKey("10.96.0.1", "tcp", 80), False): frozenset(expected)} if asked else {})
