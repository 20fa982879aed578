"""Rules and dashboard ask for what proxyd has, with labels that it has, and find their variables."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxyd.desired.endpoints import Backend
from proxyd.kernel.surroundings import Tracking
from proxyd.model import FAMILIES
from proxyd.serve.metrics import Metrics
from proxyd.serve.tracking import TrackingCollector
from proxyd.serve.traffic import TrafficCollector
from proxyd.sync.status import Status
from proxyd.sync.traffic import ServiceTraffic, Traffic
from tests import build
from tests.deployment import POD_MONITOR, one
from tests.prometheus.expressions import dashboard, expressions, metrics_in, queries, recorded

# Made by Prometheus itself, for each target.
OF_SCRAPING = {"up"}


@dataclass
class Watch:
    connected: bool = True
    last_event: float | None = field(default_factory=time.monotonic)
    relists: int = 0
    errors: dict[str, int] = field(default_factory=lambda: {"connect": 1})
    clock_offset: float | None = 0.5


def exposed() -> set[str]:
    """The names of all series of a proxyd, in either mode, after something of everything happened."""
    found: set[str] = set()
    web = ServiceTraffic("default", "web", "http", "tcp", 1, {Backend("10.244.0.1", 8080): 1})
    for mode in ("nftables", "iptables"):
        metrics = Metrics(FAMILIES, "1", lambda: Status(""), build.store(), lambda: {"services": Watch()}, mode=mode)
        metrics.add(TrafficCollector(lambda: dict.fromkeys(FAMILIES, Traffic((web,), 1, {"udp": 1}))))
        metrics.add(TrackingCollector(lambda: Tracking(1, 2)))
        metrics.api.answered("GET", "10.96.0.1", 200, 0.1)
        page = text_string_to_metric_families(metrics.render().decode())
        found |= {sample.name for family in page for sample in family.samples}
    return found


def test_every_metric_that_is_asked_for_exists() -> None:
    named = set.union(*map(metrics_in, expressions()))
    assert len(named) > 40
    assert named - exposed() - recorded() - OF_SCRAPING == set()


def test_every_recorded_series_is_used() -> None:
    used = set.union(*map(metrics_in, expressions()))
    assert {name for name in recorded() - used if not name.startswith("job_")} == set()


@pytest.mark.parametrize("expression", sorted(expressions()))
def test_only_series_of_the_job_are_looked_at(expression: str) -> None:
    # kube-proxy's have the same names. The right side of a division has the labels of the left one.
    selectors = re.findall(r"\{([^}]*)\}", expression)
    assert selectors
    assert all('job="proxyd"' in each for each in selectors)


def test_the_pod_monitor_sets_the_labels_that_are_looked_at() -> None:
    [endpoint] = one("PodMonitor", POD_MONITOR)["spec"]["podMetricsEndpoints"]
    labels = {each.pop("targetLabel"): each for each in endpoint["relabelings"]}
    assert labels["job"] == {"replacement": "proxyd"}
    assert labels["instance"] == {"sourceLabels": ["__meta_kubernetes_pod_node_name"]}


def test_queries_of_the_dashboard_follow_its_variables() -> None:
    content = dashboard()
    variables = {each["name"]: each for each in content["templating"]["list"]}
    assert {name: each["type"] for name, each in variables.items()} == {"datasource": "datasource", "node": "query"}
    assert all(
        'instance=~"$node"' in each for query in queries() for each in re.findall(r"\{(.*?)\}", query.expression)
    )
    source = {"type": "prometheus", "uid": "${datasource}"}
    panels = [panel for panel in content["panels"] if panel["type"] != "row"]
    used = [variables["node"], *panels, *(target for panel in panels for target in panel["targets"])]
    assert [each for each in used if each["datasource"] != source] == []


def test_panels_have_a_title_of_their_own_an_explanation_and_a_place_of_their_own() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_names_are_found_in_an_expression() -> None:
    expression = 'sum by (a, b) (rate(x_total{c="d_e"}[5m])) / on (f) (1e3 + job:y:rate5m) or max(up) unless z'
    assert metrics_in(expression) == {"x_total", "job:y:rate5m", "up", "z"}
