"""The thread that deletes stale flows: what it owes, when it tries again, and that nobody ever waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog.testing

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.desired.flows import Live
from proxyd.model import FAMILIES, Family, SlicePort
from proxyd.sync import cleaner as cleaner_module
from proxyd.sync.cleaner import FlowCleaner
from tests import build
from tests.fakes.flows import FakeFlowTable, Flow
from tests.world import World, even

V4, V6 = FAMILIES
SOON = 20.0
A, B = Backend("10.244.1.11", 53), Backend("10.244.1.12", 53)


def udp(number: int = 1) -> FrontendKey:
    return FrontendKey(f"10.96.0.{number}", "udp", 53)


def live(*backends: Backend) -> Live:
    return frozenset(backends)


class Recorder:
    """A FlowObserver that keeps what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.cleaned: list[tuple[Family, int]] = []
        self.failed: list[Family] = []

    def flows_cleaned(self, family: Family, seconds: float, deleted: int) -> None:
        assert seconds >= 0
        with self.changed:
            self.cleaned.append((family, deleted))
            self.changed.notify_all()

    def flows_failed(self, family: Family) -> None:
        with self.changed:
            self.failed.append(family)
            self.changed.notify_all()

    def wait(self, cleaned: int = 0, failed: int = 0) -> None:
        with self.changed:
            done = self.changed.wait_for(lambda: len(self.cleaned) >= cleaned and len(self.failed) >= failed, SOON)
        assert done, (self.cleaned, self.failed)


class Bench:
    def __init__(self) -> None:
        self.table, self.seen = FakeFlowTable(), Recorder()
        self.cleaner = FlowCleaner(self.table, self.seen)


@contextmanager
def running() -> Iterator[Bench]:
    bench = Bench()
    bench.cleaner.start()
    try:
        yield bench
    finally:
        bench.cleaner.stop(SOON)
    assert not bench.cleaner._thread.is_alive()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(cleaner_module, "RETRY_LONGEST", 0.02)


def test_stale_flows_are_deleted_and_counted() -> None:
    with running() as bench:
        gone, kept = (Flow(Backend("198.51.100.7", n), Backend("10.96.0.1", 53), b) for n, b in ((1, A), (2, B)))
        bench.table.add(V4, gone, kept)
        with structlog.testing.capture_logs() as logged:
            bench.cleaner.give(V4, {udp(): live(B)})
            bench.seen.wait(cleaned=1)
            bench.cleaner.stop(SOON)
        assert bench.seen.cleaned == [(V4, 1)]
        assert bench.table.listed(V4) == {kept}
    (line,) = logged
    assert (line["log_level"], line["flows"], line["frontends"]) == ("info", 1, "10.96.0.1:53/udp")


def test_nothing_to_delete_is_success_and_no_news() -> None:
    with running() as bench, structlog.testing.capture_logs() as logged:
        bench.cleaner.give(V4, {udp(n): live(B) for n in range(1, 9)})
        bench.seen.wait(cleaned=1)
        bench.cleaner.stop(SOON)
    assert (bench.seen.cleaned, bench.seen.failed) == ([(V4, 0)], [])
    assert [(line["log_level"], line["frontends"].endswith(" and 3 more")) for line in logged] == [("debug", True)]


def test_giving_never_waits_and_the_newest_state_of_each_frontend_wins() -> None:
    may_go_on, begun = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        assert may_go_on.wait(SOON)

    with running() as bench:
        bench.table.waits = slow
        bench.cleaner.give(V4, {udp(1): live(A)})
        assert begun.wait(SOON)
        for number in range(1000):  # the table does not answer meanwhile
            bench.cleaner.give(V4, {udp(1): live(A if number % 2 else B), udp(2): live(B)})
        may_go_on.set()
        bench.seen.wait(cleaned=2)
    newest = {udp(1): live(A), udp(2): live(B)}
    assert bench.table.calls == [(V4, newest), (V4, newest)]


def test_a_table_that_does_not_answer_keeps_no_rule_waiting() -> None:
    may_go_on, begun, sync = threading.Event(), threading.Event(), threading.current_thread()

    def slow() -> None:
        begun.set()
        if threading.current_thread() is not sync:  # else it is too late already: what it was asked about tells
            may_go_on.wait(SOON)

    with running() as bench:
        bench.table.waits = slow
        dns = build.service("dns", ports=(build.port(53, "http", "udp"),))
        udp_slice = build.endpoint_slice("dns", "10.244.1.11", ports=(SlicePort("http", "udp", 8053),))
        world = World(dns, udp_slice, clean_flows=bench.cleaner.give)
        world.sync()
        assert begun.wait(SOON)
        world.put(build.service("web", ip="10.96.0.20"), build.endpoint_slice("web", "10.244.1.13"))
        world.sync()
        assert world.reaches("10.96.0.20") == even("10.244.1.13")
        assert bench.table.calls == [], "its answer was waited for"
        may_go_on.set()
        bench.seen.wait(cleaned=1)


