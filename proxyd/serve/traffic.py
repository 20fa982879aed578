"""Metrics of the traffic that the rules have counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from proxyd.desired.endpoints import Backend
from proxyd.model import Family
from proxyd.serve.localhost_metrics import UPSTREAM
from proxyd.sync.traffic import Traffic

_LABELS = ("ip_family", "namespace", "service", "port", "protocol")


class TrafficCollector(Collector):
    """Shows what was read last; ``traffic`` is called at each scrape, on the server's thread."""

    def __init__(self, traffic: Callable[[], Mapping[Family, Traffic]]) -> None:
        self._traffic = traffic

    def collect(self) -> Iterator[Metric]:
        """One after the other."""
        traffic = self._traffic()
        services = CounterMetricFamily(
            "proxyd_service_connections_total", "New connections to a port of a Service", labels=_LABELS
        )
        endpoints = CounterMetricFamily(
            "proxyd_endpoint_connections_total",
            "New connections to an endpoint through a port of a Service",
            labels=(*_LABELS, "endpoint"),
        )
        for family, of_family in traffic.items():
            for each in of_family.services:
                labels = (family, each.namespace, each.service, each.port, each.protocol)
                services.add_metric(labels, each.connections)
                for endpoint, connections in each.endpoints.items():
                    endpoints.add_metric((*labels, endpoint_text(endpoint)), connections)
        rejected = CounterMetricFamily(
            f"{UPSTREAM}rejected_packets_total",
            "Packets to node ports on localhost that were refused",
            labels=("ip_family", "protocol"),
        )
        for family, of_family in traffic.items():
            for protocol, packets in of_family.localhost_rejected.items():
                rejected.add_metric((family, protocol), packets)
        yield rejected
        yield services
        yield endpoints
        # kube-proxy's name, which it has in iptables mode; the rule is the same in either.
        yield CounterMetricFamily(
            "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
            "TCP segments of Services that were dropped since conntrack found them invalid",
            sum(each.dropped for each in traffic.values()),
        )


def endpoint_text(endpoint: Backend) -> str:
    """An endpoint as "address:port"."""
    host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    return f"{host}:{endpoint.port}"
