"""Thousands of objects, from an API server that has no streaming lists, so that they come in pages."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxyd.kube.reflector import PAGE
from tests.cluster_api.steps import Offers, noticed, right_again
from tests.controlplane import objects
from tests.controlplane.outpost import ENDPOINT, Outpost
from tests.controlplane.plane import Plane
from tests.topology import V4

COUNT = 2000
NAMESPACE = "many"
COLLECTIONS = (
    f"/api/v1/namespaces/{NAMESPACE}/services",
    f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
)


@pytest.fixture(scope="module")
def many(plane: Plane) -> Iterator[dict[str, str]]:
    """Services with an endpoint each; gives their addresses by name."""
    api = plane.admin
    plane.restart_apiserver("--feature-gates=WatchList=false")
    api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})

    def make(number: int) -> tuple[str, str]:
        name = f"service-{number}"
        api.create(objects.endpoint_slice(name, [ENDPOINT[V4]], NAMESPACE))
        return name, api.create(objects.service(name, NAMESPACE))["spec"]["clusterIP"]

    with ThreadPoolExecutor(8) as pool:
        addresses = dict(pool.map(make, range(COUNT)))
    yield addresses
    for collection in COLLECTIONS:
        api.delete(collection)
    plane.restart_apiserver()


def test_a_list_in_pages_is_complete_before_anything_is_written_and_relists_change_only_what_differs(
    many: dict[str, str], here: Outpost, plane: Plane, offer: Offers
) -> None:
    for resource, count in (("services", COUNT + 1), ("endpointslices", COUNT)):  # and the API server's own
        asked = here.weather.asked(resource)
        assert [each.status for each in asked if "sendInitialEvents" in each.query] == [422], "asked for once"
        pages = [each for each in asked if not each.watch]
        assert len(pages) == math.ceil(count / PAGE)
        assert sum("continue" in each.query for each in pages) == len(pages) - 1
    assert here.metric("proxyd_services", ip_family="IPv4") == COUNT + 1
    assert here.proxyd.events("no WatchList, listing in pages", resource="services")

    first, last = many["service-0"], many[f"service-{COUNT - 1}"]
    here.serves(first)
    here.serves(last)
    written = here.metric("proxyd_sync_operations_total")
    with here.traffic(last):
        here.weather.shut_out()
        noticed(here, "connect")
        plane.admin.delete(f"{COLLECTIONS[0]}/service-0")
        plane.compact()
        plane.restart_apiserver("--feature-gates=WatchList=false")
        here.weather.let_in()
        here.forgets(first)
        right_again(here, offer)
    assert here.metric("proxyd_watch_relists_total", resource="services") == 1
    assert here.errors("expired", "services") == 1
    assert here.metric("proxyd_sync_operations_total") - written < COUNT / 10
