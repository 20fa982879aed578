"""The sync loop: when it writes, what it owes after failures, and what it tells. Every wait ends with what it is for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from proxyd.kube.decode import Decoded
from proxyd.kube.store import TIMES_KEPT, Store
from proxyd.model import FAMILIES, Cause, Family, Finding, Node, NodeSettings, Reason, Service
from proxyd.nft.drift import Drift
from proxyd.nft.objects import Element, Transaction
from proxyd.sync import family as family_module
from proxyd.sync import loop as loop_module
from proxyd.sync.loop import SyncLoop, Timing
from proxyd.sync.reconcile import Reconciler
from proxyd.sync.status import FamilyStatus, PassResult, Status
from tests import build
from tests.fakes.packets import Packet, distribution
from tests.fakes.ruleset import FakeRuleset
from tests.world import HOST, Object

V4, V6 = FAMILIES
SOON = 20.0
TIMING = Timing(min_sync_period=0.01, sync_period=0.05, node_wait=SOON)


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
    ) -> None:
        self.store, self.ruleset, self.observer = store, ruleset or FakeRuleset(), Recorder()
        self.nodes: list[Node | None] = []
        self.trouble: dict[Family, Exception] = {}
        reconcilers = [Reconciler(each, self.ruleset, store.service, self.stopping) for each in FAMILIES]
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
    *objects: Object, store: Store | None = None, timing: Timing = TIMING, more: Callable[[], list[Finding]] = list
) -> Iterator[Daemon]:
    """Runs a loop on a store with these objects; ends it whatever happens."""
    daemon = Daemon(store if store is not None else build.store(build.node(), *objects), timing, more)
    daemon.thread.start()
    try:
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "CLEANUP_AFTER", 0.01)
    monkeypatch.setattr(family_module, "RETRY_FIRST", 0.01)


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


# The start


def test_nothing_is_written_before_services_and_slices_are_complete() -> None:
    store = Store()
    store.nodes.replace([])
    complete_at_commits: list[bool] = []
    daemon = Daemon(store)
    # From the very first commit on.
    daemon.ruleset.watchers.append(lambda: complete_at_commits.append(store.services.synced and store.slices.synced))
    daemon.thread.start()
    try:
        daemon.put(WEB, *SLICES)
        store.services.replace([build.decoded(WEB)])
        store.slices.replace([build.decoded(each) for each in SLICES])
        daemon.until(lambda: daemon.serves(*SERVED))
    finally:
        daemon.stop()
    assert complete_at_commits
    assert all(complete_at_commits)


def test_a_stop_before_the_lists_are_complete_writes_nothing() -> None:
    with running(store=Store()) as daemon:
        daemon.put(WEB)
    assert daemon.ruleset.commits == []
    assert daemon.ruleset.listings == 0


def test_the_first_pass_waits_for_the_node() -> None:
    store = build.store(WEB, *SLICES)
    store.nodes.synced = False
    with running(store=store) as daemon:
        store.nodes.replace([build.decoded(build.node(zone="zb"))])
        daemon.until(lambda: daemon.serves(*SERVED))
    assert None not in daemon.nodes
    assert daemon.loop.status.node == build.node(zone="zb")


def test_the_first_pass_does_not_wait_for_ever_for_the_node() -> None:
    store = build.store(WEB, *SLICES)
    store.nodes.synced = False
    with running(store=store, timing=TIMING._replace(node_wait=0.01)) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
    assert daemon.nodes[0] is None


def test_without_services_both_families_are_written_and_healthy() -> None:
    with running() as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.until(lambda: all(each.last_success for each in daemon.loop.status.families))
    assert [(each.family, each.full, each.error) for each in daemon.observer.passes] == [(V4, True, ""), (V6, True, "")]
    assert daemon.ruleset.tables.keys() == {V4, V6}


# Changes


def test_a_change_is_written_in_one_incremental_pass() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.put(build.endpoint_slice("web", "10.244.1.3"))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.3") and len(daemon.observer.passes) == 4)
        four, six = daemon.observer.passes[2:]
    assert daemon.observer.asked == 1
    assert (four.family, four.full, four.services, four.error) == (V4, False, 1, "")
    assert four.operations > 0
    assert (six.family, six.operations) == (V6, 0)


def test_a_new_zone_of_the_node_is_written() -> None:
    hinted = [build.endpoint(f"10.244.1.{n}", zone_hints=(zone,)) for n, zone in ((1, "za"), (2, "zb"))]
    with running(build.service(), build.endpoint_slice("web", *hinted)) as daemon:
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.1"))
        daemon.put(build.node(zone="zb"))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.2"))


def test_trigger_times_are_reported_once_for_their_own_family() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.put(build.endpoint_slice("web", "10.244.1.3", trigger=time.time()))
        daemon.until(lambda: len(daemon.observer.passes) == 4)
        daemon.put(build.service("other", ip="10.96.0.2"))
        daemon.until(lambda: len(daemon.observer.passes) == 6)
    assert [family for family, _ in daemon.observer.latencies] == [V4]


def test_trigger_times_from_before_the_start_are_not_reported() -> None:
    with running(WEB, build.endpoint_slice("web", "10.244.1.3", trigger=time.time() - 3600)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
    assert daemon.observer.latencies == []


def test_how_long_a_change_took_is_told_once_by_cause_and_for_the_families_that_it_concerns() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        assert daemon.observer.written_after == []
        before = time.monotonic()
        daemon.put(build.endpoint_slice("web", "10.244.1.3"))
        daemon.until(lambda: len(daemon.observer.passes) == 4)
        daemon.put(build.service("two", cluster_ips=("2001:db8:96::2",)))
        daemon.until(lambda: len(daemon.observer.passes) == 6)
        daemon.put(build.node(zone="zb"))
        daemon.until(lambda: len(daemon.observer.passes) == 8)
        taken = time.monotonic() - before
    told = daemon.observer.written_after
    expected = [(V4, Cause.ENDPOINTS), (V6, Cause.SERVICE), (V4, Cause.NODE), (V6, Cause.NODE)]
    assert [(family, cause) for family, cause, _ in told] == expected
    assert all(0 < seconds <= taken for _, _, seconds in told)


def test_a_change_that_fails_at_first_has_taken_until_it_succeeded() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_family(V4)
        for number in range(2 * TIMES_KEPT):
            daemon.put(build.endpoint_slice("web", f"10.244.{number // 250}.{number % 250 + 1}"))
        daemon.until(lambda: bool(daemon.status().last_error))
        failed_at = time.monotonic()
        daemon.put(build.endpoint_slice("web", "10.244.1.3"))
        daemon.until(lambda: sum(bool(each.error) for each in daemon.observer.passes) >= 5)
        assert daemon.observer.written_after == []
        failing = time.monotonic() - failed_at
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.status().last_error == "")
        daemon.until(lambda: bool(daemon.observer.written_after))
    told = daemon.observer.written_after
    assert {(family, cause) for family, cause, _ in told} == {(V4, Cause.ENDPOINTS)}
    assert 0 < len(told) <= TIMES_KEPT
    assert max(seconds for _, _, seconds in told) >= failing


# Failures


def test_a_failure_keeps_everything_owed_and_is_tried_again_without_a_change() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.until(lambda: daemon.status().last_success is not None)
        success = daemon.status().last_success
        daemon.ruleset.refuse_family(V4)
        daemon.put(build.endpoint_slice("web", "10.244.1.3", trigger=time.time()))
        daemon.until(lambda: bool(daemon.status().last_error))
        owed_since = daemon.status().owed_since
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: sum(bool(each.error) for each in daemon.observer.passes) >= 3)
        assert daemon.status().owed_since == owed_since is not None
        assert daemon.status().last_success == success
        assert daemon.serves(*SERVED)
        assert daemon.observer.latencies == []
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.status().last_error == "")
        assert daemon.serves("10.96.0.1", "10.244.1.3")
        assert daemon.serves("10.96.0.2", "10.244.2.1", "10.244.2.2")
        assert [family for family, _ in daemon.observer.latencies] == [V4]
        assert daemon.status().owed_since is None


def test_localhost_ports_are_those_of_the_last_write_that_succeeded() -> None:
    def ported(number: int) -> Service:
        return build.service(ports=(build.port(node_port=number),))

    with running(ported(30080), build.endpoint_slice("web", "10.244.1.1")) as daemon:
        daemon.until(lambda: [each.port for each in daemon.status().localhost_ports] == [30080])
        before = daemon.status().localhost_ports
        # The change itself is refused, and of what follows (everything anew) only the last step.
        daemon.ruleset.refuse_if(lambda t: t.family is V4 and t.table is None and any(each.hook for each in t.chains))
        daemon.ruleset.refuse_next()
        daemon.put(ported(30081))
        daemon.until(lambda: bool(daemon.status().last_error))
        assert daemon.status().localhost_ports is before
        daemon.ruleset.recover()
        daemon.until(lambda: [each.port for each in daemon.status().localhost_ports] == [30081])


@pytest.mark.parametrize(("down", "up"), [(V4, V6), (V6, V4)])
def test_a_family_that_fails_does_not_keep_the_other_from_its_changes(down: Family, up: Family) -> None:
    served = {
        V4: ("10.96.0.2", "10.244.2.1", "10.244.2.2"),
        V6: ("2001:db8:96::2", "fd00:10:244:2::1", "fd00:10:244:2::2"),
    }
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_family(down)
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: daemon.serves(*served[up]) and bool(daemon.status(down).last_error))
        daemon.until(lambda: daemon.status(up).owed_since is None)
        assert daemon.status(up).last_error == ""
        assert not daemon.serves(*served[down])
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.serves(*served[down]))


def test_an_unforeseen_error_of_one_family_is_its_own_and_does_not_last() -> None:
    winner = build.service("a", ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020-01-01T00:00:00Z")
    loser = build.service("b", ip="10.96.0.2", external_ips=("198.51.100.1",))
    slices = [build.endpoint_slice("a", "10.244.1.1"), build.endpoint_slice("b", "10.244.2.1")]
    with running(winner, loser, *slices) as daemon:
        daemon.until(lambda: daemon.serves("198.51.100.1", "10.244.1.1") and len(daemon.observer.passes) == 2)
        daemon.trouble[V4] = RuntimeError("no such interface")
        daemon.store.services.remove(("default", "a"))
        daemon.until(lambda: "no such interface" in daemon.status().last_error)
        assert daemon.status(V6).last_error == ""
        daemon.trouble.clear()
        daemon.until(lambda: daemon.status().last_error == "")
        assert daemon.serves("198.51.100.1", "10.244.2.1")
        assert daemon.serves("10.96.0.1", "10.96.0.1")


def test_an_internal_error_about_one_service_is_a_finding_and_no_failure() -> None:
    poison = build.service("bad", ip="10.96.0.9", ports=(build.port(None),))  # type: ignore[arg-type]
    with running(poison, WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED) and len(daemon.observer.passes) == 2)
        daemon.until(lambda: bool(daemon.loop.status.findings))
        assert daemon.status().last_error == ""
    assert {(each.object, each.reason) for each in daemon.observer.findings} == {("default/bad", Reason.INTERNAL_ERROR)}


# Findings


def test_a_finding_is_told_once_however_many_passes_see_it() -> None:
    bad = build.service("bad", cluster_ips=("10.96.0.9", "2001:db8:96::9"), external_ips=("nonsense",))
    with running(bad, WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        for number in (3, 4):
            daemon.put(build.endpoint_slice("web", f"10.244.1.{number}"))
            daemon.until(partial(daemon.serves, "10.96.0.1", f"10.244.1.{number}"))
        daemon.put(build.endpoint_slice("bad", "10.244.9.1"))
        daemon.until(lambda: daemon.serves("10.96.0.9", "10.244.9.1"))
        daemon.until(lambda: bool(daemon.loop.status.findings))
    assert [(each.object, each.reason) for each in daemon.observer.findings] == [
        ("default/bad", Reason.INVALID_ADDRESS)
    ]
    assert set(daemon.loop.status.findings) == set(daemon.observer.findings)


def test_a_finding_that_went_and_came_back_is_told_again() -> None:
    good, bad = build.service("x", ip="10.96.0.9"), build.service("x", ip="10.96.0.9", external_ips=("nonsense",))
    with running(bad) as daemon:
        daemon.until(lambda: bool(daemon.loop.status.findings))
        daemon.put(good)
        daemon.until(lambda: not daemon.loop.status.findings)
        daemon.put(bad)
        daemon.until(lambda: bool(daemon.loop.status.findings))
    assert len(daemon.observer.findings) == 2


def test_an_unreadable_object_is_told_and_keeps_what_was_known() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.store.services.put(Decoded(("default", "web"), "2", None, "spec.ports: not a list"))
        daemon.until(lambda: bool(daemon.loop.status.findings))
        assert daemon.serves(*SERVED)
    assert [each.reason for each in daemon.observer.findings] == [Reason.UNREADABLE_OBJECT]


def test_findings_that_stand_are_the_same_object_so_that_nobody_looks_at_them_again() -> None:
    bad = build.service("bad", cluster_ips=("10.96.0.9", "2001:db8:96::9"), external_ips=("nonsense",))
    with running(bad, WEB, *SLICES) as daemon:
        daemon.until(lambda: bool(daemon.loop.status.findings) and daemon.serves(*SERVED))
        before = daemon.loop.status
        daemon.put(build.endpoint_slice("web", "10.244.1.9"))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.9"))
        daemon.until(lambda: daemon.loop.status is not before)
        assert daemon.loop.status.findings is before.findings


def test_findings_of_others_are_told_too() -> None:
    finding = Finding("Node", "node1", Reason.NODE_NOT_FOUND, "nobody has this name")
    with running(WEB, more=lambda: [finding]) as daemon:
        daemon.until(lambda: daemon.loop.status.findings == (finding,))
    assert daemon.observer.findings == [finding]


def test_whoever_fails_when_told_of_new_rules_keeps_no_rule_and_nobody_else_waiting() -> None:
    def fails(_: object) -> None:
        raise ValueError("a fault of ours")

    daemon = Daemon(build.store(build.node(), WEB, *SLICES))
    told: list[Status] = []
    daemon.loop.subscribe(fails)
    daemon.loop.subscribe(told.append)
    daemon.thread.start()
    try:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.put(build.endpoint_slice("web", "10.244.1.9"))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.9"))
        daemon.until(lambda: bool(told) and told[-1] is daemon.loop.status)
    finally:
        daemon.stop()


# Drift


def test_a_table_that_somebody_deleted_comes_back_although_nothing_changes() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        del daemon.ruleset.tables[V4]
        daemon.loop.drifted(Drift(V4, "deleted table proxyd", everything=True))
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.until(lambda: bool(daemon.observer.repairs))
    assert daemon.observer.repairs == [(V4, "rewritten", 1)]
    assert [(family, cause) for family, cause, _ in daemon.observer.written_after] == [(V4, Cause.DRIFT)]
    assert [each.family for each in daemon.observer.passes if each.full] == [V4, V6, V4]


def test_drift_is_owed_until_it_is_repaired() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        del daemon.ruleset.tables[V4]
        daemon.ruleset.refuse_family(V4)
        daemon.loop.drifted(Drift(V4, "deleted table proxyd", everything=True))
        daemon.until(lambda: bool(daemon.status().last_error))
        assert daemon.observer.repairs == []
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.observer.repairs == [(V4, "rewritten", 1)])
        assert daemon.serves(*SERVED)


ENDPOINT = ("g1/endpoints-tcp", "10.96.0.1 . 80 . 1")


def lose_an_endpoint(daemon: Daemon) -> None:
    """Somebody deletes the element of an endpoint."""
    daemon.ruleset.tables[V4].container(ENDPOINT[0]).delete(Element(*ENDPOINT), V4)
    daemon.loop.drifted(Drift(V4, "deleted element in g1/endpoints-tcp", elements={ENDPOINT: False}))


def test_a_single_edit_is_mended_and_nothing_else_is_written() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        commits = len(daemon.ruleset.commits)
        lose_an_endpoint(daemon)
        daemon.until(lambda: daemon.observer.repairs == [(V4, "mended", 1)])
        assert daemon.serves(*SERVED)
        (repair,) = daemon.ruleset.commits[commits:]
        assert repair.size == 1
    assert [each.family for each in daemon.observer.passes if each.full] == [V4, V6]


def test_a_repair_that_the_kernel_refuses_is_followed_by_a_full_write() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_next()
        lose_an_endpoint(daemon)
        daemon.until(lambda: daemon.observer.repairs == [(V4, "rewritten", 1)])
        assert daemon.serves(*SERVED)


def test_a_few_edits_are_mended_without_delay_and_more_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_module, "RETRY_FIRST", 7200.0)
    monkeypatch.setattr(family_module, "RETRY_LONGEST", 7200.0)
    with running(WEB, *SLICES, timing=TIMING._replace(sync_period=7200.0)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        for number in range(1, family_module.PATIENT_REPAIRS + 1):
            lose_an_endpoint(daemon)
            daemon.until(lambda number=number: len(daemon.observer.repairs) == number)
            assert daemon.serves(*SERVED)
        lose_an_endpoint(daemon)
        # Changes are written meanwhile; one that meets the damage has everything written, and the repair with it.
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: daemon.serves("10.96.0.2", "10.244.2.1", "10.244.2.2"))
        assert len(daemon.observer.repairs) == family_module.PATIENT_REPAIRS
        daemon.put(build.endpoint_slice("web", "10.244.1.1"))
        daemon.until(lambda: daemon.observer.repairs[family_module.PATIENT_REPAIRS :] == [(V4, "rewritten", 1)])
        assert daemon.serves("10.96.0.1", "10.244.1.1")


@pytest.mark.parametrize("everything", [True, False])
def test_edits_without_end_are_repaired_ever_more_rarely_and_do_not_hold_up_changes(everything: bool) -> None:
    edit = Drift(V4, "somebody edits", elements={} if everything else {ENDPOINT: False}, everything=everything)
    with running(WEB, *SLICES, timing=TIMING._replace(sync_period=3600.0)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        for number in range(200):
            daemon.loop.drifted(edit)
            daemon.put(build.endpoint_slice("web", f"10.244.3.{number + 1}"))
            daemon.until(lambda number=number: daemon.serves("10.96.0.1", f"10.244.3.{number + 1}"))
    full = [each for each in daemon.observer.passes if each.full and each.family is V4]
    assert len(full) < 40
    assert len(daemon.observer.repairs) < 40
    assert everything == (len(full) > 1)


def test_edits_of_both_families_are_each_undone() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        lose_an_endpoint(daemon)
        del daemon.ruleset.tables[V6]
        daemon.loop.drifted(Drift(V6, "deleted table proxyd", everything=True))
        daemon.until(lambda: len(daemon.observer.repairs) == 2)
        assert daemon.serves(*SERVED)
        assert daemon.serves("2001:db8:96::1", "fd00:10:244:1::1", "fd00:10:244:1::2")
    assert sorted(daemon.observer.repairs) == [(V4, "mended", 1), (V6, "rewritten", 1)]


# Cleanup


def test_unused_chains_are_deleted_when_it_is_quiet() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.2", "10.244.1.3"))
        daemon.until(lambda: "g1/lb-tcp-2" not in daemon.ruleset.contents(V4).chains)
        assert daemon.serves("10.96.0.1", "10.244.1.1", "10.244.1.2", "10.244.1.3")
    assert daemon.observer.cleanups_failed == []


def test_a_failed_cleanup_is_counted_and_tried_again_and_costs_no_traffic() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.ruleset.refuse_if(lambda transaction: bool(transaction.delete_chains))
        daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.2", "10.244.1.3"))
        daemon.until(lambda: len(daemon.observer.cleanups_failed) >= 2)
        assert daemon.status().last_error == ""
        assert daemon.serves("10.96.0.1", "10.244.1.1", "10.244.1.2", "10.244.1.3")
        daemon.ruleset.recover()
        daemon.until(lambda: "g1/lb-tcp-2" not in daemon.ruleset.contents(V4).chains)
    assert set(daemon.observer.cleanups_failed) == {V4}


def test_an_unforeseen_error_in_cleanup_does_not_end_the_loop() -> None:
    def fails(transaction: Transaction) -> bool:
        if transaction.delete_chains:
            raise RuntimeError("no such thing was foreseen")
        return False

    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.ruleset.refuse_if(fails)
        daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.2", "10.244.1.3"))
        daemon.until(lambda: bool(daemon.observer.cleanups_failed))
        daemon.ruleset.recover()
        daemon.put(build.endpoint_slice("web", "10.244.1.1"))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.1"))


def test_unused_objects_go_even_if_it_is_never_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "CLEANUP_AFTER", 3600.0)
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.2", "10.244.1.3"))
        numbers = iter(range(1, 200))

        def changing() -> bool:
            daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.2", f"10.244.4.{next(numbers)}"))
            return "g1/lb-tcp-2" not in daemon.ruleset.contents(V4).chains

        daemon.until(changing)


# Quarantine


def test_a_service_that_the_kernel_refused_once_is_tried_again_by_itself() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_if(lambda t: any("10.96.0.2 " in each.key for each in t.add_elements))
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: any(each.reason is Reason.KERNEL_REFUSED for each in daemon.observer.findings))
        assert daemon.serves(*SERVED)
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.serves("10.96.0.2", "10.244.2.1", "10.244.2.2"))
        daemon.until(lambda: not daemon.loop.status.findings)


# The end


def test_a_stop_while_nothing_happens_ends_the_loop_and_leaves_the_rules() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.stop()
        assert daemon.serves(*SERVED)


def test_a_stop_in_the_middle_of_a_first_write_leaves_what_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxyd.sync.full.CHUNK", 1)
    store = build.store(build.node(), *both_families("a", 1), *both_families("b", 2))
    daemon = Daemon(store)

    def stop_after_the_first_service() -> None:
        if len(daemon.ruleset.commits) == 2:
            daemon.stopped.set()
            daemon.loop.stop()

    daemon.ruleset.watchers.append(stop_after_the_first_service)
    daemon.thread.start()
    daemon.thread.join(SOON)
    assert not daemon.thread.is_alive()
    assert daemon.serves("10.96.0.1", "10.244.1.1", "10.244.1.2")
    assert daemon.serves("10.96.0.2", "10.96.0.2")
    assert V6 not in daemon.ruleset.tables
