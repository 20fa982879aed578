"""Metrics that kube-proxy has in iptables mode only, and what counts failures in either mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge

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
        for family in families:
            self._partial.labels(family)
            self._locked.labels(family)
            for table, gauge in product(_TABLES, (self._total, self._last)):
                gauge.labels(table, family)

    def pass_done(self, result: PassResult) -> None:
        """Takes what a pass has done."""
        counts = result.counts
        for table, number in counts.rules.items():
            self._total.labels(table, result.family).set(number)
        for table, number in counts.written.items():
            self._last.labels(table, result.family).set(number)
        self._partial.labels(result.family).inc(counts.partial_failures)
        self._locked.labels(result.family).inc(counts.locked)
