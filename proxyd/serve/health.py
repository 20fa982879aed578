"""Whether proxyd keeps up, and whether load balancers should use this node: pure decisions, and /healthz and /livez.

As in kube-proxy, a family is unhealthy when a change has waited for twice the sync period, and /healthz (not /livez) is
also 503 while the Node is leaving. Two differences, both on purpose. A family that has never been written in full
makes /healthz 503: a node without rules must get no traffic. For /livez it is well unless overdue, so that a long first
sync is not killed in the middle. And an unknown Node counts as eligible, since there is none without an API server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from proxyd.model import TO_BE_DELETED_TAINT, Family, Node
from proxyd.serve.http import Handler, Request, Response
from proxyd.sync.status import FamilyStatus, Status

# Go's zero time, which kube-proxy shows where nothing was ever written.
NEVER = "0001-01-01T00:00:00Z"


class Moment(NamedTuple):
    """One instant on both clocks: ``monotonic`` to measure with, ``unix`` to show."""

    monotonic: float
    unix: float

    @classmethod
    def now(cls) -> Self:
        """This instant."""
        return cls(time.monotonic(), time.time())


class FamilyHealth(NamedTuple):
    """The verdict on one family; ``updated`` is when its rules were last complete (Unix seconds, None: never)."""

    family: Family
    healthy: bool
    updated: float | None


class Health(NamedTuple):
    """The verdict on all families."""

    healthy: bool
    families: tuple[FamilyHealth, ...] = ()

    @property
    def updated(self) -> float | None:
        """When rules of any family were last complete."""
        return max((each.updated for each in self.families if each.updated is not None), default=None)


def overdue(since: float | None, now: float, sync_period: float) -> bool:
    """Whether a change that has waited since then (monotonic seconds) has waited too long."""
    return since is not None and now - since >= 2 * sync_period


def _hangs(status: Status, now: float, sync_period: float, waiting_since: float | None) -> bool:
    """Whether the sync thread takes no changes any more. A first write may take its time: it is not to be killed in it."""
    return bool(status.families) and all(map(_written, status.families)) and overdue(waiting_since, now, sync_period)


def alive(status: Status, now: float, sync_period: float, waiting_since: float | None = None) -> Health:
    """Whether the sync thread keeps up: what /livez says. ``now`` is monotonic seconds.

    ``waiting_since`` is the time of the oldest change that the sync thread has not even taken: it tells of a thread
    that hangs, of which ``status`` would be the last good news.
    """
    hangs = _hangs(status, now, sync_period, waiting_since)
    families = tuple(
        FamilyHealth(each.family, not hangs and not overdue(each.owed_since, now, sync_period), each.last_success_time)
        for each in status.families
    )
    return Health(not hangs and all(each.healthy for each in families), families)


def ready(status: Status, now: float, sync_period: float, waiting_since: float | None = None) -> Health:
    """Whether the rules are there and up to date: ``alive``, and every family has been written in full once."""
    health = alive(status, now, sync_period, waiting_since)
    families = tuple(
        verdict._replace(healthy=verdict.healthy and _written(each))
        for verdict, each in zip(health.families, status.families, strict=True)
    )
    return Health(health.healthy and bool(families) and all(each.healthy for each in families), families)


def reasons(status: Status, now: float, sync_period: float, waiting_since: float | None = None) -> tuple[str, ...]:
    """What keeps the sync thread from being well, for people; empty where ``alive`` says that it is."""
    found = []
    if waiting_since is not None and _hangs(status, now, sync_period, waiting_since):
        found.append(f"changes have waited for {now - waiting_since:.0f} s and nobody takes them")
    for each in status.families:
        if each.owed_since is not None and overdue(each.owed_since, now, sync_period):
            error = f" ({each.last_error})" if each.last_error else ""
            found.append(f"{each.family}: a change has waited for {now - each.owed_since:.0f} s{error}")
    return tuple(found)


def unwritten(status: Status) -> tuple[str, ...]:
    """The families whose rules were never complete, as reasons."""
    found = [f"{each.family}: not written yet" for each in status.families if not _written(each)]
    return tuple(found) if status.families else ("nothing is known yet",)


def ineligible(node: Node | None) -> tuple[str, ...]:
    """Why load balancers should leave this node alone, as reasons."""
    if node is None:
        return ()
    taint = (f"the Node has the taint {TO_BE_DELETED_TAINT}",) if node.to_be_deleted_taint else ()
    return (*(("the Node is being deleted",) if node.deleting else ()), *taint)


def is_ready(status: Status, now: float, sync_period: float, waiting_since: float | None) -> bool:
    """The verdict of ``ready`` alone."""
    return ready(status, now, sync_period, waiting_since).healthy


def _written(family: FamilyStatus) -> bool:
    return family.last_success is not None


def node_eligible(node: Node | None) -> bool:
    """Whether load balancers may send to this node: not while it is being deleted or scaled away."""
    return node is None or not (node.deleting or node.to_be_deleted_taint)


def livez(status: Status, now: Moment, sync_period: float, waiting_since: float | None = None) -> Response:
    """The answer to /livez."""
    health = alive(status, now.monotonic, sync_period, waiting_since)
    return _response(health, now.unix, health.healthy, reasons(status, now.monotonic, sync_period, waiting_since))


def healthz(status: Status, now: Moment, sync_period: float, waiting_since: float | None = None) -> Response:
    """The answer to /healthz. As in kube-proxy, its ``healthy`` leaves the Node out."""
    health = ready(status, now.monotonic, sync_period, waiting_since)
    eligible = node_eligible(status.node)
    why = (
        *reasons(status, now.monotonic, sync_period, waiting_since),
        *unwritten(status),
        *ineligible(status.node),
    )
    return _response(health, now.unix, health.healthy and eligible, why, {"nodeEligible": eligible})


def _response(
    health: Health, now: float, good: bool, why: tuple[str, ...], extra: dict[str, Any] | None = None
) -> Response:
    body: dict[str, Any] = {
        # kube-proxy's habit: whoever is well has always just looked.
        "lastUpdated": timestamp(now if good else health.updated),
        "currentTime": timestamp(now),
        **(extra or {}),
        "healthy": health.healthy,
        "status": {
            each.family: {"lastUpdated": timestamp(each.updated), "healthy": each.healthy} for each in health.families
        },
    }
    if why:
        body["reasons"] = list(why)
    return Response(200 if good else 503, "application/json", json.dumps(body, separators=(",", ":")).encode())


def timestamp(unix: float | None) -> str:
    """A time as Go writes it: RFC 3339 in UTC, up to nanoseconds, without zeros at the end."""
    if unix is None:
        return NEVER
    # In two steps: a float has no room for nanoseconds beside seconds since 1970.
    whole, part = divmod(unix, 1)
    seconds, nanoseconds = divmod(int(whole) * 10**9 + round(part * 1e9), 10**9)
    fraction = f".{nanoseconds:09}".rstrip("0").rstrip(".")
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + fraction + "Z"


def handler(
    answer: Callable[[Status, Moment, float, float | None], Response],
    status: Callable[[], Status],
    waiting_since: Callable[[], float | None],
    sync_period: float,
    count: Callable[[int], None] = lambda _: None,
) -> Handler:
    """A route for ``healthz``, ``livez`` or the like; ``count`` is told the status code of each answer."""

    def handle(_request: Request) -> Response:
        response = answer(status(), Moment.now(), sync_period, waiting_since())
        count(response.status)
        return response

    return handle
