"""What the daemon talks to: with an API server there are watches and Events, with manifests neither."""

from __future__ import annotations

from pathlib import Path

import msgspec

from proxyd.cluster import cluster
from proxyd.model import FAMILIES
from proxyd.serve.metrics import Metrics
from proxyd.sync.status import Status
from tests import build
from tests.config.test_effective import DEFAULT


def test_only_with_an_api_server_is_there_somebody_who_writes_events(tmp_path: Path) -> None:
    store = build.store()
    metrics = Metrics(FAMILIES, "1", lambda: Status("nftables"), store)
    from_files = cluster(msgspec.structs.replace(DEFAULT, manifests=str(tmp_path)), store, "node1", metrics)
    from_server = cluster(msgspec.structs.replace(DEFAULT, master="http://127.0.0.1:1"), store, "node1", metrics)
    assert from_files.recorder is None
    assert from_server.recorder is not None
