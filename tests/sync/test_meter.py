"""The thread that reads counters: what it publishes, that a failure is said once, and that it goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog.testing

from proxyd.model import FAMILIES, Family
from proxyd.nft.layout import INVALID_DROPPED, LOCALHOST_REJECTED
from proxyd.sync.meter import Meter
from proxyd.sync.traffic import TOP, Totals, Traffic
from tests import build
from tests.fakes.counters import FakeCounters
from tests.fakes.ruleset import FakeRuleset
from tests.program import until
from tests.world import World

V4, V6 = FAMILIES


@pytest.fixture
def ruleset() -> FakeRuleset:
    ruleset = FakeRuleset()
    for family in FAMILIES:
        World(build.service(), build.endpoint_slice(), family=family, ruleset=ruleset).settle()
    return ruleset


@pytest.fixture
def counters(ruleset: FakeRuleset) -> FakeCounters:
    return FakeCounters(ruleset)


@pytest.fixture
def meter(counters: FakeCounters) -> Iterator[Meter]:
    meter = Meter(counters, FAMILIES, TOP, period=0.001)
    yield meter
    meter.stop()


def test_every_family_is_read_again_and_again(ruleset: FakeRuleset, meter: Meter) -> None:
    assert meter.traffic == {}
    meter.start()
    until(lambda: set(meter.traffic) == {V4, V6}, "both families are read")
    ruleset.has_counted(V6, INVALID_DROPPED, 5)
    until(lambda: meter.traffic[V6].dropped == 5, "the counter is read again")
    ruleset.has_counted(V6, LOCALHOST_REJECTED["udp"], 7)
    until(lambda: meter.traffic[V6].localhost_rejected == {"udp": 7, "sctp": 0}, "refused packets are read too")
    assert meter.traffic[V4] == Traffic((), 0, {"udp": 0, "sctp": 0})


def test_a_failure_is_said_once_and_its_end_too(counters: FakeCounters, meter: Meter) -> None:
    counters.failing = "Operation not permitted"
    with structlog.testing.capture_logs() as logs:
        meter.start()
        until(lambda: counters.readings > 10, "it is tried again")
        counters.failing = ""
        until(lambda: len(meter.traffic) == len(FAMILIES), "it is read all the same")
        until(lambda: len(logs) > 1, "the end of the failure is said")
    assert [(each["event"], each.get("error")) for each in logs] == [
        ("counters not read, will be tried again", "Operation not permitted"),
        ("counters read again", None),
    ]


def test_what_was_read_last_stays_while_reading_fails(counters: FakeCounters, meter: Meter) -> None:
    meter.start()
    until(lambda: len(meter.traffic) == len(FAMILIES), "both families are read")
    before = set(meter.traffic)
    with structlog.testing.capture_logs() as logs:
        counters.failing = "no"
        until(lambda: len(logs) > 0, "the failure is said")
    assert set(meter.traffic) == before


def test_a_fault_of_ours_does_not_end_the_thread(
    counters: FakeCounters, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Totals.read
    faults = iter([True])

    def once_wrong(totals: Totals, *arguments: object) -> None:
        if next(faults, False):
            raise KeyError("of ours")
        read(totals, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Totals, "read", once_wrong)
    with structlog.testing.capture_logs() as logs:
        meter.start()
        until(lambda: len(meter.traffic) == len(FAMILIES), "it is read all the same")
    assert [each["event"] for each in logs] == ["fault in reading counters"]


def test_it_ends_though_it_has_not_begun_and_in_the_middle_of_a_rest(counters: FakeCounters) -> None:
    Meter(counters, FAMILIES, TOP).stop()
    meter = Meter(counters, (Family.IPV4,), TOP, period=3600)
    meter.start()
    meter.stop()
    assert not meter._thread.is_alive()
