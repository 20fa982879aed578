"""What is counted as it happens: one class for each part of proxyd that tells, with its metrics. Safe from any thread.

Every series that there can be exists from the start, so that a rate is right from the first event on.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from proxyd.kube.events import Outcome
from proxyd.model import Cause, Family, Finding, Reason
from proxyd.serve.iptables_metrics import FAILURES, IptablesMetrics
from proxyd.sync.status import PassResult, Repair

SYNC = "kubeproxy_sync_proxy_rules_"
CONNTRACK = "kubeproxy_conntrack_reconciler_"
SYNC_BUCKETS = tuple(0.001 * 2**k for k in range(15))
# The first one, 0, is of no use, but kube-proxy 1.37 has it.
PROGRAMMING_BUCKETS = (0.0, 0.25, 0.5, *map(float, (*range(1, 60), *range(60, 120, 5), *range(120, 301, 30))))
# A change after a quiet time takes around a millisecond; one that fails at first takes seconds.
CHANGE_BUCKETS = tuple(0.0005 * 2**k for k in range(16))
REQUEST_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)


M = TypeVar("M", Counter, Gauge, Histogram)


class _ByFamily:
    """Makes metrics with the label ip_family, and a series for each family."""

    def __init__(self, families: Sequence[Family], registry: CollectorRegistry) -> None:
        self.families = tuple(families)
        self.registry = registry

    def histogram(self, name: str, documentation: str, buckets: Sequence[float] = SYNC_BUCKETS) -> Histogram:
        return self._begun(Histogram(name, documentation, ["ip_family"], buckets=buckets, registry=self.registry))

    def counter(self, name: str, documentation: str) -> Counter:
        return self._begun(Counter(name, documentation, ["ip_family"], registry=self.registry))

    def gauge(self, name: str, documentation: str) -> Gauge:
        return self._begun(Gauge(name, documentation, ["ip_family"], registry=self.registry))

    def _begun(self, metric: M) -> M:
        for family in self.families:
            metric.labels(family)
        return metric


class SyncCounters:
    """Counts what the sync thread does: an ``Observer``."""

    def __init__(self, families: Sequence[Family], registry: CollectorRegistry, mode: str = "nftables") -> None:
        make = _ByFamily(families, registry)
        self._families = make.families
        self.iptables = IptablesMetrics(registry, families) if mode == "iptables" else None
        self._passes = make.histogram(f"{SYNC}duration_seconds", "Duration of all syncs")
        self._full = make.histogram("kubeproxy_sync_full_proxy_rules_duration_seconds", "Duration of full syncs")
        self._partial = make.histogram(
            "kubeproxy_sync_partial_proxy_rules_duration_seconds", "Duration of partial syncs"
        )
        self._programming = make.histogram(
            "kubeproxy_network_programming_duration_seconds",
            "From the change of an endpoint (its trigger time) to the rules in the kernel",
            PROGRAMMING_BUCKETS,
        )
        self._queued = make.gauge(f"{SYNC}last_queued_timestamp_seconds", "Unix time of the last request for a sync")
        failures, cleanup_failures = FAILURES[mode]
        self._failures = make.counter(*failures)
        self._cleanup_failures = make.counter(*cleanup_failures)
        self._refusals = make.counter("proxyd_kernel_refusals_total", "Transactions that the kernel refused")
        self._operations = make.counter("proxyd_sync_operations_total", "Changes written to the kernel")
        self._repaired = Counter(
            "proxyd_drift_repaired_total",
            "Changes that others made to our tables and that were undone, place by place or by writing everything",
            ["ip_family", "how"],
            registry=registry,
        )
        self._changes = Histogram(
            "proxyd_change_to_kernel_seconds",
            "From receiving a change to the commit that has it",
            ["ip_family", "cause"],
            buckets=CHANGE_BUCKETS,
            registry=registry,
        )
        self._seen = Counter("proxyd_findings_seen_total", "Findings that came up", ["reason"], registry=registry)
        for reason in Reason:
            self._seen.labels(reason)
        for family in self._families:
            for cause in Cause:
                self._changes.labels(family, cause)
            for how in get_args(Repair):
                self._repaired.labels(family, how)

    def queued(self) -> None:
        """See ``Observer``: it is for all families."""
        now = time.time()
        for family in self._families:
            self._queued.labels(family).set(now)

    def pass_done(self, result: PassResult) -> None:
        """See ``Observer``. Failed ones count as syncs too, as in kube-proxy."""
        self._passes.labels(result.family).observe(result.seconds)
        kind = self._full if result.full else self._partial
        kind.labels(result.family).observe(result.seconds)
        # A pass can also fail without the kernel having said no.
        self._failures.labels(result.family).inc(max(result.refusals, bool(result.error)))
        self._refusals.labels(result.family).inc(result.refusals)
        if self.iptables is not None:
            self.iptables.pass_done(result)
        if not result.error:
            self._operations.labels(result.family).inc(result.operations)

    def programmed(self, family: Family, seconds: float) -> None:
        """See ``Observer``."""
        self._programming.labels(family).observe(seconds)

    def written(self, family: Family, cause: Cause, seconds: float) -> None:
        """See ``Observer``."""
        self._changes.labels(family, cause).observe(seconds)

    def cleanup_failed(self, family: Family) -> None:
        """See ``Observer``."""
        self._cleanup_failures.labels(family).inc()

    def repaired(self, family: Family, how: Repair, edits: int) -> None:
        """See ``Observer``."""
        self._repaired.labels(family, how).inc(edits)

    def found(self, finding: Finding) -> None:
        """See ``Observer``."""
        self._seen.labels(finding.reason).inc()


class FlowCounters:
    """Counts what the cleaner of flows does: a ``FlowObserver``."""

    def __init__(self, families: Sequence[Family], registry: CollectorRegistry) -> None:
        make = _ByFamily(families, registry)
        self._seconds = make.histogram(f"{CONNTRACK}sync_duration_seconds", "Duration of looking for stale flows")
        self._deleted = make.counter(f"{CONNTRACK}deleted_entries_total", "Stale flows deleted")
        self._failures = make.counter(
            "proxyd_conntrack_failures_total", "Failures to delete stale flows, which are then tried again"
        )

    def flows_cleaned(self, family: Family, seconds: float, deleted: int) -> None:
        """See ``FlowObserver``."""
        self._seconds.labels(family).observe(seconds)
        self._deleted.labels(family).inc(deleted)

    def flows_failed(self, family: Family) -> None:
        """See ``FlowObserver``."""
        self._failures.labels(family).inc()


class ProbeCounters:
    """Counts the answers of the health address."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._healthz = Counter("kubeproxy_proxy_healthz_total", "Answers of /healthz", ["code"], registry=registry)
        self._livez = Counter("kubeproxy_proxy_livez_total", "Answers of /livez", ["code"], registry=registry)
        for code in (200, 503):
            self._healthz.labels(code)
            self._livez.labels(code)

    def healthz(self, code: int) -> None:
        """Counts an answer of /healthz."""
        self._healthz.labels(code).inc()

    def livez(self, code: int) -> None:
        """Counts an answer of /livez."""
        self._livez.labels(code).inc()


class ApiCounters:
    """Counts what is asked of the API server and what becomes of it, as client-go does, and the fate of Events."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "rest_client_requests_total",
            "Requests to the API server by status code (<error>: no answer), method and host",
            ["code", "method", "host"],
            registry=registry,
        )
        self._seconds = Histogram(
            "rest_client_request_duration_seconds",
            "From sending a request to the head of its answer, by verb and host",
            ["verb", "host"],
            buckets=REQUEST_BUCKETS,
            registry=registry,
        )
        self._events = Counter("proxyd_events_total", "Events by what became of them", ["outcome"], registry=registry)
        for outcome in Outcome:
            self._events.labels(outcome)

    def answered(self, method: str, host: str, status: int, seconds: float) -> None:
        """See ``RequestObserver``."""
        self._requests.labels(str(status) if status else "<error>", method, host).inc()
        self._seconds.labels(method, host).observe(seconds)

    def event_done(self, outcome: Outcome) -> None:
        """See ``EventObserver``."""
        self._events.labels(outcome).inc()
