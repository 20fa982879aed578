"""The Node object as it comes, changes and goes: who counts as a local pod, and whether load balancers should send here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cluster.manifests import VIP, answers, text
from tests.program import CLUSTER_CIDR, FLAGS, HEALTH_PORT, Proxyd, until, write
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, V4, Topology

POD, CLIENT = ADDRESSES["pod2"][V4], ADDRESSES["client1"][V4]


def node_object(**spec: Any) -> str:
    return text(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "node1", **spec.pop("metadata", {})},
            "spec": spec,
            "status": {"addresses": [{"type": "InternalIP", "address": NODE[V4]}]},
        }
    )


def test_the_range_of_local_pods_follows_the_node_object(node: Topology, folder: Path, log: Path) -> None:
    flags = [each for each in FLAGS if each not in {"--cluster-cidr", CLUSTER_CIDR}]

    def sources() -> tuple[set[str], set[str]]:
        """What a pod that is reached by its ClusterIP sees of a pod of the node, and of a client outside."""
        asked = (node.ask(who, VIP, 80, count=20) for who in ("pod2", "client1"))
        pod, client = ({each.source for each in answers if each.by == "pod1"} for answers in asked)
        return pod, client

    # Nobody knows what is local, so nothing is masqueraded; then by the range that the Node has.
    unknown = ({POD}, {CLIENT})
    known, moved = ({POD}, {POD_GATEWAY[V4]}), ({POD_GATEWAY[V4]}, {POD_GATEWAY[V4]})
    write(folder, "node.yaml", node_object())
    with Proxyd(node, folder, log, "--detect-local-mode", "NodeCIDR", flags=flags) as proxyd:
        assert sources() == unknown
        write(folder, "node.yaml", node_object(podCIDR="10.244.1.0/24", podCIDRs=["10.244.1.0/24"]))
        until(lambda: sources() == known, "the range is known")
        (folder / "node.yaml").unlink()
        until(lambda: sources() == unknown, "the Node is gone")
        assert answers(node) == {"pod1", "pod3"}
        write(folder, "node.yaml", node_object(podCIDR="10.244.9.0/24", podCIDRs=["10.244.9.0/24"]))
        until(lambda: sources() == moved, "the Node is another one")
        assert not proxyd.events(level="error")


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
