"""Services that have every kind of frontend, and ways to ask who answers: what all tests of traffic use."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from proxyd.model import Endpoint, EndpointSlice, Family, Service, SlicePort
from tests import build
from tests.topology import ADDRESSES, NODE, V4, V6, Topology

VIP = {V4: "10.96.0.10", V6: "fd00:10:96::10"}
LOAD_BALANCER = {V4: "203.0.113.10", V6: "2001:db8:113::10"}
EXTERNAL = {V4: "203.0.113.20", V6: "2001:db8:113::20"}
NODE_PORT = 30080
FRONTENDS = ("cluster ip", "node port", "load balancer", "external ip")
# Where tests connect from: a pod of the node that is no endpoint, the node itself, a client outside.
PLACES = {"pod": "pod2", "node": "node", "outside": "client1"}
# Connections after which an endpoint out of two that did not answer is not one (chance: 2 in 10^9).
MANY = 30
# To a datagram of the node itself, a refusal is an error of sending it.
REFUSED = {"refused", "prohibited"}
# How long silence must last to be taken for one.
SILENCE = 0.3
PATIENCE = 10.0

FAMILIES = pytest.mark.parametrize("family", Family)
EVERYWHERE = pytest.mark.parametrize("place", PLACES)
PROTOCOLS = pytest.mark.parametrize("protocol", ["tcp", "udp"])


class Target(NamedTuple):
    address: str
    port: int


def target(frontend: str, family: Family, port: int = 80) -> Target:
    """Where to connect to for a frontend of ``service``."""
    addresses = {"cluster ip": VIP, "load balancer": LOAD_BALANCER, "external ip": EXTERNAL}
    if frontend == "node port":
        return Target(NODE[family], NODE_PORT)
    return Target(addresses[frontend][family], port)


def service(name: str = "web", **fields: Any) -> Service:
    """A dual-stack Service with every kind of frontend, unless told otherwise."""
    defaults: dict[str, Any] = {
        "cluster_ips": tuple(VIP.values()),
        "external_ips": tuple(EXTERNAL.values()),
        "ingress_ips": tuple(LOAD_BALANCER.values()),
        "ports": (build.port(node_port=NODE_PORT),),
    }
    return build.service(name, **{**defaults, **fields})


def slices(
    *pods: str,
    name: str = "web",
    conditions: dict[str, Any] | None = None,
    ports: tuple[SlicePort, ...] = (SlicePort("http", "tcp", 8080),),
) -> tuple[EndpointSlice, ...]:
    """Slices of both families with these pods; pod1 and pod2 are on the node, the others are elsewhere."""

    def of(pod: str, family: Family) -> Endpoint:
        node = build.NODE if pod in ("pod1", "pod2") else "node2"
        return Endpoint(ADDRESSES[pod][family], node=node, **(conditions or {}).get(pod, {}))

    return tuple(
        build.endpoint_slice(
            name, *(of(pod, family) for pod in pods), name=f"{name}-{family}", family=family, ports=ports
        )
        for family in Family
    )


def names(
    world: Topology, place: str, to: Target, protocol: str = "tcp", count: int = MANY, **options: Any
) -> set[str]:
    """Who answers connections from somewhere, or what happens instead."""
    return {answer.by for answer in world.ask(PLACES.get(place, place), *to, protocol, count, **options)}


def each(world: Topology, to: Target, expected: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Who answers each of these hosts; all ask at once, since some will wait for an answer in vain."""

    def ask(host: str) -> set[str]:
        return names(world, host, to, count=1, timeout=SILENCE if expected[host] == {"timeout"} else PATIENCE)

    with ThreadPoolExecutor(len(expected)) as pool:
        return dict(zip(expected, pool.map(ask, expected), strict=True))
