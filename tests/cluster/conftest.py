"""The cluster that all tests here share, and a node's rules written in process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyd.kernel.libnftables import LibNftables
from proxyd.model import EndpointSlice, Family, Service
from proxyd.sync.reconcile import Reconciler
from tests import build
from tests.cluster.flows import Bench
from tests.cluster.manifests import manifest
from tests.cluster.namespaces import inside
from tests.netns import forget_flows, why_not
from tests.program import write
from tests.topology import Topology


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/cluster/" in str(item.path):
            item.add_marker(pytest.mark.kernel)


@pytest.fixture(scope="session")
def world() -> Iterator[Topology]:
    """A node, pods here and elsewhere, clients outside: all of them namespaces."""
    if reason := why_not():
        pytest.skip(reason)
    with Topology() as topology:
        yield topology


class Rules:
    """The node's rules, written by proxyd's own parts in this process."""

    def __init__(self, topology: Topology) -> None:
        self.node = topology.node
        self._nft = inside(self.node, LibNftables)
        self._served: object = None
        self._reconcilers: list[tuple[Reconciler, Any]] = []

    def serve(self, *objects: Service | EndpointSlice, **settings: Any) -> None:
        """Takes all rules away, and writes those for these objects; ``settings`` are fields of NodeSettings."""
        self.node.run("nft", "flush", "ruleset")
        # One that was tracked without rules would be let through untranslated again.
        inside(self.node, forget_flows)
        self._served = None
        self._store = store = build.store(*objects)
        store.take()
        self._reconcilers = [
            (Reconciler(family, self._nft, store.service), build.settings(family, **settings)) for family in Family
        ]
        for reconciler, of_family in self._reconcilers:
            reconciler.sync(store.keys(), store.keys, of_family)
        self._served = (objects, settings)

    def ensure(self, *objects: Service | EndpointSlice, **settings: Any) -> None:
        """As ``serve``; does nothing where exactly this is being served. For tests that only look."""
        if self._served != (objects, settings):
            self.serve(*objects, **settings)

    def change(self, *objects: Service | EndpointSlice, gone: Iterable[Service | EndpointSlice] = ()) -> None:
        """Takes objects as they are now, and others away, and writes what follows in one pass, which must just work."""
        for each in (*objects, *gone):
            intake: Any = self._store.services if isinstance(each, Service) else self._store.slices
            decoded = build.decoded(each)
            if each in objects:
                intake.put(decoded)
            else:
                intake.remove(decoded.key)
        self._served = None
        dirty = self._store.take().services
        for reconciler, of_family in self._reconcilers:
            reconciler.sync(dirty, self._store.keys, of_family)
            assert not reconciler.refusals, "the kernel refused a transaction"

    def forget_served(self) -> None:
        """Has the next ``ensure`` write; for tests that took rules away themselves."""
        self._served = None

    def cleanup(self) -> None:
        """Deletes what nothing uses any more."""
        for reconciler, _ in self._reconcilers:
            reconciler.cleanup()

    def write_anew(self) -> None:
        """Writes everything once more, beside what is there, as after a restart."""
        for reconciler, of_family in self._reconcilers:
            reconciler.forget()
            reconciler.sync(self._store.keys(), self._store.keys, of_family)
            reconciler.cleanup()


@pytest.fixture(scope="module")
def rules(world: Topology) -> Iterator[Rules]:
    """Rules that tests of a module write; gone after it."""
    yield Rules(world)
    world.node.run("nft", "flush", "ruleset")


@pytest.fixture
def node(world: Topology) -> Iterator[Topology]:
    """The cluster, with a node that has no rules before and after, and knows of no connections."""
    world.node.run("nft", "flush", "ruleset")
    # Node ports on 127.0.0.1 in iptables mode need it, and nobody sets it back.
    world.node.run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")
    inside(world.node, forget_flows)
    yield world
    world.node.run("nft", "flush", "ruleset")


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
def bench(world: Topology, tmp_path: Path) -> Iterator[Bench]:
    world.node.run("nft", "flush", "ruleset")
    inside(world.node, forget_flows)
    made = Bench(world, tmp_path)
    yield made
    made.stop()
    world.node.run("nft", "flush", "ruleset")
    inside(world.node, forget_flows)
