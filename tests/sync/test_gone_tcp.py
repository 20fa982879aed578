"""Which TCP connections are cut where that is asked for (ResetGoneTCP): to endpoints that are in no slice any more.

A frontend may pass from one Service to another; that takes no endpoint out of its slice.
"""

from __future__ import annotations

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.desired.flows import Live
from proxyd.model import Service, SlicePort
from tests import build
from tests.world import Object, World

SHARED = FrontendKey("203.0.113.10", "tcp", 80)
NODE_PORT = FrontendKey(build.NODE_IP[build.Family.IPV4], "tcp", 30080)
A, B, C = "10.244.1.1", "10.244.1.2", "10.244.1.3"


def web(name: str, number: int, *, shared: bool = False, **fields: object) -> Service:
    return build.service(name, ip=f"10.96.0.{number}", external_ips=(SHARED.address,) if shared else (), **fields)


def live(*addresses: str, port: int = 8080) -> Live:
    return frozenset(Backend(address, port) for address in addresses)


def started(*objects: Object) -> World:
    """A world after its first pass, of which nothing is told any more."""
    world = World(*objects, reset_gone_tcp=True)
    world.sync()
    world.cleaned.clear()
    return world


def keeps(world: World, key: FrontendKey = SHARED) -> Live:
    """Writes what changed; gives the endpoints of a frontend whose connections stay, of all that is handed over."""
    world.sync()
    found = world.cleaned[-1][key]
    world.cleaned.clear()
    return found


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_a_frontend_that_moves_takes_no_connection_from_the_endpoints_it_had(first: str, second: str) -> None:
    world = started(
        web(first, 1, shared=True), build.endpoint_slice(first, A), web(second, 2), build.endpoint_slice(second, B)
    )
    world.put(web(first, 1), web(second, 2, shared=True))
    assert keeps(world) == live(A, B)


def test_nor_does_one_that_was_nobodys_for_a_while() -> None:
    world = started(web("a", 1, shared=True), build.endpoint_slice("a", A), web("b", 2), build.endpoint_slice("b", B))
    world.put(web("a", 1))
    world.sync()
    world.put(web("b", 2, shared=True))
    assert keeps(world) == live(A, B)


def test_nor_a_conflict_that_is_lost() -> None:
    world = started(web("a", 1, shared=True), build.endpoint_slice("a", A), build.endpoint_slice("b", B))
    world.put(web("b", 2, shared=True, created="2020-01-01T00:00:00Z"))
    assert keeps(world) == live(A, B)


def test_nor_a_service_that_is_deleted_while_its_slices_are_there() -> None:
    world = started(web("a", 1, shared=True), build.endpoint_slice("a", A), web("b", 2), build.endpoint_slice("b", B))
    world.remove(web("a", 1))
    world.put(web("b", 2, shared=True))
    assert keeps(world) == live(A, B)
    world.remove(build.endpoint_slice("a", A))
    assert keeps(world) == live(B)


def test_an_endpoint_that_goes_from_the_slices_of_a_former_owner_is_gone() -> None:
    world = started(
        web("a", 1, shared=True), build.endpoint_slice("a", A, C), web("b", 2), build.endpoint_slice("b", B)
    )
    world.put(web("a", 1), web("b", 2, shared=True))
    assert keeps(world) == live(A, B, C)
    world.put(build.endpoint_slice("a", A))
    assert keeps(world) == live(A, B)


def test_one_that_goes_while_a_frontend_moves_is_gone() -> None:
    world = started(
        web("a", 1, shared=True), build.endpoint_slice("a", A, C), web("b", 2), build.endpoint_slice("b", B)
    )
    world.put(web("a", 1), build.endpoint_slice("a", C), web("b", 2, shared=True))
    assert keeps(world) == live(B, C)


def test_a_frontend_that_comes_back_has_only_those_who_had_it() -> None:
    world = started(web("a", 1, shared=True), build.endpoint_slice("a", A), web("b", 2), build.endpoint_slice("b", B))
    world.put(web("a", 1), web("b", 2, shared=True))
    world.sync()
    world.remove(build.endpoint_slice("b", B))
    world.put(web("a", 1, shared=True), web("b", 2))
    assert keeps(world) == live(A)
    world.put(build.endpoint_slice("b", C))
    world.sync()
    assert not any(SHARED in each for each in world.cleaned)


def test_a_service_that_changes_nothing_about_it_has_nothing_handed_over() -> None:
    world = started(web("a", 1, shared=True), build.endpoint_slice("a", A))
    world.put(web("a", 1, shared=True, created="2026-02-02T00:00:00Z"))
    world.sync()
    assert world.cleaned == []


def test_node_ports_move_likewise() -> None:
    ports = (build.port(node_port=30080),)
    world = started(web("a", 1, ports=ports), build.endpoint_slice("a", A), web("b", 2), build.endpoint_slice("b", B))
    world.put(web("a", 1), web("b", 2, ports=ports))
    assert keeps(world, NODE_PORT) == live(A, B)


def test_a_frontend_that_passes_to_another_port_of_its_service_keeps_what_is_in_slices() -> None:
    both = (SlicePort("http", "tcp", 8080), SlicePort("admin", "tcp", 9090))
    world = started(build.service("a"), build.endpoint_slice("a", A, ports=both))
    world.put(build.service("a", ports=(build.port(80, "admin"),)))
    assert keeps(world, FrontendKey("10.96.0.1", "tcp", 80)) == live(A) | live(A, port=9090)


def test_what_was_had_is_forgotten_with_the_last_slice() -> None:
    world = started(web("b", 2, shared=True), build.endpoint_slice("b", B))
    former = world.reconciler._services.flows._former
    for number in range(5):
        name = f"old{number}"
        world.put(web(name, 9, ports=(build.port(), build.port(81, "more"))), build.endpoint_slice(name, A))
        world.sync()
        world.remove(web(name, 9))
        world.sync()
        assert former
        world.remove(build.endpoint_slice(name, A))
        world.sync()
        assert not former
