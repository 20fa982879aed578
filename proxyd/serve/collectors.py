"""What is somebody's state rather than a count of events: read when it is asked for, and never stored twice."""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.kube.store import Store
from proxyd.model import Family, Reason
from proxyd.serve.counters import SYNC
from proxyd.sync.status import FamilyStatus, Status


class WatchState(Protocol):
    """What is shown of one watch on the API server. ``last_event`` is monotonic seconds, None before the first."""

    @property
    def connected(self) -> bool:
        """Whether a watch is open now."""

    @property
    def last_event(self) -> float | None:
        """When anything was last heard."""

    @property
    def relists(self) -> int:
        """How many complete lists were fetched."""

    @property
    def errors(self) -> Mapping[str, int]:
        """How many errors there were of each kind."""

    @property
    def clock_offset(self) -> float | None:
        """By how many seconds the server's clock is ahead of ours, None where that is not known."""


class StateCollector(Collector):
    """Reads the status, the store, the watches and what the cleaner of flows owes when it is asked."""

    def __init__(
        self,
        families: tuple[Family, ...],
        status: Callable[[], Status],
        store: Store,
        watches: Callable[[], Mapping[str, WatchState]],
        owed_frontends: Callable[[], Mapping[Family, int]],
    ) -> None:
        self._families = families
        self._status = status
        self._store = store
        self._watches = watches
        self._owed_frontends = owed_frontends

    def collect(self) -> Iterator[Metric]:
        """Gives all of it."""
        status, now = self._status(), time.monotonic()
        yield from self._of_store()
        yield from self._of_status(status)
        yield self._oldest_change(status, now)
        owed = self._owed_frontends()
        yield _gauge(
            "proxyd_conntrack_owed_frontends",
            "Frontends whose flows have yet to be looked at",
            "ip_family",
            ((family, owed.get(family, 0)) for family in self._families),
        )
        yield from _of_watches(self._watches(), now)

    def _of_store(self) -> Iterator[Metric]:
        # The store knows which Services wait, not which kind of object changed them: both gauges tell the same.
        pending, _ = self._store.pending()
        for kind, intake in (("endpoint", self._store.slices), ("service", self._store.services)):
            yield CounterMetricFamily(f"{SYNC}{kind}_changes_total", f"Changes seen ({intake.kind})", intake.events)
            yield GaugeMetricFamily(
                f"{SYNC}{kind}_changes_pending", "Services with changes that no sync has taken up yet", pending
            )

    def _oldest_change(self, status: Status, now: float) -> Metric:
        # As for /livez: also what the sync thread has not even taken counts, once it could be written.
        waiting = self._store.pending()[1] if self._store.complete else None
        owed = {each.family: each.owed_since for each in status.families}

        def age(family: Family) -> float:
            since = [at for at in (waiting, owed.get(family)) if at is not None]
            return max(0.0, now - min(since)) if since else 0.0

        return _gauge(
            "proxyd_oldest_change_age_seconds",
            "For how long the oldest change that is not in the kernel has waited; 0: none waits",
            "ip_family",
            ((family, age(family)) for family in self._families),
        )

    def _of_status(self, status: Status) -> Iterator[Metric]:
        by_family = {each.family: each for each in status.families}
        states = [by_family.get(family, FamilyStatus(family)) for family in self._families]
        yield _gauge(
            f"{SYNC}last_timestamp_seconds",
            "Unix time of the last sync that succeeded",
            "ip_family",
            ((each.family, each.last_success_time or 0) for each in states),
        )
        without_local = GaugeMetricFamily(
            f"{SYNC}no_local_endpoints_total",
            "Services with a Local traffic policy that have endpoints, but none on this node",
            labels=["ip_family", "traffic_policy"],
        )
        for each in states:
            without_local.add_metric([each.family, "internal"], each.no_local_internal)
            without_local.add_metric([each.family, "external"], each.no_local_external)
        yield without_local
        yield _gauge("proxyd_services", "Services in force", "ip_family", ((s.family, s.services) for s in states))
        yield _gauge("proxyd_endpoints", "Endpoints in force", "ip_family", ((s.family, s.endpoints) for s in states))
        written = GaugeMetricFamily(
            "proxyd_full_sync_services",
            "Services in the last full sync, and how many of them it has written by now",
            labels=["ip_family", "state"],
        )
        for each in states:
            written.add_metric([each.family, "written"], each.writing.done if each.writing else 0)
            written.add_metric([each.family, "total"], each.writing.of if each.writing else 0)
        yield written
        tally = Tally(finding.reason for finding in status.findings)
        yield _gauge("proxyd_findings", "Findings now", "reason", ((reason, tally[reason]) for reason in Reason))


def _of_watches(watches: Mapping[str, WatchState], now: float) -> Iterator[Metric]:
    yield _gauge(
        "proxyd_watch_connected",
        "Whether a watch is open",
        "resource",
        ((resource, state.connected) for resource, state in watches.items()),
    )
    yield _gauge(
        "proxyd_watch_last_event_age_seconds",
        "Since when nothing was heard; +Inf before the first event",
        "resource",
        ((r, float("inf") if s.last_event is None else now - s.last_event) for r, s in watches.items()),
    )
    yield _gauge(
        "proxyd_watch_clock_offset_seconds",
        "By how much the clock of the API server was ahead of ours in its last answer",
        "resource",
        ((r, s.clock_offset) for r, s in watches.items() if s.clock_offset is not None),
    )
    relists = CounterMetricFamily("proxyd_watch_relists_total", "Complete lists fetched", labels=["resource"])
    errors = CounterMetricFamily("proxyd_watch_errors_total", "Errors of watches", labels=["resource", "reason"])
    for resource, state in watches.items():
        relists.add_metric([resource], state.relists)
        # A copy: the thread of the watch may add a reason meanwhile.
        for reason, count in dict(state.errors).items():
            errors.add_metric([resource, reason], count)
    yield relists
    yield errors


def _gauge(name: str, documentation: str, label: str, values: Iterable[tuple[str, float]]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, documentation, labels=[label])
    for value_label, value in values:
        family.add_metric([value_label], value)
    return family
