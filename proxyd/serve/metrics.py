"""Prometheus metrics: kube-proxy's, with exactly its names, types, labels and buckets, and a few of our own (``proxyd_``).

Events are counted as they happen (the Observer methods); whatever is somebody's state is read when it is asked for.
Always the plain text format 0.0.4, like kube-proxy: in OpenMetrics, a gauge could not be called ``..._total``.
"""

from __future__ import annotations

import re
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Protocol, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.kube.store import Store
from proxyd.model import Family, Finding, Reason
from proxyd.serve.iptables_metrics import FAILURES, IptablesMetrics
from proxyd.serve.localhost_metrics import LocalhostMetrics
from proxyd.sync.status import FamilyStatus, PassResult, Repair, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SYNC = "kubeproxy_sync_proxy_rules_"
CONNTRACK = "kubeproxy_conntrack_reconciler_"
SYNC_BUCKETS = tuple(0.001 * 2**k for k in range(15))
PROGRAMMING_BUCKETS = (0.25, 0.5, *map(float, (*range(1, 60), *range(60, 120, 5), *range(120, 301, 30))))

# Python writes the bucket bound 1 as "1.0", Go as "1"; rules and dashboards name the bounds of kube-proxy.
_WHOLE_BOUND = re.compile(rb'([{,]le="\d+)\.0"')

# For the whole process: this library has no other switch.
disable_created_metrics()  # type: ignore[no-untyped-call]


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


