"""Health decisions as values, and the bodies of /healthz and /livez."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from proxyd.model import Family, Node
from proxyd.serve import health
from proxyd.serve.health import FamilyHealth, Health, Moment
from proxyd.serve.http import Request, Response
from proxyd.serve.readiness import readyz
from proxyd.sync.status import FamilyStatus, Status

PERIOD = 30.0
NOW = 1000.0
# 2026-11-29T12:00:00.25Z
MOMENT = Moment(NOW, 1795953600.25)
WRITTEN = 1795953500.0

V4 = FamilyStatus(Family.IPV4, last_success=900.0, last_success_time=WRITTEN)
V6 = FamilyStatus(Family.IPV6, last_success=890.0, last_success_time=WRITTEN - 10)
NEW = FamilyStatus(Family.IPV6)


def owed(family: FamilyStatus, seconds: float) -> FamilyStatus:
    return FamilyStatus(family.family, family.last_success, family.last_success_time, NOW - seconds, "refused")


def status(*families: FamilyStatus, node: Node | None = None) -> Status:
    return Status("nftables", families, node=node)


@pytest.mark.parametrize(
    ("since", "expected"), [(None, False), (1000.0, False), (940.1, False), (940.0, True), (0.0, True)]
)
def test_overdue_after_twice_the_sync_period(since: float | None, expected: bool) -> None:
    assert health.overdue(since, NOW, PERIOD) is expected


@pytest.mark.parametrize(
    ("families", "alive", "ready"),
    [
        pytest.param((V4, V6), True, True, id="all well"),
        pytest.param((V4,), True, True, id="one family only"),
        pytest.param((V4, owed(V6, 59)), True, True, id="owed, but not for long"),
        pytest.param((V4, owed(V6, 60)), False, False, id="one family overdue"),
        pytest.param((owed(V4, 600), V6), False, False, id="the other family overdue"),
        pytest.param((V4, NEW), True, False, id="a family never written"),
        pytest.param((V4, owed(NEW, 59)), True, False, id="a long first write"),
        pytest.param((V4, owed(NEW, 60)), False, False, id="never written and overdue"),
        pytest.param((), True, False, id="nothing known yet"),
    ],
)
def test_verdicts(families: tuple[FamilyStatus, ...], alive: bool, ready: bool) -> None:
    assert health.alive(status(*families), NOW, PERIOD).healthy is alive
    assert health.ready(status(*families), NOW, PERIOD).healthy is ready


def test_verdicts_are_per_family() -> None:
    assert health.ready(status(owed(V4, 61), NEW), NOW, PERIOD) == Health(
        False, (FamilyHealth(Family.IPV4, False, WRITTEN), FamilyHealth(Family.IPV6, False, None))
    )
    assert health.alive(status(owed(V4, 61), NEW), NOW, PERIOD) == Health(
        False, (FamilyHealth(Family.IPV4, False, WRITTEN), FamilyHealth(Family.IPV6, True, None))
    )


@pytest.mark.parametrize(("waiting_since", "expected"), [(None, True), (NOW - 59, True), (NOW - 60, False)])
def test_changes_that_nobody_takes_are_overdue_too(waiting_since: float | None, expected: bool) -> None:
    for decide in (health.alive, health.ready):
        health_now = decide(status(V4, V6), NOW, PERIOD, waiting_since)
        assert health_now.healthy is expected
        assert [each.healthy for each in health_now.families] == [expected, expected]
    assert health.is_ready(status(V4, V6), NOW, PERIOD, waiting_since) is expected


@pytest.mark.parametrize("families", [(), (NEW,), (V4, NEW)], ids=["unknown", "none", "one"])
def test_changes_that_come_before_all_was_written_once_are_no_reason_to_end_that(
    families: tuple[FamilyStatus, ...],
) -> None:
    """A first write may take minutes, and the wait for the Node's podCIDRs before it half of one."""
    assert health.alive(status(*families), NOW, PERIOD, NOW - 600).healthy
    assert health.reasons(status(*families), NOW, PERIOD, NOW - 600) == ()
    assert not health.is_ready(status(*families), NOW, PERIOD, NOW - 600)


@pytest.mark.parametrize(
    ("node", "eligible"),
    [
        (None, True),
        (Node("n1"), True),
        (Node("n1", deleting=True), False),
        (Node("n1", to_be_deleted_taint=True), False),
    ],
)
def test_node_eligible(node: Node | None, eligible: bool) -> None:
    assert health.node_eligible(node) is eligible
    answer = health.healthz(status(V4, node=node), MOMENT, PERIOD)
    assert answer.status == (200 if eligible else 503)
    assert json.loads(answer.body)["nodeEligible"] is eligible
    assert json.loads(answer.body)["healthy"] is True
    assert health.livez(status(V4, node=node), MOMENT, PERIOD).status == 200


