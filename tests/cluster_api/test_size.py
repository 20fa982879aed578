"""Thousands of objects, from an API server that has no streaming lists, so that they come in pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxyd.kube.reflector import PAGE
from tests.cluster_api.conftest import control_plane
from tests.cluster_api.steps import Offers, right_again, trouble
from tests.controlplane import objects
from tests.controlplane.api import Api, path_of
from tests.controlplane.outpost import ENDPOINT, Outpost
from tests.controlplane.plane import Plane
from tests.topology import V4

COUNT = 1200
NAMESPACE = "many"
WITHOUT_STREAMING_LISTS = "--feature-gates=WatchList=false"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A control plane for this alone: nobody has to take thousands of objects away again."""
    with control_plane(tmp_path_factory.mktemp("plane"), WITHOUT_STREAMING_LISTS) as made:
        yield made


@pytest.fixture(scope="module")
def api(plane: Plane) -> Api:
    return plane.admin


@pytest.fixture(scope="module")
def many(api: Api) -> dict[str, str]:
    """Services with an endpoint each; gives their addresses by name."""
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def make(number: int) -> tuple[str, str]:
        name = f"service-{number}"
        api.create(objects.endpoint_slice(name, [ENDPOINT[V4]], NAMESPACE))
        return name, api.create(objects.service(name, NAMESPACE))["spec"]["clusterIP"]

    with ThreadPoolExecutor(4) as pool:
        return dict(pool.map(make, range(COUNT)))


def test_a_list_in_pages_is_complete_before_anything_is_written_and_relists_change_only_what_differs(
    many: dict[str, str], here: Outpost, plane: Plane, offer: Offers
) -> None:
    for resource, count in (("services", COUNT + 1), ("endpointslices", COUNT)):  # and the API server's own
        asked = here.weather.asked(resource)
        assert [each.status for each in asked if "sendInitialEvents" in each.query] == [422], "asked for once"
        pages = [each for each in asked if not each.watch]
        assert len(pages) == math.ceil(count / PAGE)
        assert sum("continue" in each.query for each in pages) == len(pages) - 1
    assert here.proxyd.events("rules written", ip_family="IPv4")[0]["services"] == COUNT + 1
    assert here.metric("proxyd_services", ip_family="IPv4") == COUNT + 1
    assert here.proxyd.events("no WatchList, listing in pages", resource="services")

    first, last = many["service-0"], many[f"service-{COUNT - 1}"]
    here.serves(first)
    here.serves(last)
    written = here.metric("proxyd_sync_operations_total")
    with trouble(here, last, offer, "connect") as noticed:
        here.weather.shut_out()
        noticed()
        plane.admin.delete(path_of(objects.service("service-0", NAMESPACE)))
        plane.compact()
        plane.restart_apiserver(WITHOUT_STREAMING_LISTS)
        here.weather.let_in()
        here.forgets(first)
    assert here.metric("proxyd_watch_relists_total", resource="services") == 1
    assert here.errors("expired", "services") == 1
    assert here.metric("proxyd_sync_operations_total") - written < COUNT / 10


def test_a_restart_takes_nothing_away_before_all_pages_are_there(
    many: dict[str, str], here: Outpost, offer: Offers
) -> None:
    last = many[max(many)]  # in the order of names, so of pages
    here.serves(last)
    with here.traffic(last):
        assert here.proxyd.stop() == 0
        here.weather.delay(1.0, "continue")
        with here.run():
            right_again(here, offer)
            written = here.proxyd.events("rules written", ip_family="IPv4")
    assert min(each["services"] for each in written) >= COUNT
