"""The Node object at a real API server: its zone, and another Node of the same name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster_api.steps import Offers
from tests.controlplane import objects
from tests.controlplane.api import Api, Object, path_of
from tests.controlplane.outpost import ENDPOINT, Outpost
from tests.program import until
from tests.topology import V4

# On no node at all.
NOBODY = "10.244.9.9"
TRIES = 6
NODE = path_of(objects.node("node1"))


def node(zone: str, pod_cidr: str = "") -> Object:
    made = objects.node("node1")
    made["metadata"]["labels"] = {"topology.kubernetes.io/zone": zone}
    if pod_cidr:
        made["spec"] = {"podCIDR": pod_cidr, "podCIDRs": [pod_cidr]}
    return made


@pytest.fixture
def api(api: Api) -> Iterator[Api]:
    """The API; the Node is as other tests know it after this one."""
    yield api
    api.delete(NODE)
    api.create(objects.node("node1"))


def test_the_zone_follows_the_label_and_another_node_of_the_same_name(api: Api, here: Outpost, offer: Offers) -> None:
    slice_ = objects.endpoint_slice("zones", (ENDPOINT[V4], NOBODY))
    for endpoint, zone in zip(slice_["endpoints"], ("za", "zb"), strict=True):
        endpoint["hints"] = {"forZones": [{"name": zone}]}
    address = offer.keep(objects.service("zones"), slice_)

    def reached() -> int:
        return sum(here.reaches(address) for _ in range(TRIES))

    def missing() -> float:
        return here.metric("proxyd_findings", reason="node-not-found")

    api.patch(NODE, node("za"))
    until(lambda: reached() == TRIES, "its own zone only")
    api.patch(NODE, node("zb"))
    until(lambda: reached() == 0, "the other zone only")
    first = api.get(NODE)["metadata"]["uid"]
    api.delete(NODE)
    until(missing, "the Node is missed")
    assert here.proxyd.get("/livez")[0] == 200
    api.create(node("za", "10.244.7.0/24"))
    assert api.get(NODE)["metadata"]["uid"] != first
    until(lambda: reached() == TRIES, "the zone of the new Node")
    until(lambda: not missing(), "the Node is there")
