"""Metrics of traffic, as a scrape sees them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from proxyd.desired.endpoints import Backend
from proxyd.model import FAMILIES, Family
from proxyd.serve.metrics import Metrics
from proxyd.serve.traffic import TrafficCollector
from proxyd.sync.status import Status
from proxyd.sync.traffic import ServiceTraffic, Traffic
from tests import build

V4, V6 = FAMILIES
DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"


def scraped(traffic: dict[Family, Traffic]) -> list[str]:
    registry = CollectorRegistry()
    registry.register(TrafficCollector(lambda: traffic))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_services_and_endpoints_of_both_families() -> None:
    web = ServiceTraffic(
        "shop", "web", "http", "tcp", 7, {Backend("10.244.0.1", 8080): 3, Backend("10.244.0.2", 80): 4}
    )
    dns = ServiceTraffic("system", "dns", "", "udp", 2, {Backend("fd00::1", 53): 2})
    assert scraped({V4: Traffic((web,)), V6: Traffic((dns,))}) == [
        'proxyd_service_connections_total{ip_family="IPv4",namespace="shop",port="http",protocol="tcp",service="web"} 7.0',
        'proxyd_service_connections_total{ip_family="IPv6",namespace="system",port="",protocol="udp",service="dns"} 2.0',
        'proxyd_endpoint_connections_total{endpoint="10.244.0.1:8080",ip_family="IPv4",namespace="shop",port="http",'
        'protocol="tcp",service="web"} 3.0',
        'proxyd_endpoint_connections_total{endpoint="10.244.0.2:80",ip_family="IPv4",namespace="shop",port="http",'
        'protocol="tcp",service="web"} 4.0',
        'proxyd_endpoint_connections_total{endpoint="[fd00::1]:53",ip_family="IPv6",namespace="system",port="",'
        'protocol="udp",service="dns"} 2.0',
        f"{DROPPED} 0.0",
    ]


def test_dropped_segments_of_both_families_are_added_up() -> None:
    assert scraped({V4: Traffic(dropped=2), V6: Traffic(dropped=3)}) == [f"{DROPPED} 5.0"]


def test_packets_refused_on_localhost_by_family_and_protocol() -> None:
    name = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total"
    traffic = {V4: Traffic(localhost_rejected={"udp": 2, "sctp": 0}), V6: Traffic(localhost_rejected={"udp": 1})}
    assert [line for line in scraped(traffic) if line.startswith(name)] == [
        f'{name}{{ip_family="IPv4",protocol="udp"}} 2.0',
        f'{name}{{ip_family="IPv4",protocol="sctp"}} 0.0',
        f'{name}{{ip_family="IPv6",protocol="udp"}} 1.0',
    ]


def test_before_the_first_reading_nothing_is_dropped_and_nothing_else_is_there() -> None:
    assert scraped({}) == [f"{DROPPED} 0.0"]


def test_it_is_shown_with_the_other_metrics_and_is_a_counter() -> None:
    metrics = Metrics(FAMILIES, "1", lambda: Status("nftables"), build.store(), dict)
    metrics.add(TrafficCollector(dict))
    lines = metrics.render().decode().splitlines()
    assert f"# TYPE {DROPPED} counter" in lines
    assert f"{DROPPED} 0.0" in lines
    assert "# TYPE proxyd_service_connections_total counter" in lines