class Metrics:
    """Counts what others report (an Observer and a FlowObserver) and renders everything. Safe from any thread.

    ``status`` and ``watches`` (state by resource) are called at each scrape, on the server's thread.
    """

    def __init__(
        self,
        families: Sequence[Family],
        version: str,
        status: Callable[[], Status],
        store: Store,
        watches: Callable[[], Mapping[str, WatchState]],
        mode: str = "nftables",
    ) -> None:
        self._families = tuple(families)
        self._registry = registry = CollectorRegistry()
        self._sync = self._histogram(f"{SYNC}duration_seconds", "Duration of all syncs", SYNC_BUCKETS)
        self._full_sync = self._histogram(
            "kubeproxy_sync_full_proxy_rules_duration_seconds", "Duration of full syncs", SYNC_BUCKETS
        )
        self._partial_sync = self._histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds", "Duration of partial syncs", SYNC_BUCKETS
        )
        self._programming = self._histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of an endpoint (its trigger time) to the rules in the kernel",
            PROGRAMMING_BUCKETS,
        )
        self._queued = Gauge(
            f"{SYNC}last_queued_timestamp_seconds",
            "Unix time of the last request for a sync",
            ["ip_family"],
            registry=registry,
        )
        self._iptables = IptablesMetrics(registry, self._families) if mode == "iptables" else None
        failures, cleanup_failures = FAILURES[mode]
        self._failures = self._counter(*failures)
        self._cleanup_failures = self._counter(*cleanup_failures)
        self._operations = self._counter("proxyd_sync_operations_total", "Changes written to the kernel")
        self._repaired = Counter(
            "proxyd_drift_repaired_total",
            "Changes that others made to our tables and that were undone, place by place or by writing everything",
            ["ip_family", "how"],
            registry=registry,
        )
        self._flows = self._histogram(
            f"{CONNTRACK}sync_duration_seconds", "Duration of looking for stale flows", SYNC_BUCKETS
        )
        self._flows_deleted = self._counter(f"{CONNTRACK}deleted_entries_total", "Stale flows deleted")
        self._flows_failures = self._counter(
            "proxyd_conntrack_failures_total", "Failures to delete stale flows, which are then tried again"
        )
        self._healthz = Counter("kubeproxy_proxy_healthz_total", "Answers of /healthz", ["code"], registry=registry)
        self._livez = Counter("kubeproxy_proxy_livez_total", "Answers of /livez", ["code"], registry=registry)
        self._seen = Counter("proxyd_findings_seen_total", "Findings that came up", ["reason"], registry=registry)
        Gauge("proxyd_build_info", "The running version", ["version"], registry=registry).labels(version).set(1)
        self.localhost = LocalhostMetrics(registry, self._families)
        self._begin_at_zero()
        registry.register(_StateCollector(self._families, status, store, watches))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def add(self, collector: Collector) -> None:
        """Shows more metrics, which are somebody else's state."""
        self._registry.register(collector)

    def _histogram(self, name: str, documentation: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(name, documentation, ["ip_family"], buckets=buckets, registry=self._registry)

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(name, documentation, ["ip_family"], registry=self._registry)

    def _begin_at_zero(self) -> None:
        """Makes every series, so that a rate is right from the first event on."""
        by_family = [self._sync, self._full_sync, self._partial_sync, self._programming, self._queued]
        by_family += [self._flows, self._flows_deleted, self._flows_failures]
        for metric in (*by_family, self._failures, self._cleanup_failures, self._operations):
            for family in self._families:
                metric.labels(family)
        for family, how in product(self._families, get_args(Repair)):
            self._repaired.labels(family, how)
        for code in (200, 503):
            self._healthz.labels(code)
            self._livez.labels(code)
        for reason in Reason:
            self._seen.labels(reason)

    def queued(self) -> None:
        """Observer: something asked for a pass (over all families)."""
        now = time.time()
        for family in self._families:
            self._queued.labels(family).set(now)

    def pass_done(self, result: PassResult) -> None:
        """Observer: a pass ended. Failed ones count as syncs too, as in kube-proxy."""
        self._sync.labels(result.family).observe(result.seconds)
        kind = self._full_sync if result.full else self._partial_sync
        kind.labels(result.family).observe(result.seconds)
        # A pass can also fail without the kernel having said no.
        self._failures.labels(result.family).inc(max(result.refusals, bool(result.error)))
        if self._iptables is not None:
            self._iptables.pass_done(result)
        if not result.error:
            self._operations.labels(result.family).inc(result.operations)

    def programmed(self, family: Family, seconds: float) -> None:
        """Observer: a change of endpoints reached the kernel."""
        self._programming.labels(family).observe(seconds)

    def cleanup_failed(self, family: Family) -> None:
        """Observer: something unused could not be deleted."""
        self._cleanup_failures.labels(family).inc()

    def repaired(self, family: Family, how: Repair, edits: int) -> None:
        """See ``Observer``."""
        self._repaired.labels(family, how).inc(edits)

    def flows_cleaned(self, family: Family, seconds: float, deleted: int) -> None:
        """See ``FlowObserver``."""
        self._flows.labels(family).observe(seconds)
        self._flows_deleted.labels(family).inc(deleted)

    def flows_failed(self, family: Family) -> None:
        """See ``FlowObserver``."""
        self._flows_failures.labels(family).inc()

    def found(self, finding: Finding) -> None:
        """Observer: a Finding that is new."""
        self._seen.labels(finding.reason).inc()

    def healthz_answered(self, code: int) -> None:
        """Counts an answer of /healthz."""
        self._healthz.labels(code).inc()

    def livez_answered(self, code: int) -> None:
        """Counts an answer of /livez."""
        self._livez.labels(code).inc()

    def render(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return _WHOLE_BOUND.sub(rb'\1"', generate_latest(self._registry))


class _StateCollector(Collector):
    """Reads the status, the store and the watches when it is asked."""

    def __init__(
        self,
        families: tuple[Family, ...],
        status: Callable[[], Status],
        store: Store,
        watches: Callable[[], Mapping[str, WatchState]],
    ) -> None:
        self._families = families
        self._status = status
        self._store = store
        self._watches = watches

    def collect(self) -> Iterator[Metric]:
        yield from self._of_store()
        yield from self._of_status(self._status())
        yield from self._of_watches(self._watches(), time.monotonic())

    def _of_store(self) -> Iterator[Metric]:
        # The store knows which Services wait, not which kind of object changed them: both gauges tell the same.
        pending, _ = self._store.pending()
        for kind, intake in (("endpoint", self._store.slices), ("service", self._store.services)):
            yield CounterMetricFamily(f"{SYNC}{kind}_changes_total", f"Changes seen ({intake.kind})", intake.events)
            yield GaugeMetricFamily(
                f"{SYNC}{kind}_changes_pending", "Services with changes that no sync has taken up yet", pending
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
        tally = Tally(finding.reason for finding in status.findings)
        yield _gauge("proxyd_findings", "Findings now", "reason", ((reason, tally[reason]) for reason in Reason))

    def _of_watches(self, watches: Mapping[str, WatchState], now: float) -> Iterator[Metric]:
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