def test_a_flow_to_an_endpoint_that_came_in_the_middle_of_a_cleaning_stays() -> None:
    new = Flow(Backend("198.51.100.7", 1), Backend("10.96.0.1", 53), B)
    with running() as bench:

        def meanwhile() -> None:
            bench.cleaner.give(V4, {udp(): live(A, B)})
            bench.table.add(V4, new)

        bench.table.waits = meanwhile
        bench.cleaner.give(V4, {udp(): live(A)})
        bench.seen.wait(cleaned=1)
        bench.table.waits = lambda: None
        assert bench.table.listed(V4) == {new}


def test_what_failed_is_tried_again_with_what_came_meanwhile() -> None:
    with running() as bench:
        bench.table.fail_next("busy", "busy")
        bench.cleaner.give(V4, {udp(1): live(A), udp(2): live(A)})
        bench.seen.wait(failed=1)
        bench.cleaner.give(V4, {udp(2): live(B)})
        bench.seen.wait(cleaned=1, failed=2)
        assert bench.seen.failed == [V4, V4]
        assert bench.table.calls[-1] == (V4, {udp(1): live(A), udp(2): live(B)})
        bench.cleaner.give(V4, {udp(3): live(A)})
        bench.seen.wait(cleaned=2)
        assert bench.table.calls[-1] == (V4, {udp(3): live(A)})


def test_a_failure_that_lasts_is_said_once_and_its_end_too() -> None:
    with running() as bench, structlog.testing.capture_logs() as logged:
        bench.table.fail_next(*["Operation not permitted (CAP_NET_ADMIN is needed)"] * 5)
        bench.cleaner.give(V4, {udp(): live(A)})
        bench.seen.wait(cleaned=1, failed=5)
        bench.cleaner.stop(SOON)
    told = [(line["log_level"], line["event"]) for line in logged if line["log_level"] != "debug"]
    assert told == [("warning", "stale flows not deleted, will be tried again"), ("info", "stale flows deleted")]
    assert logged[0]["error"] == "Operation not permitted (CAP_NET_ADMIN is needed)"


def test_an_unforeseen_error_does_not_end_it() -> None:
    with running() as bench:
        bench.table.fail_next(RuntimeError("what?"))
        bench.cleaner.give(V4, {udp(): live(A)})
        bench.seen.wait(cleaned=1, failed=1)


def test_a_family_that_fails_does_not_keep_the_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "RETRY_FIRST", SOON * 10)
    monkeypatch.setattr(cleaner_module, "RETRY_LONGEST", SOON * 10)
    with running() as bench:
        bench.table.fail_next("busy")
        bench.cleaner.give(V4, {udp(): live(A)})
        bench.seen.wait(failed=1)
        bench.cleaner.give(V6, {FrontendKey("fd00:10:96::1", "udp", 53): live()})
        bench.seen.wait(cleaned=1)
    assert bench.seen.cleaned == [(V6, 0)]
    assert bench.seen.failed == [V4]


def test_it_rests_in_proportion_to_what_a_cleaning_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "SHARE", 0.1)
    began: list[float] = []
    ended: list[float] = []

    def slow() -> None:
        began.append(time.monotonic())
        threading.Event().wait(0.02)
        ended.append(time.monotonic())

    with running() as bench:
        bench.table.waits = slow
        for number in (1, 2, 3):
            bench.cleaner.give(V4, {udp(number): live(A)})
            bench.seen.wait(cleaned=number)
    spent = [after - before for before, after in zip(began, ended, strict=True)]
    rested = [after - before for before, after in zip(ended[:-1], began[1:], strict=True)]
    assert all(rest >= 9 * took for took, rest in zip(spent[:-1], rested, strict=True))


def test_it_ends_at_once_however_long_it_was_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "RETRY_FIRST", SOON * 10)
    with running() as bench:
        bench.table.fail_next("busy")
        bench.cleaner.give(V4, {udp(): live(A)})
        bench.seen.wait(failed=1)


def test_what_is_owed_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "OWED_AT_MOST", 10)
    bench = Bench()
    for number in range(100):
        bench.cleaner.give(V4, {udp(number): live(A)})
    bench.cleaner.start()
    bench.seen.wait(cleaned=1)
    bench.cleaner.stop(SOON)
    assert bench.table.calls == [(V4, {udp(number): live(A) for number in range(90, 100)})]


def test_one_that_never_began_can_be_stopped() -> None:
    Bench().cleaner.stop()


def test_how_much_is_owed_is_told_by_family() -> None:
    bench = Bench()
    bench.cleaner.give(V4, {udp(1): live(A), udp(2): live(A)})
    bench.cleaner.give(V4, {udp(2): live(B)})
    assert bench.cleaner.owed() == {V4: 2, V6: 0}
    bench.cleaner.start()
    bench.seen.wait(cleaned=1)
    assert bench.cleaner.owed() == {V4: 0, V6: 0}
    bench.cleaner.stop()
