"""One real control plane for all tests here, nodes with their proxyd, and things that are served."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd.kernel.ipt.lock import VARIABLE
from tests.cluster_api.steps import Offers
from tests.controlplane import objects
from tests.controlplane.api import Api
from tests.controlplane.namespaces import own_namespace
from tests.controlplane.outpost import Outpost, outpost
from tests.controlplane.plane import Plane, programs
from tests.netns import why_not

HERE = str(Path(__file__).parent)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(autouse=True)
def _lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of iptables is one for the whole machine, where others may hold it."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "xtables.lock"))


@contextlib.contextmanager
def control_plane(folder: Path, *more: str) -> Iterator[Plane]:
    """A control plane with two Nodes; ``more`` are arguments of its API server. Skips where none can be."""
    if reason := why_not():
        pytest.skip(reason)
    try:
        found = programs()
    except LookupError as missing:
        pytest.skip(str(missing))
    with own_namespace() as host, Plane(host, folder, found, *more) as made:
        for name in ("node1", "node2"):
            made.admin.apply(objects.node(name))
        yield made


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """etcd and an API server, with the roles of deploy/ and the Nodes."""
    with control_plane(tmp_path_factory.mktemp("plane")) as made:
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


@pytest.fixture
def offer(api: Api) -> Iterator[Offers]:
    """Makes Services: ``offer("web")`` gives the address of one."""
    offers = Offers(api)
    yield offers
    offers.withdraw()
