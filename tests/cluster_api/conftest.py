"""One real control plane for all tests here, nodes with their proxyd, and things that are served."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.controlplane import objects
from tests.controlplane.api import Api, Object
from tests.controlplane.namespaces import own_namespace
from tests.controlplane.outpost import ENDPOINT, Outpost, outpost
from tests.controlplane.plane import Plane, programs
from tests.netns import why_not
from tests.topology import V4

HERE = str(Path(__file__).parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """etcd and an API server, with the roles of deploy/ and the Nodes."""
    if reason := why_not():
        pytest.skip(reason)
    try:
        found = programs()
    except LookupError as missing:
        pytest.skip(str(missing))
    with own_namespace() as host, Plane(host, tmp_path_factory.mktemp("plane"), found) as made:
        made.admin.apply(objects.node("node1"))
        made.admin.apply(objects.node("node2"))
        yield made


@pytest.fixture(scope="session")
def api(plane: Plane) -> Api:
    """The API as its administrator sees it."""
    return plane.admin


@pytest.fixture
def here(plane: Plane, tmp_path: Path) -> Iterator[Outpost]:
    """A node with its proxyd, in fair weather."""
    with outpost(plane, tmp_path) as made:
        yield made


class Offers:
    """Services and their endpoints, made while a test runs and gone after it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made: list[Object] = []

    def __call__(self, name: str, *endpoints: str) -> str:
        """A Service, served by the endpoint of every outpost unless told otherwise; gives its address."""
        return self.keep(objects.service(name), objects.endpoint_slice(name, endpoints or (ENDPOINT[V4],)))

    def keep(self, *manifests: Object) -> str:
        """Creates objects; gives the address of the first."""
        self._made += manifests
        made = [self._api.create(manifest) for manifest in manifests]
        address: str = made[0].get("spec", {}).get("clusterIP", "")
        return address

    def withdraw(self) -> None:
        """Deletes all of it."""
        self._api.delete_all(self._made)
        self._made.clear()


@pytest.fixture
def offer(api: Api) -> Iterator[Offers]:
    """Makes Services: ``offer("web")`` gives the address of one."""
    offers = Offers(api)
    with contextlib.ExitStack() as stack:
        stack.callback(offers.withdraw)
        yield offers


Offer = Callable[..., str]
