"""Addresses, ports and endpoints that move between Services, and endpoints that come and go, under live connections."""

from __future__ import annotations

import re

import pytest

from proxyd.model import EndpointSlice, Family, Service
from tests import build
from tests.cluster.cases import FAMILIES, VIP, names, slices, target
from tests.cluster.cases import service as every_frontend
from tests.cluster.manifests import Connecting
from tests.cluster.modes import EVERY_MODE, NFTABLES, Mode
from tests.cluster.rules import Rules
from tests.topology import NODE, V4, Topology

pytestmark = EVERY_MODE

EXTERNAL = "203.0.113.20"
FIRST, SECOND = 30080, 30081


def web(name: str, ip: str, node_port: int, **fields: object) -> Service:
    return build.service(name, ip=ip, ports=(build.port(node_port=node_port),), **fields)


def who(world: Topology, ip: str, port: int) -> set[str]:
    return {answer.by for answer in world.ask("client1", ip, port, count=10)}


def only(pods: dict[str, str]) -> list[EndpointSlice]:
    """A slice for each Service, with one pod."""
    return [each for name, pod in pods.items() for each in slices(pod, name=name)]


@pytest.mark.parametrize(("one", "two"), [("a", "b"), ("b", "a")])
def test_node_ports_change_places_without_a_connection_lost(world: Topology, rules: Rules, one: str, two: str) -> None:
    first, second = (one, "10.96.0.10"), (two, "10.96.0.11")
    rules.serve(web(*first, FIRST), web(*second, SECOND), *only({one: "pod1", two: "pod3"}))
    with Connecting(world, (NODE[V4], FIRST), (NODE[V4], SECOND)) as connecting:
        for _ in range(5):
            rules.change(web(*first, SECOND), web(*second, FIRST))
            assert (who(world, NODE[V4], SECOND), who(world, NODE[V4], FIRST)) == ({"pod1"}, {"pod3"})
            rules.change(web(*second, SECOND), web(*first, FIRST))
            assert (who(world, NODE[V4], SECOND), who(world, NODE[V4], FIRST)) == ({"pod3"}, {"pod1"})
    assert set(connecting.counts) == {"pod1", "pod3"}


@pytest.mark.parametrize(("giver", "taker"), [("a", "b"), ("b", "a")])
def test_an_address_and_a_node_port_pass_to_another_service_without_a_connection_lost(
    world: Topology, rules: Rules, giver: str, taker: str
) -> None:
    with_it = web(giver, "10.96.0.10", FIRST, external_ips=(EXTERNAL,))
    rules.serve(with_it, web(taker, "10.96.0.11", 0), *only({giver: "pod1", taker: "pod3"}))
    with Connecting(world, (NODE[V4], FIRST), (EXTERNAL, 80)) as connecting:
        rules.change(web(giver, "10.96.0.10", SECOND), web(taker, "10.96.0.11", FIRST, external_ips=(EXTERNAL,)))
        assert who(world, NODE[V4], FIRST) == who(world, EXTERNAL, 80) == {"pod3"}
        assert who(world, NODE[V4], SECOND) == {"pod1"}
        # Deleted, and made anew by somebody else, in one step.
        rules.change(with_it, gone=[build.service(taker)])
        assert who(world, NODE[V4], FIRST) == who(world, EXTERNAL, 80) == {"pod1"}
    assert set(connecting.counts) == {"pod1", "pod3"}


def test_a_service_made_anew_with_another_cluster_ip_keeps_its_node_port_all_the_time(
    world: Topology, rules: Rules
) -> None:
    rules.serve(web("a", "10.96.0.10", FIRST), *only({"a": "pod1"}))
    with Connecting(world, (NODE[V4], FIRST)) as connecting:
        for ip in ("10.96.0.11", "10.96.0.12", "10.96.0.10"):
            rules.change(web("a", ip, FIRST))
            assert who(world, ip, 80) == {"pod1"}
    assert set(connecting.counts) == {"pod1"}


@pytest.mark.parametrize(("old", "young"), [("a", "b"), ("b", "a")])
def test_what_two_services_claim_is_the_older_ones_and_the_others_in_the_moment_that_goes(
    world: Topology, rules: Rules, old: str, young: str
) -> None:
    claims = {"external_ips": (EXTERNAL,)}
    first = web(old, "10.96.0.10", 0, created="2026-01-10T09:00:00Z", **claims)
    second = web(young, "10.96.0.11", 0, created="2026-01-20T09:00:00Z", **claims)
    rules.serve(second, *only({old: "pod1", young: "pod3"}))
    with Connecting(world, (EXTERNAL, 80)) as connecting:
        for _ in range(2):
            assert who(world, EXTERNAL, 80) == {"pod3"}
            rules.change(first)
            assert who(world, EXTERNAL, 80) == {"pod1"}
            rules.write_anew()
            assert who(world, EXTERNAL, 80) == {"pod1"}
            assert who(world, "10.96.0.11", 80) == {"pod3"}
            connecting.more()
            rules.change(gone=[first])
    assert set(connecting.counts) == {"pod1", "pod3"}


def _chains(rules: Rules) -> set[str]:
    if rules.mode is not Mode.NFTABLES:
        return set(re.findall(r"^:(KUBE-\S+)", rules.node.run(f"{rules.mode}-save", "-t", "nat").stdout, re.MULTILINE))
    return set(re.findall(r"chain g\d+/(\S+)", rules.node.run("nft", "list", "table", "ip", "proxyd").stdout))


@pytest.mark.parametrize("affinity", [0, 60])
def test_an_endpoint_that_comes_and_goes_costs_no_connection_and_leaves_nothing_behind(
    world: Topology, rules: Rules, affinity: int
) -> None:
    service = build.service(ip=VIP[V4], affinity_seconds=affinity)
    rules.serve(service, *slices("pod1"))
    without = _chains(rules)
    rules.serve(service, *slices("pod1", "pod3"))
    at_rest = _chains(rules)
    with Connecting(world, (VIP[V4], 80)) as connecting:
        for number in range(60):
            rules.change(*slices("pod1"))
            if number % 3 == 0:
                rules.cleanup()
            rules.change(*slices("pod1", "pod3"))
            if number % 4 == 0:
                rules.cleanup()
        connecting.more()
    rules.cleanup()
    # A pin may keep the client where it is.
    assert set(connecting.counts) <= {"pod1", "pod3"}
    assert _chains(rules) == at_rest
    rules.change(*slices("pod1"))
    rules.cleanup()
    assert _chains(rules) == without


@NFTABLES
@FAMILIES
@pytest.mark.parametrize("place", ["pod", "outside"])
def test_a_packet_that_is_overtaken_by_a_shorter_list_gets_an_endpoint_that_is_left(
    world: Topology, rules: Rules, place: str, family: Family
) -> None:
    # The kernel looks things up one after the other: a packet may be sent to a chain for two endpoints, and find one.
    rules.serve(every_frontend(external_local=True), *slices("pod1", "pod2", "pod3"))
    word = {Family.IPV4: "ip", Family.IPV6: "ip6"}[family]
    for base, last in ((0, 2), (65536, 1)):
        for frontend, container in (("cluster ip", "endpoints-tcp"), ("node port", "nodeport-endpoints-tcp")):
            to = target(frontend, family)
            key = f"{to.address} . {to.port}" if frontend == "cluster ip" else str(to.port)
            if base and frontend == "cluster ip":
                continue
            rules.node.run("nft", f"delete element {word} proxyd g1/{container} {{ {key} . {base + last} }}")
            assert len(names(world, place, to)) >= 1
            assert names(world, place, to) <= {"pod1", "pod2", "pod3"}
