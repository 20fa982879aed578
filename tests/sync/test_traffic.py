"""Totals from successive readings of counters that begin anew: what survives, what is told; nothing counts twice."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.kernel.nft.counters import CountersError
from proxyd.model import Family, Service
from proxyd.nft.objects import Element
from proxyd.sync.traffic import KEPT, TOP, Limits, ServiceTraffic, Totals
from tests import build
from tests.fakes.counters import FakeCounters
from tests.fakes.ruleset import FakeRuleset
from tests.world import Object, World

V4 = Family.IPV4
A, B, C = (Backend(f"10.244.1.{n}", 8080) for n in (1, 2, 3))


class Node:
    """A node in memory, connections to it, and the totals that are read from it."""

    def __init__(self, *objects: Object, limits: Limits = TOP, ruleset: FakeRuleset | None = None) -> None:
        self.ruleset = ruleset or FakeRuleset()
        self.counters = FakeCounters(self.ruleset)
        # As at a start: before anything is written.
        self.totals = Totals(V4, limits, self.counters.generations(V4))
        self.now = 1000.0
        self.world = World(*objects, ruleset=self.ruleset)
        self.world.settle()

    def connect(self, address: str, *endpoints: Backend) -> None:
        """A connection to port 80 of an address, to each of these endpoints."""
        for endpoint in endpoints:
            chosen = f"{endpoint.address} . {endpoint.port}"
            generation = max(self.counters.generations(V4))
            self._pass(f"g{generation}/service-ips", f"{address} . tcp . 80")
            elements = self.ruleset.elements(V4)[f"g{generation}/endpoints-tcp"]
            (key,) = (key for key, value in elements.items() if key.startswith(f"{address} ") and value == chosen)
            self._pass(f"g{generation}/endpoints-tcp", key)

    def _pass(self, container: str, key: str) -> None:
        counted = self.ruleset.tables[V4].containers[container]
        (stored,) = (each.key for each in counted.entries.values() if each.element.key == key)
        self.ruleset.has_passed(V4, Element(container, key), counted.counted.get(stored, 0) + 1)

    def read(self) -> dict[str, ServiceTraffic]:
        self.now += 10
        self.totals.read(self.counters, self.now)
        return {each.service: each for each in self.totals.snapshot()}

    def connections(self) -> dict[str, int]:
        return {name: each.connections for name, each in self.read().items()}

    def endpoints(self, name: str = "web") -> dict[Backend, int]:
        return dict(self.read()[name].endpoints)


def web(*endpoints: Backend, name: str = "web", ip: str = "10.96.0.1", **fields: Any) -> list[Object]:
    return [build.service(name, ip=ip, **fields), build.endpoint_slice(name, *(each.address for each in endpoints))]


def many(count: int) -> list[Object]:
    return [each for n in range(1, count + 1) for each in web(A, name=f"s{n}", ip=f"10.96.0.{n}")]


def test_connections_are_counted_from_one_reading_to_the_next() -> None:
    node = Node(*web(A, B))
    assert node.connections() == {"web": 0}
    node.connect("10.96.0.1", A, A, B)
    assert node.connections() == {"web": 3}
    assert node.connections() == {"web": 3}
    node.connect("10.96.0.1", B)
    (told,) = node.read().values()
    assert told == ServiceTraffic("default", "web", "http", "tcp", 4, {A: 2, B: 2})


def test_the_frontends_of_a_service_are_added_up() -> None:
    node = Node(*web(A, external_ips=("198.51.100.1",)))
    node.connect("10.96.0.1", A)
    node.connect("198.51.100.1", A, A)
    node.read()
    assert node.connections() == {"web": 3}
    assert node.endpoints() == {A: 3}


@pytest.mark.parametrize("before", [1, 5])
@pytest.mark.parametrize("after", [1, 5])
def test_another_number_of_endpoints_adds_the_element_anew_and_the_total_goes_on(before: int, after: int) -> None:
    node = Node(*web(A))
    node.connect("10.96.0.1", *[A] * before)
    node.read()
    node.world.put(*web(A, B))
    node.world.sync()
    node.connect("10.96.0.1", *[A] * after)
    assert node.connections() == {"web": before + after}


def test_an_element_that_went_and_came_back_between_two_readings_has_begun_anew() -> None:
    node = Node(*web(A))
    node.read()
    node.connect("10.96.0.1", *[A] * 5)
    node.read()
    node.world.put(*web(A, B))
    node.world.sync()
    node.world.put(*web(A))
    node.world.sync()
    node.connect("10.96.0.1", A, A)
    assert node.connections() == {"web": 7}


@pytest.mark.parametrize("before", [1, 5])
@pytest.mark.parametrize("after", [1, 5])
def test_an_endpoint_that_moves_to_another_place_keeps_its_total(before: int, after: int) -> None:
    node = Node(*web(A, B, C))
    node.read()
    node.connect("10.96.0.1", *[C] * before)
    node.read()
    node.world.put(*web(B, C))
    node.world.sync()
    node.connect("10.96.0.1", *[C] * after)
    assert node.endpoints() == {B: 0, C: before + after}


@pytest.mark.parametrize("before", [1, 5])
@pytest.mark.parametrize("after", [1, 5])
def test_totals_survive_everything_written_anew(before: int, after: int) -> None:
    node = Node(*web(A))
    node.read()
    node.connect("10.96.0.1", *[A] * before)
    node.read()
    node.world.reconciler.forget()
    node.world.sync()
    # Until the old generation is deleted there are two.
    assert node.connections() == {"web": before}
    node.world.settle()
    node.connect("10.96.0.1", *[A] * after)
    assert node.connections() == {"web": before + after}
    assert node.endpoints() == {A: before + after}


@pytest.mark.parametrize("before", [1, 5])
def test_what_was_counted_for_another_process_is_not_told(before: int) -> None:
    old = Node(*web(A))
    old.connect("10.96.0.1", *[A] * before)
    new = Node.__new__(Node)
    new.ruleset, new.now = old.ruleset, old.now
    new.counters = FakeCounters(new.ruleset)
    new.totals = Totals(V4, TOP, new.counters.generations(V4))
    assert new.connections() == {"web": 0}
    assert new.endpoints() == {A: 0}
    # What the old rules count until they are replaced does count.
    new.connect("10.96.0.1", A)
    assert new.connections() == {"web": 1}
    new.world = World(*web(A), ruleset=new.ruleset)
    new.world.settle()
    new.connect("10.96.0.1", A, A)
    assert new.connections() == {"web": 3}


def test_a_generation_that_has_a_number_of_before_is_not_taken_for_an_old_one() -> None:
    first = Node(*web(A))
    node = Node(*web(A), ruleset=first.ruleset)
    node.read()
    first.ruleset.tables.clear()
    node.read()
    node.world.reconciler.forget()
    node.world.sync()
    assert node.counters.generations(V4) == {1}
    node.connect("10.96.0.1", A, A)
    assert node.connections() == {"web": 2}


def test_a_service_without_endpoints_keeps_its_total_for_a_while() -> None:
    node = Node(*web(A))
    node.connect("10.96.0.1", A, A)
    node.read()
    node.world.put(*web())
    node.world.sync()
    assert node.connections() == {"web": 2}
    node.world.put(*web(A))
    node.world.sync()
    node.connect("10.96.0.1", A)
    assert node.connections() == {"web": 3}
    node.world.remove(*web())
    node.world.sync()
    node.now += KEPT - 30
    assert node.connections() == {"web": 3}
    node.now += 60
    assert node.connections() == {}


def test_an_endpoint_that_is_gone_is_not_told_any_more() -> None:
    node = Node(*web(A, B))
    node.connect("10.96.0.1", A, B)
    node.read()
    assert node.endpoints() == {A: 1, B: 1}
    node.world.put(*web(B))
    node.world.sync()
    assert node.endpoints() == {B: 1}
    node.world.put(*web())
    node.world.sync()
    assert node.endpoints() == {}


def test_those_with_the_most_connections_are_told_and_only_their_endpoints_are_asked_for() -> None:
    node = Node(*many(5), limits=Limits(services=2, endpoints=10))
    for n, count in ((1, 1), (4, 3), (5, 2)):
        node.connect(f"10.96.0.{n}", *[A] * count)
    assert node.connections() == {"s4": 3, "s5": 2}
    node.counters.asked.clear()
    assert {name: dict(each.endpoints) for name, each in node.read().items()} == {"s4": {A: 3}, "s5": {A: 2}}
    assert {key.address for key in node.counters.asked} == {"10.96.0.4", "10.96.0.5"}
    node.connect("10.96.0.1", *[A] * 9)
    assert node.connections() == {"s1": 10, "s4": 3}
    # One that comes back has its whole total, once.
    node.connect("10.96.0.5", *[A] * 20)
    node.read()
    assert node.read()["s5"] == ServiceTraffic("default", "s5", "http", "tcp", 22, {A: 22})


def test_there_is_a_limit_to_the_endpoints_of_a_service() -> None:
    node = Node(*web(*(Backend(f"10.244.1.{n}", 8080) for n in range(1, 9))), limits=Limits(services=1, endpoints=3))
    node.read()
    assert len(node.endpoints()) == 3


@pytest.mark.parametrize("seen", [0, 1])
def test_a_reading_that_was_interrupted_loses_nothing_and_counts_nothing_twice(seen: int) -> None:
    node = Node(*many(2))
    node.connect("10.96.0.1", A, A)
    node.connect("10.96.0.2", A)
    node.read()
    node.read()
    # Totals are more than what the elements have counted from now on.
    node.world.reconciler.forget()
    node.world.settle()
    node.connect("10.96.0.1", A)
    node.connect("10.96.0.2", A)
    node.read()
    node.counters.interrupted, node.counters.seen = True, seen
    node.connect("10.96.0.2", A)
    node.read()
    node.counters.interrupted, node.counters.seen = False, None
    node.connect("10.96.0.1", A)
    assert node.connections() == {"s1": 4, "s2": 3}
    assert {name: dict(each.endpoints) for name, each in node.read().items()} == {"s1": {A: 4}, "s2": {A: 3}}


@pytest.mark.parametrize("seen", [None, 0, 1])
def test_a_reading_that_fails_halfway_counts_nothing_twice(seen: int | None) -> None:
    node = Node(*many(2))
    node.connect("10.96.0.1", A, A)
    node.read()
    node.connect("10.96.0.1", A)
    node.connect("10.96.0.2", A)
    node.counters.failing, node.counters.seen = "no", seen
    for _ in range(2):
        with pytest.raises(CountersError):
            node.read()
    node.counters.failing, node.counters.seen = "", None
    assert node.connections() == {"s1": 3, "s2": 1}


def test_ports_without_a_name_are_told_without_one() -> None:
    service: Service = build.service("web", ip="10.96.0.1", ports=(build.port(name=""),))
    slice_ = build.endpoint_slice("web", A.address, ports=(build.SlicePort("", "tcp", 8080),))
    node = Node(service, slice_)
    (told,) = node.read().values()
    assert (told.namespace, told.service, told.port) == ("default", "web", "")
