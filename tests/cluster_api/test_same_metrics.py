"""What the real kube-proxy exports in nftables mode, proxyd exports too: scraped from both, at one API server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster_api.steps import Offers
from tests.controlplane import objects
from tests.controlplane.api import Api, path_of
from tests.controlplane.exposition import Shape, shapes, value
from tests.controlplane.outpost import METRICS_PORT, PATIENCE, Outpost
from tests.controlplane.peer import Peer, peer
from tests.controlplane.plane import Plane
from tests.program import until

# kube-proxy's metrics that proxyd does not have yet.
PENDING = {
    "kubeproxy_nftables_localhost_nodeport_listeners",
    "kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total",
    "kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
}
# What is left out for good, by the beginning of its name, and why.
EXCEPTIONS = {
    "go_": "the runtime of Go; proxyd has python_",
    "aggregator_discovery_": "of a library in kube-proxy that it does not use",
    "apiserver_": "of a library in kube-proxy that it does not use",
    "cardinality_enforcement_": "of the library that exports its metrics",
    "disabled_metrics_": "of the library that exports its metrics",
    "hidden_metrics_": "of the library that exports its metrics",
    "registered_metrics_": "of the library that exports its metrics",
    "kubernetes_build_info": "the version of proxyd is none of Kubernetes: alerts on version skew would fire",
    "kubernetes_feature_enabled": "the gates of Kubernetes are not there to be switched",
    "process_network_": "of the whole network namespace, not of the process",
    "process_virtual_memory_max_bytes": "prometheus-client does not have it; nobody limits address space",
    "rest_client_exec_plugin_": "how client-go does it",
    "rest_client_rate_limiter_": "how client-go does it",
    "rest_client_request_size_": "writes are a few Events",
    "rest_client_response_size_": "client-go does not count watches, which are all that there is",
    "rest_client_transport_": "how client-go does it",
}
# Has to be seen, or the comparison says nothing.
SEEN = {
    "kubeproxy_sync_proxy_rules_duration_seconds",
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    "kubeproxy_network_programming_duration_seconds",
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
    "kubeproxy_sync_proxy_rules_endpoint_changes_total",
    "kubeproxy_sync_proxy_rules_service_changes_pending",
    "kubeproxy_sync_proxy_rules_service_changes_total",
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
    "kubeproxy_conntrack_reconciler_sync_duration_seconds",
    "kubeproxy_conntrack_reconciler_deleted_entries_total",
    "kubeproxy_proxy_healthz_total",
    "kubeproxy_proxy_livez_total",
    "kubeproxy_nftables_localhost_nodeport_listeners",
    "rest_client_requests_total",
    "rest_client_request_duration_seconds",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
}
# For metrics that are there with a feature gate only.
MORE = ("--feature-gates=KubeProxyNFTablesLocalhostNodePorts=true", "--nodeport-addresses=primary,localhost")


def scrape(of: Peer) -> str:
    status, text = of.get("/metrics", METRICS_PORT)
    assert status == 200, text
    return text


def stir(api: Api, offer: Offers, other: Peer) -> None:
    """Has kube-proxy do everything that makes a metric appear."""

    def counted(name: str, least: float = 1) -> None:
        until(lambda: value(scrape(other), f"kubeproxy_{name}") >= least, f"{name} of kube-proxy", PATIENCE)

    counted("sync_full_proxy_rules_duration_seconds_count", 2)
    other.get("/livez", 10256)
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    annotations = {"endpoints.kubernetes.io/last-change-trigger-time": now}
    offer.keep(objects.service("web", type="NodePort"))
    offer.keep(objects.endpoint_slice("web", ["10.244.1.11"], annotations=annotations))
    udp = [{"name": "http", "port": 53, "protocol": "UDP"}]
    slice_ = objects.endpoint_slice("dns", ["10.244.1.11"])
    offer.keep(objects.service("dns", ports=udp), {**slice_, "ports": [{**udp[0], "port": 8080}]})
    counted("sync_partial_proxy_rules_duration_seconds_count")
    counted("network_programming_duration_seconds_count")
    counted("conntrack_reconciler_sync_duration_seconds_count")
    counted("nftables_localhost_nodeport_listeners")
    other.host.run("nft", "delete", "table", "ip", "kube-proxy")
    slice_["endpoints"].append({"addresses": ["10.244.1.12"], "conditions": {"ready": True}})
    api.patch(path_of(slice_), {"endpoints": slice_["endpoints"]})
    counted("sync_proxy_rules_nftables_sync_failures_total")


@pytest.fixture
def theirs(plane: Plane, api: Api, offer: Offers, tmp_path: Path) -> dict[str, Shape]:
    """What kube-proxy exports, after all that makes it export something."""
    address = {"type": "InternalIP", "address": "192.0.2.12"}
    api.patch("/api/v1/nodes/node2/status", {"status": {"addresses": [address]}})
    try:
        with peer(plane, tmp_path, "node2", *MORE) as other:
            stir(api, offer, other)
            return shapes(scrape(other))
    except LookupError as missing:
        pytest.skip(str(missing))


def excepted(name: str) -> bool:
    return any(name.startswith(beginning) for beginning in EXCEPTIONS)


def test_all_of_kube_proxys_metrics_are_there_with_their_types_labels_and_buckets(
    here: Outpost, theirs: dict[str, Shape]
) -> None:
    assert theirs.keys() >= SEEN, "not all of kube-proxy's metrics came to be seen"
    ours = shapes(here.proxyd.get("/metrics", METRICS_PORT)[1])
    expected = {name: shape for name, shape in theirs.items() if not excepted(name)}
    assert {name for name in expected if name not in ours} == PENDING & theirs.keys()
    for name in ours.keys() & expected.keys():
        assert ours[name] == expected[name], name
    assert not PENDING & ours.keys(), "no longer pending"


def test_every_exception_is_about_something_that_kube_proxy_has_and_proxyd_has_not(
    here: Outpost, theirs: dict[str, Shape]
) -> None:
    ours = shapes(here.proxyd.get("/metrics", METRICS_PORT)[1])
    assert [each for each in EXCEPTIONS if not any(name.startswith(each) for name in theirs)] == []
    assert [name for name in ours if excepted(name)] == []
    assert not any(each.startswith("kubeproxy_") for each in EXCEPTIONS)
