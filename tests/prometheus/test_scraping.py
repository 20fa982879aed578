"""A real Prometheus scrapes running proxyds, one in each mode, and its rules and the dashboard find what they look for."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import manifests
from tests.cluster.manifests import VIP, answers, manifest
from tests.netns import why_not
from tests.program import FLAGS, Proxyd, until, write
from tests.prometheus.expressions import OF_AN_API_SERVER, Query, filled_in, queries
from tests.prometheus.programs import ALERTS, RECORDING, rules
from tests.prometheus.server import Prometheus
from tests.topology import NODE, OTHER, V4, Host, Topology

pytestmark = pytest.mark.kernel

# Every address, so that it can be scraped from outside.
METRICS = ("--metrics-bind-address", "0.0.0.0:10249")
NODES = {"node1": NODE[V4], "node2": OTHER[V4]}
# On the other node, whose rules all traffic of the first one's clients passes.
OTHERS_VIP = "10.96.9.9"
# The endpoints of the Service, one after the other: who answers first tells that a change is in the kernel.
CHANGES = (("pod2",), ("pod4",), ("pod2",), ("pod1", "pod3"))
TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
# Longer than two readings of counters.
PATIENCE = 60.0


class Other:
    """The other node of a topology, as a place for a proxyd."""

    def __init__(self, topology: Topology) -> None:
        self.node: Host = topology.hosts["other"]

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """See ``tests.program.Place``."""
        command = ["setpriv", "--pdeathsig", "TERM", *self.node.command(*words)]
        return subprocess.Popen(command, text=True, start_new_session=True, **options)


class Scene:
    """Two nodes with their proxyd, and a Prometheus that has scraped them while all kinds of things happened."""

    def __init__(self, topology: Topology, folder: Path, first: Proxyd, prometheus: Prometheus) -> None:
        self.topology = topology
        self.folder = folder
        self.first = first
        self.prometheus = prometheus

    def stir(self) -> None:
        """Has everything happen that a panel or a rule is about, in manifests and in nftables mode."""
        for pods in CHANGES:
            write(self.folder, "web.yaml", _with_trigger("web", VIP, pods))
            assert self.topology.hosts["client1"].call("ask_until", ip=VIP, port=80, answer=pods[0])
        write(self.folder, "web-again.yaml", manifest("web-again", VIP))
        write(self.folder, "dns.yaml", manifests.text(*_udp("dns", "10.96.0.53", "pod1")))
        self.topology.node.run("nft", "add", "chain", "ip", "proxyd", "mine")

    def connect(self, count: int = 20) -> None:
        """Opens connections to the Service."""
        assert answers(self.topology, count=count) <= {*CHANGES[-1]}


def _with_trigger(name: str, ip: str, pods: tuple[str, ...]) -> str:
    """A Service whose endpoints have just changed."""
    service, slice_ = manifests.objects(name, ip, pods)
    slice_["metadata"]["annotations"] = {TRIGGER: datetime.now(UTC).isoformat().replace("+00:00", "Z")}
    return manifests.text(service, slice_)


def _udp(name: str, ip: str, pod: str) -> list[dict[str, Any]]:
    service, slice_ = manifests.objects(name, ip, (pod,), ports=[{"name": "http", "port": 53, "protocol": "UDP"}])
    return [service, {**slice_, "ports": [{"name": "http", "port": 8053, "protocol": "UDP"}]}]


@pytest.fixture(scope="module")
def scene(found: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if reason := why_not():
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("scene")
    folders = {name: base / name for name in NODES}
    for folder, vip in zip(folders.values(), (VIP, OTHERS_VIP), strict=True):
        folder.mkdir()
        write(folder, "web.yaml", manifest(ip=vip))
    with contextlib.ExitStack() as stack:
        topology = stack.enter_context(Topology())
        flags = [word if word != "nftables" else "iptables" for word in FLAGS]
        other = Proxyd(Other(topology), folders["node2"], base / "log2", *METRICS, flags=flags, wait=False)
        stack.enter_context(other)
        first = stack.enter_context(Proxyd(topology, folders["node1"], base / "log1", *METRICS))
        other.wait_healthy()
        prometheus = stack.enter_context(Prometheus(topology, found, base, NODES))
        made = Scene(topology, folders["node1"], first, prometheus)
        made.stir()
        yield made


def told(scene: Scene, expression: str, value: float) -> None:
    """Waits until an expression has this value."""
    until(lambda: scene.prometheus.value(expression) == value, f"{expression}: {value}", PATIENCE, every=0.1)


def test_every_node_is_scraped_under_its_name(scene: Scene) -> None:
    up = {each.labels["instance"]: each for each in scene.prometheus.query("up")}
    assert {name: each.value for name, each in up.items()} == dict.fromkeys(NODES, 1)
    assert {each.labels["job"] for each in up.values()} == {"proxyd"}


def test_what_happened_on_the_node_is_told(scene: Scene) -> None:
    told(scene, 'proxyd_findings{instance="node1",reason="frontend-conflict"}', 1)
    told(scene, 'sum(proxyd_drift_repaired_total{instance="node1",ip_family="IPv4"})', 1)
    of = '{instance="node1",ip_family="IPv4"}'
    told(scene, f"kubeproxy_network_programming_duration_seconds_count{of}", len(CHANGES))
    # The start and the repair.
    told(scene, f"kubeproxy_sync_full_proxy_rules_duration_seconds_count{of}", 2)
    (passes,) = scene.prometheus.query(f"kubeproxy_sync_partial_proxy_rules_duration_seconds_count{of}")
    assert passes.value >= len(CHANGES)
    told(scene, f"proxyd_oldest_change_age_seconds{of}", 0)
    # Nothing of it on the other node.
    told(scene, 'sum(proxyd_findings{instance="node2"})', 0)


def test_connections_of_a_service_are_told(scene: Scene) -> None:
    expression = 'sum(proxyd_service_connections_total{instance="node1",service="web"})'

    def counted() -> bool:
        scene.connect(1)
        return (scene.prometheus.value(expression) or 0) > 0

    until(counted, "connections of the Service", PATIENCE, every=0.1)
    before = scene.prometheus.value(expression) or 0
    scene.connect(20)
    until(lambda: (scene.prometheus.value(expression) or 0) >= before + 20, "all of them", PATIENCE, every=0.1)


def test_every_query_of_the_dashboard_is_answered_with_data(scene: Scene) -> None:
    # Manifests have no watches and no requests: tests/cluster_api asks for those.
    wanted = [query for query in queries() if query.panel not in OF_AN_API_SERVER]

    def empty() -> list[Query]:
        return [query for query in wanted if not scene.prometheus.query(filled_in(query.expression))]

    until(lambda: not empty(), f"data for {empty()}", PATIENCE, every=0.5)
    # The others have none, and no error.
    for query in queries():
        scene.prometheus.query(filled_in(query.expression, node="node2"))


def test_every_rule_is_evaluated_and_what_is_wrong_becomes_an_alert(scene: Scene) -> None:
    def evaluated() -> list[dict[str, Any]]:
        return [rule for group in scene.prometheus.api("rules")["groups"] for rule in group["rules"]]

    until(lambda: all(rule["health"] != "unknown" for rule in evaluated()), "all are evaluated", every=0.1)
    assert len(evaluated()) == len(rules(RECORDING, ALERTS))
    assert [rule for rule in evaluated() if rule["health"] != "ok"] == []
    for rule in rules(RECORDING):
        until(lambda name=rule["record"]: scene.prometheus.query(name), rule["record"], PATIENCE, every=0.1)
    alerts = scene.prometheus.api("alerts")["alerts"]
    (conflict,) = [each for each in alerts if each["labels"]["alertname"] == "ProxydFrontendConflict"]
    # It has not lasted long enough.
    assert conflict["state"] == "pending"
    assert conflict["annotations"]["description"].startswith("1 claims")
    # Whatever else there is on this busy machine, nothing is said to be down or stale.
    assert [each["labels"] for each in alerts if each["labels"]["severity"] == "critical"] == []
