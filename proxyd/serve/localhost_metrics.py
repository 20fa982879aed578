"""Metrics of node ports on the loopback address; the first two are kube-proxy's (1.37)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from proxyd.model import Family

UPSTREAM = "kubeproxy_nftables_localhost_nodeport_"
OWN = "proxyd_localhost_nodeport_"


class LocalhostMetrics:
    """Counts what the relay reports (a LocalhostObserver)."""

    def __init__(self, registry: CollectorRegistry, families: Iterable[Family]) -> None:
        def counter(name: str, documentation: str) -> Counter:
            return Counter(name, documentation, ["ip_family"], registry=registry)

        def gauge(name: str, documentation: str) -> Gauge:
            return Gauge(name, documentation, ["ip_family"], registry=registry)

        self._listeners = gauge(f"{UPSTREAM}listeners", "Node ports that are listened for on localhost")
        self._failures = counter(f"{UPSTREAM}listener_creation_failures_total", "Attempts to listen that failed")
        self._open = gauge(f"{OWN}open_connections", "Connections to node ports on localhost now")
        self._opened = counter(f"{OWN}connections_total", "Connections to node ports on localhost that were accepted")
        self._refused = counter(f"{OWN}connections_refused_total", "Connections refused, since there were too many")
        self._dial_failures = counter(f"{OWN}dial_failures_total", "Endpoints that could not be reached")
        for metric in (self._listeners, self._failures, self._open, self._opened, self._refused, self._dial_failures):
            for family in families:
                metric.labels(family)

    def listening(self, family: Family, count: int) -> None:
        """See ``LocalhostObserver``."""
        self._listeners.labels(family).set(count)

    def cannot_listen(self, family: Family) -> None:
        """See ``LocalhostObserver``."""
        self._failures.labels(family).inc()

    def opened(self, family: Family) -> None:
        """See ``LocalhostObserver``."""
        self._open.labels(family).inc()
        self._opened.labels(family).inc()

    def closed(self, family: Family) -> None:
        """See ``LocalhostObserver``."""
        self._open.labels(family).dec()

    def refused(self, family: Family) -> None:
        """See ``LocalhostObserver``."""
        self._refused.labels(family).inc()

    def dial_failed(self, family: Family) -> None:
        """See ``LocalhostObserver``."""
        self._dial_failures.labels(family).inc()
