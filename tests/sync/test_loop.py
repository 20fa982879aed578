"""The sync loop: when it writes, and what it tells."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from proxyd.kube.decode import Decoded
from proxyd.kube.store import TIMES_KEPT, Store
from proxyd.model import Cause, Finding, Reason
from proxyd.serve.health import alive
from proxyd.sync.status import Status
from tests import build
from tests.sync.looping import SERVED, SLICES, SOON, TIMING, V4, V6, WEB, Daemon, both_families, running

pytestmark = pytest.mark.usefixtures("quick")


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


def test_the_finding_about_an_unreadable_object_goes_with_the_object() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.store.services.put(Decoded(("default", "broken"), "2", None, "spec.ports: not a list"))
        daemon.until(lambda: bool(daemon.loop.status.findings))
        daemon.store.services.remove(("default", "broken"))
        daemon.until(lambda: not daemon.loop.status.findings)


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


# The end


def test_a_write_that_hangs_is_owed_meanwhile() -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        go_on.wait(SOON)

    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: all(each.last_success for each in daemon.loop.status.families))
        daemon.ruleset.watchers.append(hang)
        daemon.store.services.remove(WEB.key)
        assert hangs.wait(SOON)
        status, now = daemon.loop.status, time.monotonic()
        assert daemon.store.pending() == (0, None)
        go_on.set()
        assert alive(status, now, 30.0).healthy
        assert not alive(status, now + 60.0, 30.0).healthy
        daemon.until(lambda: all(each.owed_since is None for each in daemon.loop.status.families))


def test_a_stop_while_nothing_happens_ends_the_loop_and_leaves_the_rules() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.stop()
        assert daemon.serves(*SERVED)


def test_a_stop_in_the_middle_of_a_first_write_leaves_what_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxyd.sync.nft.full.CHUNK", 1)
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
