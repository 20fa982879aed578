"""What explain says is what the rules do: random Services, random packets, both modes."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from proxyd.explain.answer import Verdict
from proxyd.explain.packet import explain_packet
from proxyd.model import Endpoint, EndpointSlice, Family, LocalDetector, Service, ServicePort, SlicePort
from tests import build
from tests.explain_world import is_written, met, packet, told, view_of
from tests.fakes.packets import Packet
from tests.ipt_world import IptWorld
from tests.world import World

NODE_IP = build.NODE_IP[Family.IPV4]
VIPS = ["10.96.0.1", "10.96.0.2", "198.51.100.1", "198.51.100.2"]
# On this node, on another one, of the node itself, and a cluster IP that somebody wrote into a slice.
PLACES = {"10.244.1.1": build.NODE, "10.244.1.2": build.NODE, "10.244.2.1": "node2", "10.244.2.2": "node2"}
PLACES |= {NODE_IP: build.NODE, "10.96.0.2": ""}
PORTS = [("http", "tcp", 80), ("dns", "udp", 80), ("https", "tcp", 443)]
NODE_PORTS = [30080, 30443, 8080]
NAMES = ["a", "b", "c"]
SETTINGS = settings(
    max_examples=int(os.environ.get("PROXYD_EXAMPLES", "60")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def several(pool: list[str], most: int = 2) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(pool), max_size=most, unique=True).map(tuple)


def port(known: tuple[str, str, int]) -> st.SearchStrategy[ServicePort]:
    name, protocol, number = known
    return st.sampled_from([0, *NODE_PORTS]).map(lambda node_port: ServicePort(name, protocol, number, node_port))


ports = st.lists(st.sampled_from(PORTS), min_size=1, max_size=3, unique=True).flatmap(
    lambda chosen: st.tuples(*map(port, chosen))
)
service = st.builds(
    Service,
    st.just(build.key("a")),
    ports=ports,
    cluster_ips=st.sampled_from(VIPS[:3]).map(lambda ip: (ip,)),
    external_ips=several([*VIPS, NODE_IP]),
    ingress_ips=several([*VIPS[1:], NODE_IP]),
    source_ranges=several(["203.0.113.0/24", "192.0.2.0/24", "10.244.0.0/16", "nonsense"]),
    affinity_seconds=st.sampled_from([0, 0, 60]),
    internal_local=st.booleans(),
    external_local=st.booleans(),
    created=st.sampled_from(["", "2026-01-01T00:00:00Z"]),
)
endpoints = st.builds(
    lambda address, **fields: Endpoint(address, node=PLACES[address] or None, **fields),
    st.sampled_from(list(PLACES)),
    ready=st.sampled_from([True, True, False]),
    serving=st.booleans(),
    terminating=st.booleans(),
    zone_hints=st.sampled_from([(), ("za",), ("zb",)]),
)
numbers = st.sampled_from([8080, 8080, 80])
slices = st.lists(st.tuples(st.lists(endpoints, max_size=4), numbers), max_size=2)
cluster = st.dictionaries(st.sampled_from(NAMES), st.tuples(service, slices), min_size=1)


def objects_of(
    made: dict[str, tuple[Service, list[tuple[list[Endpoint], int]]]],
) -> tuple[list[Service], list[EndpointSlice]]:
    """The Services with their names, and their slices."""
    pieces = [
        build.endpoint_slice(
            name,
            *found,
            name=f"{name}-{index}",
            ports=tuple(SlicePort(of, protocol, number) for of, protocol, _ in PORTS),
        )
        for name, (_, listed) in made.items()
        for index, (found, number) in enumerate(listed)
    ]
    return [replace(one, key=build.key(name)) for name, (one, _) in made.items()], pieces


node = st.fixed_dictionaries(
    {
        "local": st.sampled_from([LocalDetector(cidr="10.244.0.0/16"), LocalDetector(interface="veth*"), None]),
        "masquerade_all": st.sampled_from([False, False, True]),
        "node_port_addresses": st.sampled_from([(NODE_IP,), None, ()]),
    }
)
# Source and the interface that the packet comes in by.
ORIGINS = [
    ("10.244.1.99", "veth9"),
    ("10.244.1.1", "veth1"),
    ("10.244.2.1", "eth0"),
    ("203.0.113.9", "eth0"),
    (NODE_IP, ""),
    ("127.0.0.1", ""),
]
# Where to is either one of these, or the frontend with this number.
elsewhere = st.tuples(
    st.sampled_from([*VIPS, NODE_IP, "127.0.0.1", "10.244.2.1", "192.0.2.99"]),
    st.sampled_from([80, 443, 81, *NODE_PORTS]),
    st.sampled_from(["tcp", "udp"]),
)
asked = st.tuples(st.sampled_from(ORIGINS), st.integers(0, 50) | elsewhere)


def frontends(services: list[Service]) -> list[tuple[str, int, str]]:
    """All places where Services could be asked."""
    return [
        place
        for each in services
        for port in each.ports
        for place in (
            *((a, port.port, port.protocol) for a in (*each.cluster_ips, *each.external_ips, *each.ingress_ips)),
            *((a, port.node_port, port.protocol) for a in (NODE_IP, NODE_IP, "127.0.0.1") if port.node_port),
        )
    ]


@pytest.mark.parametrize("kind", [World, IptWorld])
def test_an_answer_is_never_wrong(kind: type[World] | type[IptWorld]) -> None:
    @SETTINGS
    @given(cluster, node, st.booleans(), st.lists(asked, min_size=10, max_size=30))
    def check(made: Any, on: dict[str, Any], localhost: bool, questions: list[Any]) -> None:
        if kind is World:
            on = {**on, "localhost_node_ports": localhost}
        services, pieces = objects_of(made)
        world = kind(*services, *pieces, **on)
        world.sync()
        view, places = view_of(world), frontends(services)
        for (source, interface), to in questions:
            destination, port, protocol = places[to % len(places)] if isinstance(to, int) else to
            answer = explain_packet(view, packet(source, destination, port, protocol, interface), verifiable=True)
            event(answer.verdict)
            asked = Packet(source, destination, port, protocol, interface)
            assert told(answer) == met(world, asked), (asked, answer)
            assert answer.written is not None
            assert is_written(world, answer.written), (asked, answer)

    check()


def test_what_the_node_sends_to_itself_meets_source_ranges_with_the_address_of_the_endpoint_too() -> None:
    both, ranged = build.service("a"), build.service("c", ip="10.96.0.9", ingress_ips=(NODE_IP,))
    ranged = replace(ranged, source_ranges=("203.0.113.0/24",))
    http = (SlicePort("http", "tcp", 80),)
    world = World(
        both,
        ranged,
        build.endpoint_slice("a", "10.244.1.1", NODE_IP, ports=http),
        build.endpoint_slice("c", "10.244.1.5", ports=http),
    )
    world.sync()
    asked = (NODE_IP, "10.96.0.1", 80, "tcp", "")
    answer = explain_packet(view_of(world), packet(*asked), verifiable=True)
    assert answer.verdict is Verdict.PARTLY
    assert told(answer) == met(world, Packet(*asked))
