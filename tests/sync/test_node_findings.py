"""What is said about a Node that is missing, or that lacks something."""

from __future__ import annotations

import pytest

from proxyd.desired.settings import NodePolicy
from proxyd.kube.store import Store
from proxyd.model import Finding, Node, Reason
from proxyd.sync.facts import node_findings
from tests import build


def found(store: Store, expected: str = "", **policy: str) -> list[Finding]:
    return list(node_findings(store, NodePolicy(build.NODE, **policy), expected))


def test_a_node_that_has_our_name_is_no_finding() -> None:
    assert found(build.store(build.node("node1")), "node1") == []


def test_without_a_node_of_our_name_it_says_so() -> None:
    (finding,) = found(build.store(), "node1")
    assert (finding.kind, finding.object, finding.reason) == ("Node", "node1", Reason.NODE_NOT_FOUND)
    assert "--hostname-override" in finding.message


def test_nothing_is_said_before_nodes_are_listed_or_where_there_are_none_to_be() -> None:
    assert found(Store(), "node1") == []
    assert found(build.store(), "") == []


@pytest.mark.parametrize("nodes", [(), (build.node(),)], ids=["no Node", "Node without podCIDRs"])
def test_a_pod_range_that_is_needed_and_not_known_is_said(nodes: tuple[Node, ...]) -> None:
    (finding,) = found(build.store(*nodes), detect_local_mode="NodeCIDR")
    assert (finding.kind, finding.object, finding.reason) == ("Node", build.NODE, Reason.POD_RANGE_UNKNOWN)
    assert found(build.store(*nodes), detect_local_mode="ClusterCIDR") == []


def test_a_pod_range_that_is_known_is_not() -> None:
    assert found(build.store(build.node(pod_cidrs=("10.244.1.0/24",))), detect_local_mode="NodeCIDR") == []
