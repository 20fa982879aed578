"""A packet that a commit overtakes on its way meets what held before the change, or what holds after it, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from proxyd.model import Endpoint
from tests import build
from tests.fakes.packets import Outcome, Packet, overtaken
from tests.sync.clusters import V4
from tests.world import HOST, ORIGINS, Object, World

BALANCER, EXTERNAL, NODE_PORT = "203.0.113.10", "198.51.100.1", 30080
FRONTENDS = (("10.96.0.1", 80), (BALANCER, 80), (EXTERNAL, 80), (build.NODE_IP[V4], NODE_PORT))
HERE, AWAY, SECOND = build.endpoint("10.244.1.2"), build.endpoint("10.244.2.2", "node2"), build.endpoint("10.244.1.3")
ENDPOINTS: tuple[tuple[Endpoint, ...], ...] = ((), (AWAY,), (HERE,), (HERE, AWAY), (HERE, AWAY, SECOND))
POLICIES = ({}, {"affinity_seconds": 60}, {"external_local": True}, {"internal_local": True})
RANGES = ((), ("203.0.113.0/24",), ("203.0.113.0/25", "198.51.100.0/24"), ("198.51.100.0/24",))
Met = tuple[str, tuple[str, int], bool]


def web(endpoints: tuple[Endpoint, ...], policy: dict[str, object]) -> list[Object]:
    service = build.service(
        "web", ports=(build.port(node_port=NODE_PORT),), ingress_ips=(BALANCER,), external_ips=(EXTERNAL,), **policy
    )
    return [service, build.endpoint_slice("web", *endpoints)]


def met(outcomes: set[Outcome]) -> set[Met]:
    return {(each.verdict, each.destination, each.masqueraded and each.verdict == "accept") for each in outcomes}


def odd(world: World, *changes: list[Object]) -> Iterator[tuple[str, str, Met]]:
    """What packets meet in the moments of these changes that holds neither before nor after the one in question."""
    for change in changes:
        tables = [world.ruleset.tables[V4]]
        watch = lambda seen=tables: seen.append(world.ruleset.tables[V4])  # noqa: E731
        world.ruleset.watchers.append(watch)
        world.put(*change)
        world.sync()
        world.ruleset.watchers.remove(watch)
        for (address, port), (by, (source, iif)) in product(FRONTENDS, ORIGINS[V4].items()):
            packet = Packet(source, address, port, "tcp", iif)
            known = met(overtaken(tables[0], tables[0], packet, HOST))
            known |= met(overtaken(tables[-1], tables[-1], packet, HOST))
            for old, new in pairwise(tables):
                for each in met(overtaken(old, new, packet, HOST)) - known:
                    yield address, by, each


@pytest.mark.parametrize("policy", POLICIES, ids=lambda each: next(iter(each), "plain"))
def test_where_endpoints_come_and_go(policy: dict[str, object]) -> None:
    for before, after in product(ENDPOINTS, repeat=2):
        world = World(*web(before, policy))
        world.settle()
        assert list(odd(world, web(after, policy))) == [], (before, after)


@pytest.mark.parametrize("endpoints", ENDPOINTS, ids=len)
def test_where_policies_change(endpoints: tuple[Endpoint, ...]) -> None:
    for before, after in product(POLICIES, repeat=2):
        world = World(*web(endpoints, before))
        world.settle()
        assert list(odd(world, web(endpoints, after))) == [], (before, after)


@pytest.mark.parametrize("endpoints", ENDPOINTS, ids=len)
def test_where_source_ranges_change(endpoints: tuple[Endpoint, ...]) -> None:
    for before, after in product(RANGES, repeat=2):
        world = World(*web(endpoints, {"source_ranges": before}))
        world.settle()
        assert list(odd(world, web(endpoints, {"source_ranges": after}))) == [], (before, after)


def test_where_a_service_with_source_ranges_goes() -> None:
    for ranges in RANGES:
        world = World(*web((HERE, AWAY), {"source_ranges": ranges}))
        world.settle()
        assert list(odd(world, web((), {"source_ranges": ranges}))) == [], ranges


def test_where_the_only_endpoint_of_a_service_with_affinity_is_replaced_by_another_one_after_the_other() -> None:
    affinity = {"affinity_seconds": 60}
    world = World(*web((HERE,), affinity))
    world.settle()
    assert (
        list(odd(world, web((), affinity), web((SECOND,), affinity), web((), affinity), web((HERE,), affinity))) == []
    )
