"""What the dashboard shows of the way to the API server: asked of a Prometheus that scrapes a proxyd with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_api.steps import Offers, break_streams, noticed
from tests.controlplane.outpost import PATIENCE, Outpost
from tests.program import until
from tests.prometheus.expressions import OF_AN_API_SERVER, Query, filled_in, queries
from tests.prometheus.programs import programs
from tests.prometheus.server import Prometheus


@pytest.fixture
def prometheus(here: Outpost, tmp_path: Path) -> Iterator[Prometheus]:
    try:
        found = programs()
    except LookupError as missing:
        pytest.skip(str(missing))
    with Prometheus(here, found, tmp_path, {"node1": "127.0.0.1"}) as running:
        yield running


def test_watches_and_requests_are_shown(here: Outpost, prometheus: Prometheus, offer: Offers) -> None:
    offer("web")
    break_streams(here)
    noticed(here, "stream")
    wanted = [query for query in queries() if query.panel in OF_AN_API_SERVER]

    def empty() -> list[Query]:
        return [query for query in wanted if not prometheus.query(filled_in(query.expression))]

    until(lambda: not empty(), f"data for {empty()}", PATIENCE, every=0.5)
    assert {each.labels["resource"] for each in prometheus.query("proxyd_watch_connected")} == {
        "services",
        "endpointslices",
        "nodes",
    }
