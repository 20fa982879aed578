"""A sync loop in a thread of its own, on a store and a kernel in memory. Every wait ends with what it is for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from proxyd.kube.store import Store
from proxyd.model import FAMILIES, Cause, Family, Finding, Node, NodeSettings
from proxyd.nft.drift import Drift
from proxyd.sync.loop import SyncLoop, Timing
from proxyd.sync.nft.reconcile import NftReconciler
from proxyd.sync.status import FamilyStatus, PassResult
from tests import build
from tests.fakes.packets import Packet, distribution
from tests.fakes.ruleset import FakeRuleset
from tests.world import HOST, Object

V4, V6 = FAMILIES
SOON = 20.0
TIMING = Timing(min_sync_period=0.01, sync_period=0.05, node_wait=SOON, cleanup_after=0.01)
# It is never quiet: what nothing uses is deleted only because it has waited for long.
NEVER_QUIET = TIMING._replace(cleanup_after=3600.0)


class Recorder:
    """An Observer that keeps everything it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.asked = 0
        self.passes: list[PassResult] = []
        self.latencies: list[tuple[Family, float]] = []
        self.written_after: list[tuple[Family, Cause, float]] = []
        self.cleanups_failed: list[Family] = []
        self.findings: list[Finding] = []
        self.repairs: list[tuple[Family, str, int]] = []

    def queued(self) -> None:
        with self.changed:
            self.asked += 1
            self.changed.notify_all()

    def pass_done(self, result: PassResult) -> None:
        self._note(self.passes, result)

    def programmed(self, family: Family, seconds: float) -> None:
        self._note(self.latencies, (family, seconds))

    def written(self, family: Family, cause: Cause, seconds: float) -> None:
        self._note(self.written_after, (family, cause, seconds))

    def cleanup_failed(self, family: Family) -> None:
        self._note(self.cleanups_failed, family)

    def repaired(self, family: Family, how: str, edits: int) -> None:
        self._note(self.repairs, (family, how, edits))

    def found(self, finding: Finding) -> None:
        self._note(self.findings, finding)

    def _note(self, to: list[Any], what: object) -> None:
        with self.changed:
            to.append(what)
            self.changed.notify_all()


class Daemon:
    """A loop in a thread of its own, on a store and a kernel in memory."""

    def __init__(
        self,
        store: Store,
        timing: Timing = TIMING,
        more: Callable[[], list[Finding]] = list,
        ruleset: FakeRuleset | None = None,
        grace: float | None = None,
    ) -> None:
        self.store, self.ruleset, self.observer = store, ruleset or FakeRuleset(), Recorder()
        self.nodes: list[Node | None] = []
        self.trouble: dict[Family, Exception] = {}
        grace = timing.cleanup_after if grace is None else grace
        reconcilers = [
            NftReconciler(each, self.ruleset, store.service, self.stopping, grace=grace) for each in FAMILIES
        ]
        self.loop = SyncLoop(store, reconcilers, self.settings, self.observer, timing, more_findings=more)
        self.thread = threading.Thread(target=self.loop.run, name="sync")
        self.stopped = threading.Event()

    def stopping(self) -> bool:
        return self.stopped.is_set()

    def settings(self, family: Family, node: Node | None) -> NodeSettings:
        self.nodes.append(node)
        if family in self.trouble:
            raise self.trouble[family]
        return build.settings(family, zone=node.zone if node else "", localhost_node_ports=True)

    def stop(self) -> None:
        self.stopped.set()
        self.loop.stop()
        self.thread.join(SOON)
        assert not self.thread.is_alive()

    def until(self, happened: Callable[[], bool]) -> None:
        """Waits until something is so; it is looked at whenever the loop tells something, and now and then."""
        end = time.monotonic() + SOON
        with self.observer.changed:
            while not happened():
                assert time.monotonic() < end, "it never happened"
                self.observer.changed.wait(0.02)

    def put(self, *objects: Object) -> None:
        for each in objects:
            intake: Any = {
                "Service": self.store.services,
                "EndpointSlice": self.store.slices,
                "Node": self.store.nodes,
            }[type(each).__name__]
            intake.put(build.decoded(each))

    def status(self, family: Family = V4) -> FamilyStatus:
        (status,) = (each for each in self.loop.status.families if each.family is family)
        return status

    def serves(self, destination: str, *endpoints: str) -> bool:
        source = "203.0.113.9" if "." in destination else "2001:db8:9::9"
        outcomes = distribution(self.ruleset, Packet(source, destination, 80), HOST)
        return sorted(each.destination[0] for _, each in outcomes if each.verdict == "accept") == sorted(endpoints)


@contextmanager
def running(
    *objects: Object,
    store: Store | None = None,
    timing: Timing = TIMING,
    more: Callable[[], list[Finding]] = list,
    grace: float | None = None,
) -> Iterator[Daemon]:
    """Runs a loop on a store with these objects; ends it whatever happens."""
    daemon = Daemon(store if store is not None else build.store(build.node(), *objects), timing, more, grace=grace)
    daemon.thread.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def edit_and_wait(daemon: Daemon) -> list[float | None]:
    """Somebody edits our table, three times; gives how long the loop meant to wait each time it waited for a change."""
    waits: list[float | None] = []
    wait = daemon.store.wait

    def noted(timeout: float | None) -> bool:
        waits.append(timeout)
        return wait(timeout)

    daemon.store.wait = noted  # type: ignore[method-assign]
    for number in range(1, 4):
        daemon.loop.drifted(Drift(V4, "somebody edits", elements={("g1/nodeport-ips", "203.0.113.77"): False}))
        daemon.until(lambda number=number: len(waits) >= number)  # type: ignore[misc]
    return waits


def both_families(name: str = "web", number: int = 1, endpoints: int = 2) -> list[Object]:
    """A Service of both families, with a slice for each."""
    return [
        build.service(name, cluster_ips=(f"10.96.0.{number}", f"2001:db8:96::{number}")),
        build.endpoint_slice(name, *(f"10.244.{number}.{i + 1}" for i in range(endpoints))),
        build.endpoint_slice(
            name, *(f"fd00:10:244:{number}::{i + 1}" for i in range(endpoints)), name=f"{name}-6", family=V6
        ),
    ]


WEB, *SLICES = both_families()
SERVED = ("10.96.0.1", "10.244.1.1", "10.244.1.2")
