"""A long full write is followed from outside while it goes on, in both modes; API server and DNS come first."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from structlog.testing import LogCapture

from proxyd.ipt.style import Style
from proxyd.model import Family
from proxyd.serve.metrics import Metrics
from proxyd.serve.report_text import report_text
from proxyd.sync import progress
from proxyd.sync.family import FamilyRules
from proxyd.sync.ipt.reconcile import IptReconciler
from proxyd.sync.loop import SyncLoop
from proxyd.sync.nft import full
from proxyd.sync.nft.reconcile import NftReconciler
from proxyd.sync.status import Writing
from tests import build
from tests.fakes.ipt_kernel import FakeKernel
from tests.fakes.ruleset import FakeRuleset
from tests.sync.looping import SOON, TIMING, V4, Recorder
from tests.unit.test_report import report
from tests.world import Object

COUNT = 60
API, DNS = "10.96.9.11", "10.96.9.12"


class Seen(NamedTuple):
    """What somebody outside sees at one commit: how far the write has come, and which cluster IPs the kernel has."""

    writing: Writing | None
    addresses: set[str]


class Starting:
    """A loop that writes everything for the first time; after each commit somebody looks at it from outside."""

    def __init__(self, mode: str) -> None:
        self.store = build.store(build.node(), *_objects())
        self.seen: list[Seen] = []
        self.kernel: Any
        self.made: FamilyRules
        if mode == "iptables":
            self.kernel = FakeKernel(V4, batch=20)
            self.made = IptReconciler(V4, self.kernel, self.store.service, Style(), progress=self._progressed)
        else:
            self.kernel = FakeRuleset()
            self.made = NftReconciler(V4, self.kernel, self.store.service, progress=self._progressed)
        self.kernel.watchers.append(self._look)
        self.loop = SyncLoop(
            self.store, [self.made], lambda family, _: build.settings(family), Recorder(), TIMING, mode
        )
        self.metrics = Metrics((V4,), "1", lambda: self.loop.status, self.store, mode=mode)
        self.pages: list[str] = []

    def run(self, until: Callable[[], bool]) -> None:
        """Runs the loop until the end of a pass at which that is so."""
        done = threading.Event()
        self.loop.subscribe(lambda _: done.set() if until() else None)
        thread = threading.Thread(target=self.loop.run)
        thread.start()
        assert done.wait(SOON)
        self.loop.stop()
        thread.join(SOON)

    def _progressed(self, family: Family, written: int, of: int) -> None:
        self.loop.progressed(family, written, of)

    def _look(self) -> None:
        text = repr(self.kernel.rules.tables if isinstance(self.kernel, FakeKernel) else self.kernel.elements(V4))
        self.seen.append(Seen(self.loop.status.families[0].writing, set(re.findall(r"10\.96\.9\.\d+", text))))
        self.pages.append(self.metrics.render().decode())


def _objects() -> list[Object]:
    made: list[Object] = [
        build.service("kubernetes", ip=API),
        build.endpoint_slice("kubernetes", "10.244.9.1"),
        build.service("kube-dns", ip=DNS, namespace="kube-system"),
        build.endpoint_slice("kube-dns", "10.244.9.2", namespace="kube-system"),
    ]
    for number in range(20, 20 + COUNT - 2):
        # By name they would come before the others.
        made.append(build.service(f"s{number}", ip=f"10.96.9.{number}", namespace="aaa"))
        made.append(build.endpoint_slice(f"s{number}", f"10.244.8.{number}", namespace="aaa"))
    return made


@pytest.fixture(params=["nftables", "iptables"])
def starting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Starting:
    monkeypatch.setattr(full, "CHUNK", 40)
    return Starting(request.param)


def gauge(page: str, state: str) -> float:
    found = re.search(rf'^proxyd_full_sync_services{{ip_family="IPv4",state="{state}"}} (\S+)$', page, re.MULTILINE)
    assert found
    return float(found[1])


def test_whoever_looks_from_outside_sees_it_advance(starting: Starting) -> None:
    starting.run(lambda: starting.loop.status.families[0].last_success is not None)
    told = [each.writing for each in starting.seen if each.writing is not None]
    done = [each.done for each in told]
    assert done == sorted(done)
    assert done[0] == 0
    assert len(set(done)) > 4
    assert {each.of for each in told} == {COUNT}
    last = starting.loop.status.families[0].writing
    assert last is not None
    assert (last.done, last.of) == (COUNT, COUNT)


def test_the_gauges_follow(starting: Starting) -> None:
    assert gauge(starting.metrics.render().decode(), "total") == 0
    starting.run(lambda: starting.loop.status.families[0].last_success is not None)
    between = [page for page in starting.pages if 0 < gauge(page, "written") < gauge(page, "total") == COUNT]
    assert between
    page = starting.metrics.render().decode()
    assert (gauge(page, "written"), gauge(page, "total")) == (COUNT, COUNT)


def test_api_server_and_dns_are_there_before_all_others(starting: Starting) -> None:
    starting.run(lambda: starting.loop.status.families[0].last_success is not None)
    first = next(each for each in starting.seen if each.addresses)
    assert {API, DNS} <= first.addresses
    assert len(first.addresses) < COUNT / 2
    begun = next(each for each in starting.seen if each.writing is not None and each.writing.done)
    assert {API, DNS} <= begun.addresses


def test_a_write_that_fails_half_way_says_how_far_it_came(starting: Starting) -> None:
    def give_up() -> None:
        if (writing := starting.seen[-1].writing) is not None and writing.done > COUNT / 3:
            starting.kernel.refuse_next(10_000)

    starting.kernel.watchers.append(give_up)
    starting.run(lambda: bool(starting.loop.status.families[0].last_error))
    writing = starting.loop.status.families[0].writing
    assert writing is not None
    assert 0 < writing.done < writing.of == COUNT


def test_long_writes_are_logged_now_and_then(
    starting: Starting, monkeypatch: pytest.MonkeyPatch, log: LogCapture
) -> None:
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    starting.run(lambda: starting.loop.status.families[0].last_success is not None)
    lines = [each for each in log.entries if each["event"] == "writing rules"]
    assert len(lines) > 4
    assert lines[0].keys() >= {"ip_family", "services", "of", "seconds"}
    assert all(each["services"] < each["of"] == COUNT for each in lines)


def test_the_report_shows_it_before_the_first_pass_has_ended(starting: Starting) -> None:
    reports = []
    starting.kernel.watchers.append(
        lambda: reports.append(report(starting.loop.status.families[0])) if starting.seen[-1].writing else None
    )
    starting.run(lambda: starting.loop.status.families[0].last_success is not None)
    shown = [each for each in reports if each.families[0].writing is not None and each.families[0].writing.written]
    assert shown
    writing = shown[0].families[0].writing
    assert writing is not None
    assert f"writing everything: {writing.written} of {COUNT} Services, for " in report_text(shown[0])
    assert not shown[0].ready
    assert report(starting.loop.status.families[0]).families[0].writing is None
