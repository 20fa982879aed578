"""Prometheus metrics: kube-proxy's, with exactly its names, types, labels and buckets, and a few of our own (``proxyd_``).

Here they come together and are rendered; counters.py counts events, collectors.py reads state.
Always the plain text format 0.0.4, like kube-proxy: in OpenMetrics, a gauge could not be called ``..._total``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.registry import Collector

from proxyd.kube.store import Store
from proxyd.model import Family
from proxyd.serve.collectors import StateCollector, WatchState
from proxyd.serve.counters import ApiCounters, FlowCounters, ProbeCounters, SyncCounters
from proxyd.serve.localhost_metrics import LocalhostMetrics
from proxyd.sync.status import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Python writes the bucket bound 1 as "1.0", Go as "1"; rules and dashboards name the bounds of kube-proxy.
_WHOLE_BOUND = re.compile(rb'([{,]le="\d+)\.0"')

# For the whole process: this library has no other switch.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """All metrics of one proxyd, counted by ``sync``, ``flows``, ``probes`` and ``api``. Safe from any thread.

    ``status``, ``watches`` (state by resource) and ``owed_frontends`` are called at each scrape, on the server's thread.
    """

    def __init__(
        self,
        families: Sequence[Family],
        version: str,
        status: Callable[[], Status],
        store: Store,
        watches: Callable[[], Mapping[str, WatchState]] = dict,
        owed_frontends: Callable[[], Mapping[Family, int]] = dict,
        mode: str = "nftables",
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self.sync = SyncCounters(families, registry, mode)
        self.flows = FlowCounters(families, registry)
        self.probes = ProbeCounters(registry)
        self.api = ApiCounters(registry)
        self.localhost = LocalhostMetrics(registry, families)
        Gauge("proxyd_build_info", "The running version", ["version"], registry=registry).labels(version).set(1)
        registry.register(StateCollector(tuple(families), status, store, watches, owed_frontends))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def add(self, collector: Collector) -> None:
        """Shows more metrics, which are somebody else's state."""
        self._registry.register(collector)

    def render(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return _WHOLE_BOUND.sub(rb'\1"', generate_latest(self._registry))
