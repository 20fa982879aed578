"""The cluster that all tests here share, in whatever mode they ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import modes
from tests.cluster.flows import Bench
from tests.cluster.manifests import manifest
from tests.cluster.modes import Mode, flush, prepare
from tests.cluster.rules import Rules
from tests.netns import why_not
from tests.program import write
from tests.topology import Topology


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/cluster/" in str(item.path):
            item.add_marker(pytest.mark.kernel)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    modes.parametrize(metafunc)


@pytest.fixture(scope="session")
def world() -> Iterator[Topology]:
    """A node, pods here and elsewhere, clients outside: all of them namespaces."""
    if reason := why_not():
        pytest.skip(reason)
    with Topology() as topology:
        yield topology


@pytest.fixture(scope="module")
def rules(world: Topology, request: pytest.FixtureRequest) -> Iterator[Rules]:
    """Rules that tests of a module write, in one mode; gone after it."""
    yield Rules(world, request.param)
    flush(world)


@pytest.fixture(scope="module")
def mode(request: pytest.FixtureRequest) -> Mode:
    """The mode in which proxyd is to run."""
    found: Mode = request.param
    return found


@pytest.fixture
def node(world: Topology, request: pytest.FixtureRequest) -> Iterator[Topology]:
    """The cluster, with a node that has no rules before and after, and knows of no connections.

    Where a test asks for a mode, the node has a kubelet that uses its backend of iptables.
    """
    prepare(world, _mode(request))
    yield world
    flush(world)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of manifests with one Service in it."""
    path = tmp_path / "manifests"
    path.mkdir()
    write(path, "web.yaml", manifest())
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def bench(world: Topology, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    mode = _mode(request)
    prepare(world, mode)
    made = Bench(world, tmp_path, mode)
    yield made
    made.stop()
    flush(world)


def _mode(request: pytest.FixtureRequest) -> Mode:
    found: Mode = request.getfixturevalue("mode") if "mode" in request.fixturenames else Mode.NFTABLES
    return found
