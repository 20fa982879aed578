"""Small clusters for passes over one family, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxyd.model import FAMILIES, EndpointSlice, Service
from proxyd.nft.layout import generation_of
from proxyd.nft.objects import Transaction
from tests import build
from tests.world import Object, World, even

V4, V6 = FAMILIES


def cluster(*names: str, endpoints: int = 2, **fields: Any) -> list[Object]:
    """Services 10.96.0.1, .2, ... with these names, each with endpoints 10.244.<its number>.1, .2, ..."""
    built: list[Object] = []
    for number, name in enumerate(names, 1):
        built.append(build.service(name, ip=f"10.96.0.{number}", **fields))
        built.append(build.endpoint_slice(name, *(f"10.244.{number}.{i + 1}" for i in range(endpoints))))
    return built


def served(world: World, number: int, endpoints: int = 2) -> bool:
    """Whether the Service with this number of ``cluster`` leads evenly to all of its endpoints."""
    return world.reaches(f"10.96.0.{number}") == even(*(f"10.244.{number}.{i + 1}" for i in range(endpoints)))


def touches(address: str) -> Callable[[Transaction], bool]:
    """Tells transactions that add anything for a destination."""
    return lambda transaction: any(each.key.startswith(f"{address} ") for each in transaction.add_elements)


def after_each_commit(world: World, note: Callable[[], object]) -> list[Any]:
    """Collects what ``note`` gives after each commit from now on."""
    noted: list[Any] = []
    world.ruleset.watchers.append(lambda: noted.append(note()))
    return noted


def generations(world: World) -> set[int]:
    """The generations that anything in the kernel belongs to."""
    contents = world.ruleset.contents(world.family)
    found = {generation_of(name) for name in (*contents.chains, *contents.containers)}
    return {each for each in found if each is not None}


def with_node_port(name: str, node_port: int, ip: str) -> Service:
    """A Service with one node port."""
    return build.service(name, ip=ip, ports=(build.port(node_port=node_port),))


def slices(*names: str) -> list[EndpointSlice]:
    """A slice for each of these Services, with one endpoint 10.244.<number>.1."""
    return [build.endpoint_slice(name, f"10.244.{n}.1") for n, name in enumerate(names, 1)]
