"""Metrics that kube-proxy has in iptables mode only, and what counts failures in either mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.ipt.style import INVALID_DROPPED, LOCALHOST_ACCEPTED
from proxyd.model import Family
from proxyd.sync.status import PassResult

_SYNC = "kubeproxy_sync_proxy_rules_"
# Of each mode: what counts calls and passes that failed, and clean-ups that did; name and explanation.
FAILURES: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "nftables": (
        (f"{_SYNC}nftables_sync_failures_total", "Transactions that nftables refused, and syncs that failed otherwise"),
        (f"{_SYNC}nftables_cleanup_failures_total", "Failures to delete what is no longer used from nftables"),
    ),
    "iptables": (
        (f"{_SYNC}iptables_restore_failures_total", "Calls that iptables refused, and syncs that failed otherwise"),
        ("proxyd_iptables_cleanup_failures_total", "Failures to delete chains that are no longer used"),
    ),
}
_TABLES = ("nat", "filter")
# The last one is the longest that is waited for.
_LOCK_BUCKETS = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0)
# By the kernel's counter: the name of the metric, and its explanation.
_ACCOUNTED = {
    INVALID_DROPPED: (
        "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
        "Packets that were dropped since conntrack found them invalid",
    ),
    LOCALHOST_ACCEPTED: (
        "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
        "Packets to node ports on localhost that were accepted",
    ),
}


class IptablesMetrics:
    """Counts what passes report. Safe from any thread."""

    def __init__(self, registry: CollectorRegistry, families: Sequence[Family]) -> None:
        labels = ["table", "ip_family"]
        self._total = Gauge(f"{_SYNC}iptables_total", "Rules of ours", labels, registry=registry)
        self._last = Gauge(f"{_SYNC}iptables_last", "Rules written by the last sync", labels, registry=registry)
        self._partial = Counter(
            f"{_SYNC}iptables_partial_restore_failures_total",
            "Syncs of changes that failed, and were followed by writing everything",
            ["ip_family"],
            registry=registry,
        )
        self._locked = Counter(
            "proxyd_iptables_lock_failures_total",
            "Calls that failed since somebody else held the lock of iptables",
            ["ip_family"],
            registry=registry,
        )
        self._waited = Histogram(
            "proxyd_iptables_lock_wait_seconds",
            "How long calls waited for the lock of iptables, which others held",
            ["ip_family"],
            buckets=_LOCK_BUCKETS,
            registry=registry,
        )
        for family in families:
            self._waited.labels(family)
            self._partial.labels(family)
            self._locked.labels(family)
            for table, gauge in product(_TABLES, (self._total, self._last)):
                gauge.labels(table, family)

    def lock_waited(self, family: Family, seconds: float) -> None:
        """A call waited so long for the lock."""
        self._waited.labels(family).observe(seconds)

    def pass_done(self, result: PassResult) -> None:
        """Takes what a pass has done."""
        counts = result.counts
        for table, number in counts.rules.items():
            self._total.labels(table, result.family).set(number)
        for table, number in counts.written.items():
            self._last.labels(table, result.family).set(number)
        self._partial.labels(result.family).inc(counts.partial_failures)
        self._locked.labels(result.family).inc(counts.locked)


class AccountedPackets(Collector):
    """Shows the kernel's own counters; ``packets`` gives one by its name (None: not now), on the server's thread."""

    def __init__(self, packets: Callable[[str], int | None], names: frozenset[str]) -> None:
        self._packets = packets
        self._names = names

    def collect(self) -> Iterator[Metric]:
        """One after the other; none of counters that rules do not use."""
        for name, (metric, explanation) in _ACCOUNTED.items():
            if name in self._names and (packets := self._packets(name)) is not None:
                yield CounterMetricFamily(metric, explanation, packets)
