"""Metrics of the table of connections, which Service traffic shares with everything else on the node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.kernel.surroundings import Tracking


class TrackingCollector(Collector):
    """Shows how full it is; ``read`` is called at each scrape, on the server's thread. None: nothing is tracked."""

    def __init__(self, read: Callable[[], Tracking | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Both numbers, or none."""
        if tracking := self._read():
            yield GaugeMetricFamily("proxyd_conntrack_entries", "Connections that are tracked", tracking.entries)
            yield GaugeMetricFamily(
                "proxyd_conntrack_entries_limit", "How many connections can be tracked", tracking.limit
            )
