"""What the composition root itself decides."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proxyd.daemon import cluster, node_findings
from proxyd.kube.store import Store
from proxyd.model import FAMILIES, Reason
from proxyd.serve.metrics import Metrics
from proxyd.sync.status import Status
from tests import build
from tests.unit.test_config import DEFAULT


def test_a_node_that_has_our_name_is_no_finding() -> None:
    assert list(node_findings(build.store(build.node("node1")), "node1")) == []


def test_without_a_node_of_our_name_it_says_so() -> None:
    (finding,) = node_findings(build.store(), "node1")
    assert (finding.kind, finding.object, finding.reason) == ("Node", "node1", Reason.NODE_NOT_FOUND)
    assert "--hostname-override" in finding.message


def test_nothing_is_said_before_nodes_are_listed_or_where_there_are_none_to_be() -> None:
    assert list(node_findings(Store(), "node1")) == []
    assert list(node_findings(build.store(), "")) == []


def test_only_with_an_api_server_is_there_somebody_who_writes_events(tmp_path: Path) -> None:
    store = build.store()
    metrics = Metrics(FAMILIES, "1", lambda: Status("nftables"), store)
    from_files = cluster(msgspec.structs.replace(DEFAULT, manifests=str(tmp_path)), store, "node1", metrics)
    from_server = cluster(msgspec.structs.replace(DEFAULT, master="http://127.0.0.1:1"), store, "node1", metrics)
    assert from_files.recorder is None
    assert from_server.recorder is not None
