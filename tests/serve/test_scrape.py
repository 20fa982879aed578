"""What a Prometheus gets: over HTTP, parsed by its own library; how metrics are named; how many series there are."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxyd.kube.events import Outcome
from proxyd.model import FAMILIES, Cause, Finding, Reason, ServiceKey
from proxyd.serve import app
from proxyd.serve.http import Server
from proxyd.serve.metrics import Metrics
from proxyd.sync.status import FamilyStatus, PassResult, Status
from tests import build
from tests.controlplane.exposition import Shape, shapes

# What a quantity is measured in, as the last word of a name or the one before "total" (Prometheus' naming guide).
UNITS = ("seconds", "bytes")
# Words that would be another unit for the same quantity, or say nothing.
NOT_UNITS = ("ms", "milliseconds", "millis", "minutes", "kib", "kilobytes", "count", "sum", "bucket", "number")
MANY = 3000


class Scraped:
    """Metrics behind a real HTTP server."""

    def __init__(self, server: Server) -> None:
        self.store = build.store()
        self.status = Status("nftables")
        self.metrics = Metrics(FAMILIES, "1.2.3", lambda: self.status, self.store)
        listener = server.add_listener("127.0.0.1", 0, app.metrics_routes(self.metrics, "nftables", {}))
        assert listener.listening.wait(20)
        assert listener.address is not None
        self._url = f"http://127.0.0.1:{listener.address[1]}/metrics"

    def text(self) -> str:
        with urllib.request.urlopen(self._url, timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    def series(self) -> int:
        """How many series there are."""
        return sum(len(family.samples) for family in text_string_to_metric_families(self.text()))


@pytest.fixture
def scraped() -> Iterator[Scraped]:
    server = Server()
    server.start()
    yield Scraped(server)
    server.stop()


@pytest.fixture
def own(scraped: Scraped) -> dict[str, Shape]:
    """Our own metrics, after something of everything happened."""
    use(scraped, 1)
    return {name: shape for name, shape in shapes(scraped.text()).items() if name.startswith("proxyd_")}


def use(scraped: Scraped, services: int) -> None:
    """Has happen, for so many Services, whatever can happen."""
    metrics, store = scraped.metrics, scraped.store
    findings = []
    for number in range(services):
        name, address = f"service-{number}", f"10.96.{number // 250}.{number % 250}"
        store.services.put(build.decoded(build.service(name, ip=address)))
        store.slices.put(build.decoded(build.endpoint_slice(name, f"10.244.{number // 250}.{number % 250 + 1}")))
        reason = list(Reason)[number % len(Reason)]
        findings.append(Finding("Service", f"default/{name}", reason, f"about {name}"))
        metrics.sync.found(findings[-1])
    for family in FAMILIES:
        for cause in Cause:
            metrics.sync.written(family, cause, services / 1000)
        metrics.sync.pass_done(PassResult(family, bool(services % 2), 0.1, services, services))
        metrics.sync.programmed(family, 0.1)
        metrics.sync.repaired(family, "mended", 1)
        metrics.flows.flows_cleaned(family, 0.1, services)
    for outcome in Outcome:
        metrics.api.event_done(outcome)
    metrics.api.answered("GET", "10.96.0.1:443", 200, 0.1)
    states = tuple(FamilyStatus(each, services=services, endpoints=services) for each in FAMILIES)
    scraped.status = Status("nftables", states, tuple(findings))


def test_it_is_read_by_prometheus_own_parser_and_every_sample_belongs_to_a_described_metric(scraped: Scraped) -> None:
    use(scraped, 10)
    families = list(text_string_to_metric_families(scraped.text()))
    assert len(families) > 40
    assert [each.name for each in families if not each.documentation or each.type == "unknown"] == []
    names = [(sample.name, *sorted(sample.labels.items())) for each in families for sample in each.samples]
    assert len(names) == len(set(names))


def test_counters_end_in_total_and_nothing_else_of_our_own_does(own: dict[str, Shape]) -> None:
    assert own
    assert [name for name, shape in own.items() if (shape.kind == "counter") != name.endswith("_total")] == []


def test_names_of_our_own_are_words_with_a_base_unit_where_they_measure(own: dict[str, Shape]) -> None:
    for name, shape in own.items():
        words = name.split("_")
        assert re.fullmatch("[a-z]+(_[a-z]+)*", name)
        assert not set(words) & set(NOT_UNITS), name
        assert shape.kind != "histogram" or words[-1] in UNITS, name
        assert not set(words[:-1]) & set(UNITS), f"{name}: the unit comes last"
        assert not shape.labels & set(words), f"{name}: a label is not named again"


def test_thousands_of_services_make_no_series_of_their_own(scraped: Scraped) -> None:
    use(scraped, 1)
    few = scraped.series()
    use(scraped, MANY)
    scraped.store.services.remove(ServiceKey("default", "service-1"))
    assert scraped.series() == few
    assert "service-" not in scraped.text()
    assert "10.96.0.2" not in scraped.text()


def test_a_scrape_costs_no_more_with_thousands_of_services(scraped: Scraped) -> None:
    """By size, and by a generous ratio of time: findings are the only thing that is counted anew."""
    use(scraped, 1)
    size, seconds = len(scraped.text()), quickest(scraped)
    use(scraped, MANY)
    assert len(scraped.text()) < 1.5 * size
    assert quickest(scraped) < 20 * seconds


def quickest(scraped: Scraped) -> float:
    def once() -> float:
        started = time.perf_counter()
        scraped.text()
        return time.perf_counter() - started

    return min(once() for _ in range(5))
