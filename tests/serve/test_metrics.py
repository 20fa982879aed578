"""Metrics: names, types, labels and buckets against kube-proxy's table (kube-proxy-behaviour.md 7.2), and their values."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from proxyd.kube.client import RequestObserver
from proxyd.kube.decode import Decoded
from proxyd.kube.events import Outcome
from proxyd.kube.recorder import EventObserver
from proxyd.kube.store import Store
from proxyd.model import FAMILIES, Cause, EndpointSlice, Family, Finding, Reason, Service, ServiceKey
from proxyd.serve import app
from proxyd.serve.http import Server
from proxyd.serve.metrics import Metrics
from proxyd.sync.cleaner import FlowObserver
from proxyd.sync.status import FamilyStatus, Observer, PassResult, Status

BOUNDS_1 = "0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf"
BOUNDS_2 = """
0 0.25 0.5 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40
41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 65 70 75 80 85 90 95 100 105 110 115
120 150 180 210 240 270 300 +Inf
"""
BOUNDS_3 = "0.0005 0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 +Inf"
B1 = BOUNDS_1.split()
B2 = BOUNDS_2.split()
B3 = BOUNDS_3.split()

Labels = dict[str, tuple[str, ...]]
FAMILY: Labels = {"ip_family": ("IPv4", "IPv6")}
CODE: Labels = {"code": ("200", "503")}
REASON: Labels = {"reason": tuple(reason.value for reason in Reason)}
RESOURCE: Labels = {"resource": ("services",)}

# Name -> type, labels and their values, bucket bounds.
KUBE_PROXY: dict[str, tuple[str, Labels, list[str]]] = {
    "kubeproxy_sync_proxy_rules_duration_seconds": ("histogram", FAMILY, B1),
    "kubeproxy_sync_full_proxy_rules_duration_seconds": ("histogram", FAMILY, B1),
    "kubeproxy_sync_partial_proxy_rules_duration_seconds": ("histogram", FAMILY, B1),
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds": ("gauge", FAMILY, []),
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": ("gauge", FAMILY, []),
    "kubeproxy_network_programming_duration_seconds": ("histogram", FAMILY, B2),
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending": ("gauge", {}, []),
    "kubeproxy_sync_proxy_rules_endpoint_changes_total": ("counter", {}, []),
    "kubeproxy_sync_proxy_rules_service_changes_pending": ("gauge", {}, []),
    "kubeproxy_sync_proxy_rules_service_changes_total": ("counter", {}, []),
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total": (
        "gauge",
        {**FAMILY, "traffic_policy": ("internal", "external")},
        [],
    ),
    "kubeproxy_proxy_healthz_total": ("counter", CODE, []),
    "kubeproxy_proxy_livez_total": ("counter", CODE, []),
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total": ("counter", FAMILY, []),
    "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total": ("counter", FAMILY, []),
    "kubeproxy_conntrack_reconciler_sync_duration_seconds": ("histogram", FAMILY, B1),
    "kubeproxy_conntrack_reconciler_deleted_entries_total": ("counter", FAMILY, []),
    "kubeproxy_nftables_localhost_nodeport_listeners": ("gauge", FAMILY, []),
    "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": ("counter", FAMILY, []),
}
OUR_OWN: dict[str, tuple[str, Labels, list[str]]] = {
    "proxyd_drift_repaired_total": ("counter", {**FAMILY, "how": ("mended", "rewritten")}, []),
    "proxyd_build_info": ("gauge", {"version": ("1.2.3",)}, []),
    "proxyd_findings": ("gauge", REASON, []),
    "proxyd_findings_seen_total": ("counter", REASON, []),
    "proxyd_services": ("gauge", FAMILY, []),
    "proxyd_endpoints": ("gauge", FAMILY, []),
    "proxyd_full_sync_services": ("gauge", {**FAMILY, "state": ("written", "total")}, []),
    "proxyd_sync_operations_total": ("counter", FAMILY, []),
    "proxyd_conntrack_failures_total": ("counter", FAMILY, []),
    "proxyd_localhost_nodeport_open_connections": ("gauge", FAMILY, []),
    "proxyd_localhost_nodeport_connections_total": ("counter", FAMILY, []),
    "proxyd_localhost_nodeport_connections_refused_total": ("counter", FAMILY, []),
    "proxyd_localhost_nodeport_dial_failures_total": ("counter", FAMILY, []),
    "proxyd_conntrack_owed_frontends": ("gauge", FAMILY, []),
    "proxyd_kernel_refusals_total": ("counter", FAMILY, []),
    "proxyd_change_to_kernel_seconds": ("histogram", {**FAMILY, "cause": tuple(each.value for each in Cause)}, B3),
    "proxyd_oldest_change_age_seconds": ("gauge", FAMILY, []),
    "proxyd_events_total": ("counter", {"outcome": tuple(each.value for each in Outcome)}, []),
    "proxyd_watch_connected": ("gauge", RESOURCE, []),
    "proxyd_watch_last_event_age_seconds": ("gauge", RESOURCE, []),
    "proxyd_watch_clock_offset_seconds": ("gauge", RESOURCE, []),
    "proxyd_watch_relists_total": ("counter", RESOURCE, []),
    "proxyd_watch_errors_total": ("counter", {**RESOURCE, "reason": ("gone", "timeout")}, []),
}
EXPECTED = KUBE_PROXY | OUR_OWN


@dataclass
class Watch:
    connected: bool = True
    last_event: float | None = None
    relists: int = 0
    errors: dict[str, int] = field(default_factory=lambda: {"gone": 2, "timeout": 1})
    clock_offset: float | None = 0.5


class Setting:
    """Metrics over a real store, with a status and watches that a test may change."""

    def __init__(self, families: tuple[Family, ...] = FAMILIES) -> None:
        self.store = Store()
        self.status = Status("nftables")
        self.watches = {"services": Watch()}
        self.owed: dict[Family, int] = {}
        self.metrics = Metrics(
            families, "1.2.3", lambda: self.status, self.store, lambda: self.watches, lambda: self.owed
        )

    def text(self) -> str:
        return self.metrics.render().decode()

    def samples(self) -> dict[str, float]:
        """Every sample by name and labels as they are written."""
        rows = [line.rsplit(" ", 1) for line in self.text().splitlines() if not line.startswith("#")]
        assert len({name for name, _ in rows}) == len(rows)
        return {name: float(value) for name, value in rows}


@pytest.fixture
def setting() -> Setting:
    return Setting()


def label_sets(labels: Labels) -> set[frozenset[tuple[str, str]]]:
    result: set[frozenset[tuple[str, str]]] = {frozenset()}
    for name, values in labels.items():
        result = {each | {(name, value)} for each in result for value in values}
    return result


def parse(sample: str) -> tuple[str, frozenset[tuple[str, str]]]:
    name, _, labels = sample.partition("{")
    return name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))


def test_families_and_their_types(setting: Setting) -> None:
    types = re.findall(r"^# TYPE (\S+) (\S+)$", setting.text(), re.MULTILINE)
    ours = [(name, kind) for name, kind in types if name.startswith(("kubeproxy_", "proxyd_"))]
    assert sorted(ours) == sorted((name, kind) for name, (kind, _, _) in EXPECTED.items())
    others = {name for name, _ in types} - EXPECTED.keys()
    assert all(name.startswith(("process_", "python_", "rest_client_")) for name in others)
    assert {"process_resident_memory_bytes", "python_info", "python_gc_collections_total"} <= others


@pytest.mark.parametrize("name", EXPECTED)
def test_series_exist_before_anything_happened(setting: Setting, name: str) -> None:
    kind, labels, buckets = EXPECTED[name]
    suffixes = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
    for suffix in suffixes:
        wanted = label_sets({**labels, "le": tuple(buckets)} if suffix == "_bucket" else labels)
        found = {found for sample, found in map(parse, setting.samples()) if sample == name + suffix}
        assert found == wanted


def test_nothing_else(setting: Setting) -> None:
    suffixes = ("", "_bucket", "_count", "_sum")
    known = {name + suffix for name, (kind, _, _) in EXPECTED.items() for suffix in suffixes}
    names = {parse(sample)[0] for sample in setting.samples()}
    assert {name for name in names if name.startswith(("kubeproxy_", "proxyd_"))} <= known
    assert "_created" not in setting.text()


def test_bucket_bounds_are_written_as_go_does(setting: Setting) -> None:
    for name, (kind, _, buckets) in EXPECTED.items():
        if kind == "histogram":
            bounds = re.findall(rf'^{name}_bucket{{[^}}]*ip_family="IPv4",le="([^"]+)"}}', setting.text(), re.MULTILINE)
            assert list(dict.fromkeys(bounds)) == buckets


def test_one_family_only() -> None:
    text = Setting((Family.IPV4,)).text()
    assert 'ip_family="IPv4"' in text
    assert "IPv6" not in text


def test_it_is_an_observer(setting: Setting) -> None:
    observer: Observer = setting.metrics.sync
    before = time.time()
    observer.queued()
    observer.pass_done(PassResult(Family.IPV4, True, 0.003, 10, 500))
    observer.pass_done(PassResult(Family.IPV4, False, 1.0, 1, 7))
    observer.pass_done(PassResult(Family.IPV6, False, 2.0, 1, 9, error="refused"))
    observer.programmed(Family.IPV6, 1.0)
    observer.pass_done(PassResult(Family.IPV6, False, 0.0, 1, 1, refusals=2))
    observer.written(Family.IPV4, Cause.NODE, 0.002)
    observer.cleanup_failed(Family.IPV4)
    observer.found(Finding("Service", "a/b", Reason.DUPLICATE_PORT, "twice"))
    got = setting.samples()
    for family in FAMILIES:
        queued = got[f'kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{{ip_family="{family}"}}']
        assert before <= queued <= time.time()

    def syncs(kind: str, family: str) -> tuple[float, float]:
        name = f"kubeproxy_sync_{kind}proxy_rules_duration_seconds"
        return got[f'{name}_count{{ip_family="{family}"}}'], got[f'{name}_sum{{ip_family="{family}"}}']

    assert [syncs(kind, "IPv4") for kind in ("", "full_", "partial_")] == [(2, 1.003), (1, 0.003), (1, 1)]
    assert [syncs(kind, "IPv6") for kind in ("", "full_", "partial_")] == [(2, 2), (0, 0), (2, 2)]
    assert got['kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"}'] == 0
    assert got['kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"}'] == 3
    assert got['proxyd_kernel_refusals_total{ip_family="IPv6"}'] == 2
    change = "proxyd_change_to_kernel_seconds_bucket"
    assert got[f'{change}{{cause="node",ip_family="IPv4",le="0.001"}}'] == 0
    assert got[f'{change}{{cause="node",ip_family="IPv4",le="0.002"}}'] == 1
    assert got[f'{change}{{cause="drift",ip_family="IPv4",le="+Inf"}}'] == 0
    assert got['kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv4"}'] == 1
    assert got['kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv6",le="0.5"}'] == 0
    assert got['kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv6",le="1"}'] == 1
    assert got['proxyd_sync_operations_total{ip_family="IPv4"}'] == 507
    assert got['proxyd_sync_operations_total{ip_family="IPv6"}'] == 1
    assert got['proxyd_findings_seen_total{reason="duplicate-port"}'] == 1


def test_it_is_a_flow_observer(setting: Setting) -> None:
    observer: FlowObserver = setting.metrics.flows
    observer.flows_cleaned(Family.IPV4, 0.5, 0)
    observer.flows_cleaned(Family.IPV4, 0.25, 7)
    observer.flows_failed(Family.IPV6)
    got = setting.samples()
    name = "kubeproxy_conntrack_reconciler"
    assert got[f'{name}_sync_duration_seconds_count{{ip_family="IPv4"}}'] == 2
    assert got[f'{name}_sync_duration_seconds_sum{{ip_family="IPv4"}}'] == 0.75
    assert got[f'{name}_deleted_entries_total{{ip_family="IPv4"}}'] == 7
    assert got[f'{name}_deleted_entries_total{{ip_family="IPv6"}}'] == 0
    assert [got[f'proxyd_conntrack_failures_total{{ip_family="{family}"}}'] for family in FAMILIES] == [0, 1]


def test_requests_and_events_are_counted(setting: Setting) -> None:
    requests: RequestObserver = setting.metrics.api
    outcomes: EventObserver = setting.metrics.api
    requests.answered("GET", "10.0.0.1:6443", 200, 0.004)
    requests.answered("GET", "10.0.0.1:6443", 200, 0.5)
    requests.answered("POST", "10.0.0.1:6443", 0, 10.0)
    outcomes.event_done(Outcome.DROPPED)
    got = setting.samples()
    assert got['rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"}'] == 2
    assert got['rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="POST"}'] == 1
    seconds = "rest_client_request_duration_seconds"
    assert got[f'{seconds}_bucket{{host="10.0.0.1:6443",le="0.005",verb="GET"}}'] == 1
    assert got[f'{seconds}_count{{host="10.0.0.1:6443",verb="GET"}}'] == 2
    assert got[f'{seconds}_count{{host="10.0.0.1:6443",verb="POST"}}'] == 1
    assert got['proxyd_events_total{outcome="dropped"}'] == 1
    assert got['proxyd_events_total{outcome="created"}'] == 0


def test_state_is_read_at_each_scrape(setting: Setting) -> None:
    finding = Finding("Service", "a/b", Reason.INVALID_PORT, "0")
    setting.status = Status(
        "nftables",
        (
            FamilyStatus(
                Family.IPV4,
                last_success=5.0,
                last_success_time=1795953600.25,
                services=4,
                endpoints=11,
                no_local_internal=2,
                no_local_external=3,
            ),
            FamilyStatus(Family.IPV6),
        ),
        (finding, Finding("Service", "a/c", Reason.INVALID_PORT, "-1")),
    )
    setting.owed = {Family.IPV4: 7}
    got = setting.samples()
    assert got['kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}'] == 1795953600.25
    assert got['kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"}'] == 0
    no_local = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
    assert got[f'{no_local}{{ip_family="IPv4",traffic_policy="internal"}}'] == 2
    assert got[f'{no_local}{{ip_family="IPv4",traffic_policy="external"}}'] == 3
    assert got['proxyd_services{ip_family="IPv4"}'] == 4
    assert [got[f'proxyd_conntrack_owed_frontends{{ip_family="{family}"}}'] for family in FAMILIES] == [7, 0]
    assert got['proxyd_endpoints{ip_family="IPv4"}'] == 11
    assert got['proxyd_findings{reason="invalid-port"}'] == 2
    assert got['proxyd_findings{reason="frontend-conflict"}'] == 0
    setting.status = Status("nftables")
    assert setting.samples()['proxyd_findings{reason="invalid-port"}'] == 0


def test_changes_come_from_the_store(setting: Setting) -> None:
    key = ServiceKey("default", "web")
    service = Decoded(key, "", Service(key))
    setting.store.services.put(service)
    setting.store.services.put(service)
    setting.store.slices.put(Decoded(("default", "web-1"), "", EndpointSlice("default", "web-1", key, Family.IPV4)))
    name = "kubeproxy_sync_proxy_rules_{}_changes_{}"
    got = setting.samples()
    assert got[name.format("service", "total")] == 2
    assert got[name.format("endpoint", "total")] == 1
    assert got[name.format("service", "pending")] == got[name.format("endpoint", "pending")] == 1
    setting.store.take()
    got = setting.samples()
    assert got[name.format("service", "pending")] == got[name.format("endpoint", "pending")] == 0
    assert got[name.format("service", "total")] == 2


def test_the_age_of_the_oldest_change_is_that_of_a_family_or_of_what_nobody_has_taken(setting: Setting) -> None:
    v4, v6 = (f'proxyd_oldest_change_age_seconds{{ip_family="{family}"}}' for family in FAMILIES)
    now = time.monotonic()
    setting.status = Status("nftables", (FamilyStatus(Family.IPV4, owed_since=now - 100), FamilyStatus(Family.IPV6)))
    assert (setting.samples()[v4] >= 100, setting.samples()[v6]) == (True, 0)
    key = ServiceKey("default", "web")
    setting.store.services.put(Decoded(key, "", Service(key)))
    assert setting.samples()[v6] == 0, "nothing can be written before both kinds are listed"
    setting.store.slices.replace(())
    setting.store.services.replace((Decoded(key, "", Service(key)),))
    assert (setting.samples()[v4] >= 100, 0 < setting.samples()[v6] < 100) == (True, True)
    setting.status = Status("nftables", (FamilyStatus(Family.IPV4), FamilyStatus(Family.IPV6)))
    assert (setting.samples()[v4] > 0, setting.samples()[v6] > 0) == (True, True)
    setting.store.take()
    assert (setting.samples()[v4], setting.samples()[v6]) == (0, 0)


def test_watches(setting: Setting) -> None:
    age = 'proxyd_watch_last_event_age_seconds{resource="services"}'
    assert setting.samples()[age] == float("inf")
    setting.watches["services"] = Watch(False, time.monotonic() - 100, 3)
    got = setting.samples()
    assert got[age] >= 100
    assert got['proxyd_watch_connected{resource="services"}'] == 0
    assert got['proxyd_watch_relists_total{resource="services"}'] == 3
    assert got['proxyd_watch_errors_total{reason="gone",resource="services"}'] == 2
    offset = 'proxyd_watch_clock_offset_seconds{resource="services"}'
    assert got[offset] == 0.5
    setting.watches["services"].clock_offset = None
    assert offset not in setting.samples()
    setting.watches.clear()
    assert "resource=" not in setting.text()


class TestRoutes:
    """Both route tables, over HTTP."""

    @pytest.fixture
    def server(self) -> Iterator[Server]:
        server = Server()
        server.start()
        yield server
        server.stop()

    def get(self, server: Server, routes: object, path: str) -> tuple[int, str, bytes]:
        listener = server.add_listener("127.0.0.1", 0, routes)  # type: ignore[arg-type]
        assert listener.listening.wait(10)
        assert listener.address is not None
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{listener.address[1]}{path}", timeout=10) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.headers["Content-Type"], error.read()

    def test_metrics_address(self, server: Server, setting: Setting) -> None:
        routes = app.metrics_routes(setting.metrics, "nftables", {"mode": "nftables", "iptables": {}})
        code, content_type, body = self.get(server, routes, "/metrics")
        assert (code, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"\nkubeproxy_sync_proxy_rules_duration_seconds_bucket" in body
        assert self.get(server, routes, "/healthz") == (200, "text/plain; charset=utf-8", b"ok")
        assert self.get(server, routes, "/proxyMode") == (200, "text/plain; charset=utf-8", b"nftables")
        code, content_type, body = self.get(server, routes, "/configz")
        assert (code, content_type) == (200, "application/json")
        assert json.loads(body) == {"kubeproxy.config.k8s.io": {"mode": "nftables", "iptables": {}}}
        assert self.get(server, routes, "/livez")[0] == 404

    def test_health_address(self, server: Server, setting: Setting) -> None:
        setting.status = Status("nftables", (FamilyStatus(Family.IPV4),))
        waiting: list[float | None] = [None]
        routes = app.health_routes(setting.metrics, lambda: setting.status, lambda: waiting[0], 30.0, dict)
        assert self.get(server, routes, "/healthz")[:2] == (503, "application/json")
        assert self.get(server, routes, "/livez")[:2] == (200, "application/json")
        waiting[0] = now = time.monotonic() - 60
        assert self.get(server, routes, "/livez")[0] == 200
        setting.status = Status("nftables", (FamilyStatus(Family.IPV4, last_success=now),))
        assert self.get(server, routes, "/livez")[0] == 503
        assert self.get(server, routes, "/metrics")[0] == 404
        got = setting.samples()
        assert got['kubeproxy_proxy_healthz_total{code="200"}'] == 0
        assert got['kubeproxy_proxy_healthz_total{code="503"}'] == 1
        assert got['kubeproxy_proxy_livez_total{code="200"}'] == 2
        assert got['kubeproxy_proxy_livez_total{code="503"}'] == 1
