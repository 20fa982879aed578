"""The Node object as it comes, changes and goes: who counts as a local pod, and whether load balancers should send here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.manifests import VIP, answers, manifest, objects, text
from tests.program import CLUSTER_CIDR, FLAGS, HEALTH_PORT, Proxyd, until, write
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, V4, Topology

POD, CLIENT = ADDRESSES["pod2"][V4], ADDRESSES["client1"][V4]


NODE_CIDR = ("--detect-local-mode", "NodeCIDR")
WITHOUT_CLUSTER_CIDR = [each for each in FLAGS if each not in {"--cluster-cidr", CLUSTER_CIDR}]
# What a pod that is reached by its ClusterIP sees of a pod of the node, and of a client outside: where nobody knows what is
# local, nothing is masqueraded; then by the range that the Node has.
UNKNOWN = ({POD}, {CLIENT})
KNOWN, MOVED = ({POD}, {POD_GATEWAY[V4]}), ({POD_GATEWAY[V4]}, {POD_GATEWAY[V4]})


def node_object(address: str = NODE[V4], **spec: Any) -> str:
    return text(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node1", **spec.pop("metadata", {})},
            "spec": spec,
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        }
    )


def with_range(cidr: str) -> str:
    return node_object(podCIDR=cidr, podCIDRs=[cidr])


def in_zone(zone: str) -> str:
    return node_object(metadata={"labels": {"topology.kubernetes.io/zone": zone}})


def sources(node: Topology) -> tuple[set[str], set[str]]:
    asked = (node.ask(who, VIP, 80, count=20) for who in ("pod2", "client1"))
    pod, client = ({each.source for each in answers if each.by == "pod1"} for answers in asked)
    return pod, client


def test_the_range_of_local_pods_follows_the_node_object(node: Topology, folder: Path, log: Path) -> None:
    write(folder, "node.yaml", node_object())
    with Proxyd(node, folder, log, *NODE_CIDR, flags=WITHOUT_CLUSTER_CIDR) as proxyd:
        assert sources(node) == UNKNOWN
        assert proxyd.wait_event("finding", reason="pod-range-unknown")["object"] == "node1"
        write(folder, "node.yaml", with_range("10.244.1.0/24"))
        until(lambda: sources(node) == KNOWN, "the range is known")
        (folder / "node.yaml").unlink()
        until(lambda: sources(node) == UNKNOWN, "the Node is gone")
        assert answers(node) == {"pod1", "pod3"}
        write(folder, "node.yaml", with_range("10.244.9.0/24"))
        until(lambda: sources(node) == MOVED, "the Node is another one")
        assert not proxyd.events(level="error")


def test_a_restart_before_the_range_is_known_leaves_the_rules_that_know_it(
    node: Topology, folder: Path, log: Path
) -> None:
    write(folder, "node.yaml", with_range("10.244.1.0/24"))
    with Proxyd(node, folder, log, *NODE_CIDR, flags=WITHOUT_CLUSTER_CIDR) as proxyd:
        assert sources(node) == KNOWN
    write(folder, "node.yaml", node_object())
    with Proxyd(node, folder, log, *NODE_CIDR, flags=WITHOUT_CLUSTER_CIDR, wait=False) as proxyd:
        proxyd.wait_event("waiting for the podCIDRs of the Node; the rules of the last run serve meanwhile")
        assert sources(node) == KNOWN
        assert proxyd.get("/healthz")[0] == 503
        write(folder, "node.yaml", with_range("10.244.9.0/24"))
        until(lambda: sources(node) == MOVED, "the range is known")
        proxyd.wait_healthy()


def test_the_zone_of_the_node_decides_anew_when_its_label_changes(node: Topology, folder: Path, log: Path) -> None:
    service, slice_ = objects()
    for endpoint, zone in zip(slice_["endpoints"], ("za", "zb"), strict=True):
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    write(folder, "web.yaml", text(service, slice_))
    write(folder, "node.yaml", in_zone("za"))
    with Proxyd(node, folder, log):
        assert answers(node) == {"pod1"}
        write(folder, "node.yaml", in_zone("zb"))
        until(lambda: answers(node) == {"pod3"}, "it is in the other zone")
        write(folder, "node.yaml", in_zone("zc"))
        until(lambda: answers(node) == {"pod1", "pod3"}, "it is in a zone without endpoints")
        write(folder, "node.yaml", in_zone("za"))
        until(lambda: answers(node) == {"pod1"}, "it is back")
        write(folder, "node.yaml", node_object())
        until(lambda: answers(node) == {"pod1", "pod3"}, "it has no zone")


def test_node_ports_follow_the_address_of_the_node_object(node: Topology, folder: Path, log: Path) -> None:
    moved = "192.0.2.13"

    def answered_at(ip: str) -> bool:
        return {each.by for each in node.ask("client1", ip, 30080, count=12, timeout=0.3)} == {"pod1", "pod3"}

    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    write(folder, "web.yaml", manifest(type="NodePort", ports=ports))
    write(folder, "node.yaml", node_object())
    node.node.ip(V4, [f"address add {moved}/32 dev eth0"])
    try:
        with Proxyd(node, folder, log):
            assert (answered_at(NODE[V4]), answered_at(moved)) == (True, False)
            write(folder, "node.yaml", node_object(moved))
            until(lambda: (answered_at(NODE[V4]), answered_at(moved)) == (False, True), "at the new address only")
    finally:
        node.node.ip(V4, [f"address delete {moved}/32 dev eth0"])


def test_a_node_that_is_drained_is_left_to_itself_and_serves_on(node: Topology, folder: Path, log: Path) -> None:
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule", "value": "1"}
    leaving = (node_object(taints=[taint]), node_object(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    with Proxyd(node, folder, log) as proxyd:
        for each in leaving:
            write(folder, "node.yaml", each)
            until(lambda: proxyd.get("/healthz")[0] == 503, "load balancers are told")
            body = json.loads(proxyd.get("/healthz", HEALTH_PORT)[1])
            assert (body["nodeEligible"], body["healthy"]) == (False, True)
            assert proxyd.get("/livez")[0] == 200
            assert answers(node) == {"pod1", "pod3"}
            write(folder, "node.yaml", node_object())
            until(lambda: proxyd.get("/healthz")[0] == 200, "it stays after all")
        write(folder, "node.yaml", leaving[0])
        until(lambda: proxyd.get("/healthz")[0] == 503, "load balancers are told again")
        (folder / "node.yaml").unlink()
        until(lambda: proxyd.get("/healthz")[0] == 200, "without a Node there is no reason against it")
