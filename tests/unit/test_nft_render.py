"""Forwarding as objects: which elements, lists and chains each route of a frontend gets."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding, Route
from proxyd.model import Family
from proxyd.nft.layout import AFFINITY, LOCAL_BASE, Layout
from proxyd.nft.objects import Chain, Chance, Dnat, Element, Field, InSet, Random, UpdateSet
from proxyd.nft.render import EndpointList, ServiceObjects, pin_id, render_service, service_port_id
from tests import build

LAYOUT = Layout(Family.IPV4, 1, 0x4000)
A, B, C = (Backend(f"10.244.1.{n}", 8080) for n in (1, 2, 3))
ADDRESS, NODE_PORT = FrontendKey("198.51.100.1", "tcp", 80), FrontendKey("", "tcp", 30080)
ADDRESS_KEY, NODE_PORT_KEY = "198.51.100.1 . tcp . 80", "tcp . 30080"
NAME = "default/web:http"


def port(*frontends: Frontend, **fields: Any) -> PortForwarding:
    return PortForwarding(NAME, "tcp", frontends, **fields)


def rendered(*ports: PortForwarding) -> ServiceObjects:
    return render_service(Forwarding(build.key("web"), Family.IPV4, "10.96.0.1", ports), LAYOUT)


def route(route_: Route, key: FrontendKey = ADDRESS, **fields: Any) -> ServiceObjects:
    kind = Kind.EXTERNAL_IP if key.address else Kind.NODE_PORT
    return rendered(port(Frontend(key, kind, route_), cluster=(A, B, C), local=(A,), **fields))


def elements(objects: ServiceObjects) -> dict[tuple[str, str], str]:
    return {(each.container.removeprefix("g1/"), each.key): each.value for each in objects.elements}


def lists(objects: ServiceObjects) -> dict[tuple[str, str, int], int]:
    """How many endpoints each list has."""
    return {(e.container.removeprefix("g1/"), e.frontend, e.base): len(e.backends) for e in objects.lists}


def chains(objects: ServiceObjects) -> set[str]:
    return {each.name.removeprefix("g1/") for each in objects.chains}


@pytest.mark.parametrize(
    ("route_", "address", "node_port", "needed"),
    [
        (
            Route.CLUSTER,
            {("service-ips", ADDRESS_KEY): "goto g1/lb-tcp-3"},
            {("service-nodeports", NODE_PORT_KEY): "goto g1/np-tcp-3"},
            ({"lb-tcp-3"}, {"np-tcp-3"}),
        ),
        (
            Route.LOCAL,
            {("service-ips", ADDRESS_KEY): "goto g1/lb-tcp-1"},
            {("service-nodeports", NODE_PORT_KEY): "goto g1/np-tcp-1"},
            ({"lb-tcp-1"}, {"np-tcp-1"}),
        ),
        (
            Route.EXTERNAL,
            {
                ("service-ips", ADDRESS_KEY): "goto g1/external-lb-tcp-3",
                ("external-local-only", ADDRESS_KEY): "goto g1/external-lb-tcp-3",
            },
            {
                ("service-nodeports", NODE_PORT_KEY): "goto g1/external-np-tcp-3",
                ("nodeport-local-only", NODE_PORT_KEY): "goto g1/external-np-tcp-3",
            },
            ({"lb-tcp-3", "external-lb-tcp-3"}, {"np-tcp-3", "external-np-tcp-3"}),
        ),
        (
            Route.EXTERNAL_LOCAL,
            {
                ("service-ips", ADDRESS_KEY): "goto g1/external-local",
                ("external-cluster", ADDRESS_KEY): "goto g1/lb-tcp-3",
                ("external-local-only", ADDRESS_KEY): "goto g1/local-lb-tcp-1",
            },
            {
                ("service-nodeports", NODE_PORT_KEY): "goto g1/np-external-local",
                ("nodeport-cluster", NODE_PORT_KEY): "goto g1/np-tcp-3",
                ("nodeport-local-only", NODE_PORT_KEY): "goto g1/local-np-tcp-1",
            },
            ({"lb-tcp-3", "local-lb-tcp-1"}, {"np-tcp-3", "local-np-tcp-1"}),
        ),
        (
            Route.EXTERNAL_NO_LOCAL,
            {
                ("service-ips", ADDRESS_KEY): "goto g1/external-local",
                ("external-cluster", ADDRESS_KEY): "goto g1/lb-tcp-3",
                ("no-endpoints", ADDRESS_KEY): "drop",
            },
            {
                ("service-nodeports", NODE_PORT_KEY): "goto g1/np-external-local",
                ("nodeport-cluster", NODE_PORT_KEY): "goto g1/np-tcp-3",
                ("no-endpoint-nodeports", NODE_PORT_KEY): "drop",
            },
            ({"lb-tcp-3"}, {"np-tcp-3"}),
        ),
        (
            Route.REJECT,
            {("no-endpoints", ADDRESS_KEY): "goto g1/reject"},
            {("no-endpoint-nodeports", NODE_PORT_KEY): "goto g1/reject"},
            (set(), set()),
        ),
        (
            Route.DROP,
            {("no-endpoints", ADDRESS_KEY): "drop"},
            {("no-endpoint-nodeports", NODE_PORT_KEY): "drop"},
            (set(), set()),
        ),
    ],
)
def test_a_route_of_an_address_and_of_a_node_port(
    route_: Route,
    address: dict[tuple[str, str], str],
    node_port: dict[tuple[str, str], str],
    needed: tuple[set[str], set[str]],
) -> None:
    assert elements(route(route_)) == address
    assert elements(route(route_, NODE_PORT)) == node_port
    assert (chains(route(route_)), chains(route(route_, NODE_PORT))) == needed


@pytest.mark.parametrize(
    ("route_", "counts"),
    [
        (Route.CLUSTER, {0: 3}),
        (Route.LOCAL, {0: 1}),
        (Route.EXTERNAL, {0: 3}),
        (Route.EXTERNAL_LOCAL, {0: 3, LOCAL_BASE: 1}),
        (Route.EXTERNAL_NO_LOCAL, {0: 3}),
        (Route.REJECT, {}),
        (Route.DROP, {}),
    ],
)
def test_a_frontend_has_the_lists_that_its_route_leads_to(route_: Route, counts: dict[int, int]) -> None:
    address = {("endpoints-tcp", "198.51.100.1 . 80", base): n for base, n in counts.items()}
    node_port = {("nodeport-endpoints-tcp", "30080", base): n for base, n in counts.items()}
    assert lists(route(route_)) == address
    assert lists(route(route_, NODE_PORT)) == node_port


def test_a_list_holds_addresses_and_ports_as_values() -> None:
    assert route(Route.LOCAL).lists == (
        EndpointList("g1/endpoints-tcp", "198.51.100.1 . 80", 0, ("10.244.1.1 . 8080",)),
    )


def test_frontends_that_are_dispatched_or_refused_name_their_service_port() -> None:
    for each in Route:
        first = route(each).elements[0]
        assert (each, first.comment) == (each, NAME)


def test_a_name_that_no_comment_can_hold_is_left_out() -> None:
    hostile = PortForwarding('x"; flush ruleset', "tcp", (Frontend(ADDRESS, Kind.CLUSTER_IP, Route.CLUSTER),), (A,))
    assert {each.comment for each in rendered(hostile).elements} == {""}


def test_source_ranges_are_elements_of_the_firewall() -> None:
    frontend = Frontend(ADDRESS, Kind.LOAD_BALANCER, Route.EXTERNAL, ("10.0.0.0/8", "192.0.2.0/24"))
    found = elements(rendered(port(frontend, cluster=(A,))))
    assert found["firewall-ips", ADDRESS_KEY] == ""
    assert {key for container, key in found if container == "firewall-sources"} == {
        f"{ADDRESS_KEY} . 10.0.0.0/8",
        f"{ADDRESS_KEY} . 192.0.2.0/24",
    }


@pytest.mark.parametrize(("sources", "guarded"), [((), True), (None, False)])
def test_a_frontend_closed_to_all_is_guarded_and_one_open_to_all_is_not(
    sources: tuple[str, ...] | None, guarded: bool
) -> None:
    found = elements(rendered(port(Frontend(ADDRESS, Kind.LOAD_BALANCER, Route.EXTERNAL, sources), cluster=(A,))))
    assert (("firewall-ips", ADDRESS_KEY) in found) == guarded
    assert not [key for container, key in found if container == "firewall-sources"]


def test_endpoints_beside_are_allowed_to_call_themselves() -> None:
    objects = route(Route.CLUSTER, beside=(A, B))
    assert {each.key for each in objects.shared if each.container == "g1/hairpin"} == {
        "10.244.1.1 . 10.244.1.1 . tcp . 8080",
        "10.244.1.2 . 10.244.1.2 . tcp . 8080",
    }


def test_without_an_endpoint_list_nobody_calls_itself() -> None:
    objects = rendered(port(Frontend(ADDRESS, Kind.CLUSTER_IP, Route.REJECT), beside=(A,)))
    assert all(each.container != "g1/hairpin" for each in objects.shared)


def test_a_service_with_ports_has_its_cluster_ip_among_all() -> None:
    assert Element("g1/cluster-ips", "10.96.0.1") in route(Route.REJECT).shared
    assert rendered() == ServiceObjects()


def test_ports_of_one_count_share_a_chain_and_protocols_do_not() -> None:
    tcp = [
        PortForwarding(
            NAME, "tcp", (Frontend(FrontendKey("10.96.0.1", "tcp", n), Kind.CLUSTER_IP, Route.CLUSTER),), (A,)
        )
        for n in (80, 443)
    ]
    udp = PortForwarding(
        NAME, "udp", (Frontend(FrontendKey("10.96.0.1", "udp", 53), Kind.CLUSTER_IP, Route.CLUSTER),), (A,)
    )
    objects = rendered(*tcp, udp)
    assert [each.name for each in objects.chains] == ["g1/lb-tcp-1", "g1/lb-udp-1"]
    assert {each.container for each in objects.lists} == {"g1/endpoints-tcp", "g1/endpoints-udp"}


# Affinity


def affine(*backends: Backend, route_: Route = Route.CLUSTER, **fields: Any) -> ServiceObjects:
    frontends = (Frontend(ADDRESS, Kind.EXTERNAL_IP, route_), Frontend(NODE_PORT, Kind.NODE_PORT, route_))
    return rendered(port(*frontends, cluster=backends, affinity_seconds=600, **fields))


def test_an_affinity_chain_asks_for_a_pin_then_makes_one_then_does_without() -> None:
    (chain,) = affine(B, A).chains
    forwarding = port(affinity_seconds=600)
    keys = [(Field.SADDR, Random(1, pin_id(forwarding, each))) for each in (A, B)]
    to = [Dnat("tcp", each.address, each.port) for each in (A, B)]
    update = [UpdateSet(AFFINITY, each, 600) for each in keys]
    assert chain == Chain(
        f"g1/affinity-{service_port_id(forwarding)}",
        (
            (InSet(keys[0], AFFINITY), update[0], to[0]),
            (InSet(keys[1], AFFINITY), update[1], to[1]),
            (Chance(2), update[0], to[0]),
            (update[1], to[1]),
            (Chance(2), to[0]),
            (to[1],),
        ),
        comment=NAME,
    )


def test_all_frontends_of_a_port_share_its_affinity_chain_and_need_no_lists() -> None:
    objects = affine(A, B)
    assert objects.lists == ()
    assert len(objects.chains) == 1
    assert {each.value for each in objects.elements} == {f"goto {objects.chains[0].name}"}


def test_the_order_of_endpoints_does_not_change_an_affinity_chain() -> None:
    assert affine(A, B, C) == affine(C, A, B)


def test_both_lists_of_a_port_with_affinity_have_a_chain_with_the_same_pins() -> None:
    objects = affine(A, B, C, route_=Route.EXTERNAL_LOCAL, local=(B,))
    base = f"affinity-{service_port_id(port())}"
    assert chains(objects) == {base, f"local-{base}"}
    (local,) = (each for each in objects.chains if "local-" in each.name)
    pinned = [s for rule in local.rules for s in rule if isinstance(s, InSet)]
    assert [each.key for each in pinned] == [(Field.SADDR, Random(1, pin_id(port(), B)))]


def test_an_external_frontend_with_affinity_is_masqueraded_on_the_way() -> None:
    base = f"affinity-{service_port_id(port())}"
    assert chains(affine(A, route_=Route.EXTERNAL)) == {base, f"external-{base}"}


def test_identities_are_the_same_for_ever() -> None:
    """They live in the kernel's affinity set and in chain names over restarts and versions: never change them."""
    assert service_port_id(port()) == "OSC5D42RU6KJHZT7"
    assert pin_id(port(), A) == 2060863295
    assert service_port_id(PortForwarding(NAME, "udp", ())) != service_port_id(port())


def test_an_identity_fits_into_a_chain_name_whatever_the_name() -> None:
    for name in ("", 'x"; flush ruleset', "a" * 1000):
        assert service_port_id(PortForwarding(name, "tcp", ())).isalnum()
        assert 0 <= pin_id(PortForwarding(name, "tcp", ()), A) < 1 << 32
