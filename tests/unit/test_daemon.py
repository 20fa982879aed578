"""What the composition root itself decides."""

from __future__ import annotations

from proxyd.daemon import node_findings
from proxyd.kube.store import Store
from proxyd.model import Reason
from tests import build


def test_a_node_that_has_our_name_is_no_finding() -> None:
    assert list(node_findings(build.store(build.node("node1")), "node1")) == []


def test_without_a_node_of_our_name_it_says_so() -> None:
    (finding,) = node_findings(build.store(), "node1")
    assert (finding.kind, finding.object, finding.reason) == ("Node", "node1", Reason.NODE_NOT_FOUND)
    assert "--hostname-override" in finding.message


def test_nothing_is_said_before_nodes_are_listed_or_where_there_are_none_to_be() -> None:
    assert list(node_findings(Store(), "node1")) == []
    assert list(node_findings(build.store(), "")) == []