def test_body_when_well() -> None:
    families = {
        "IPv4": {"lastUpdated": "2026-11-29T11:58:20Z", "healthy": True},
        "IPv6": {"lastUpdated": "2026-11-29T11:58:10Z", "healthy": True},
    }
    body = {
        "lastUpdated": "2026-11-29T12:00:00.25Z",
        "currentTime": "2026-11-29T12:00:00.25Z",
        "nodeEligible": True,
        "healthy": True,
        "status": families,
    }
    answer = health.healthz(status(V4, V6), MOMENT, PERIOD)
    assert answer.status == 200
    assert answer.content_type == "application/json"
    assert json.loads(answer.body) == body
    assert list(json.loads(answer.body)) == list(body)
    del body["nodeEligible"]
    assert json.loads(health.livez(status(V4, V6), MOMENT, PERIOD).body) == body


def test_body_when_not_well_shows_the_last_real_update() -> None:
    answer = health.livez(status(owed(V4, 100), V6), MOMENT, PERIOD)
    assert answer.status == 503
    assert json.loads(answer.body) == {
        "lastUpdated": "2026-11-29T11:58:20Z",
        "currentTime": "2026-11-29T12:00:00.25Z",
        "healthy": False,
        "status": {
            "IPv4": {"lastUpdated": "2026-11-29T11:58:20Z", "healthy": False},
            "IPv6": {"lastUpdated": "2026-11-29T11:58:10Z", "healthy": True},
        },
        "reasons": ["IPv4: a change has waited for 100 s (refused)"],
    }
    never = health.healthz(status(NEW), MOMENT, PERIOD)
    assert never.status == 503
    assert json.loads(never.body)["lastUpdated"] == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("answered", "reason"),
    [
        (status(NEW), "IPv6: not written yet"),
        (status(), "nothing is known yet"),
        (status(V4, node=Node("n", deleting=True)), "the Node is being deleted"),
        (
            status(V4, node=Node("n", to_be_deleted_taint=True)),
            "the Node has the taint ToBeDeletedByClusterAutoscaler",
        ),
        (status(owed(V4, 61)), "IPv4: a change has waited for 61 s (refused)"),
    ],
)
def test_healthz_says_why(answered: Status, reason: str) -> None:
    answer = health.healthz(answered, MOMENT, PERIOD)
    assert answer.status == 503
    assert json.loads(answer.body)["reasons"] == [reason]


def test_a_sync_thread_that_takes_nothing_is_a_reason() -> None:
    body = json.loads(health.livez(status(V4), MOMENT, PERIOD, NOW - 70).body)
    assert body["reasons"] == ["changes have waited for 70 s and nobody takes them"]


class Watch(NamedTuple):
    connected: bool = True
    last_event: float | None = NOW - 5
    relists: int = 0
    errors: Mapping[str, int] = {}


@pytest.mark.parametrize(
    ("watch", "reasons"),
    [
        pytest.param(Watch(), [], id="well"),
        pytest.param(Watch(last_event=0.0), [], id="connected and quiet"),
        pytest.param(Watch(connected=False, last_event=NOW - 59), [], id="down, not for long"),
        pytest.param(
            Watch(connected=False, last_event=NOW - 60),
            ["services: the watch is down, the last event came 60 s ago"],
            id="down",
        ),
        pytest.param(Watch(connected=False, last_event=None), ["services: not listed yet"], id="never listed"),
    ],
)
def test_a_watch_that_is_down_makes_the_node_unready_but_never_unhealthy(watch: Watch, reasons: list[str]) -> None:
    answer = readyz(status(V4, V6), {"services": watch}, MOMENT, PERIOD)
    assert (answer.status, json.loads(answer.body)["reasons"]) == (503 if reasons else 200, reasons)
    assert health.healthz(status(V4, V6), MOMENT, PERIOD).status == 200


def test_readyz_shows_how_families_and_watches_stand() -> None:
    body = json.loads(readyz(status(owed(V4, 61)), {"nodes": Watch()}, MOMENT, PERIOD).body)
    assert body == {
        "ready": False,
        "reasons": ["IPv4: a change has waited for 61 s (refused)"],
        "status": {
            "IPv4": {
                "lastUpdated": "2026-11-29T11:58:20Z",
                "owedForSeconds": 61.0,
                "lastError": "refused",
                "services": 0,
                "endpoints": 0,
            }
        },
        "watches": {"nodes": {"connected": True, "lastEventSecondsAgo": 5.0}},
    }


@pytest.mark.parametrize(
    ("unix", "text"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (0, "1970-01-01T00:00:00Z"),
        (100.0, "1970-01-01T00:01:40Z"),
        (1.5, "1970-01-01T00:00:01.5Z"),
        (1.000000007, "1970-01-01T00:00:01.000000007Z"),
        (0.9999999999, "1970-01-01T00:00:01Z"),
    ],
)
def test_timestamp(unix: float | None, text: str) -> None:
    assert health.timestamp(unix) == text


def test_handler_reads_the_newest_and_counts() -> None:
    counted: list[int] = []
    current = [status(V4)]
    handle = health.handler(health.healthz, lambda: current[0], lambda: None, PERIOD, counted.append)
    first = handle(Request("GET", "/healthz"))
    current[0] = status(NEW)
    second = handle(Request("GET", "/healthz"))
    assert isinstance(first, Response)
    assert [first.status, second.status] == counted == [200, 503]
