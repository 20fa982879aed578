"""Who may be reached from where, and with which source address: traffic policies, the detector, terminating endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.model import Family, LocalDetector
from tests import build
from tests.cluster.cases import (
    EVERYWHERE,
    FAMILIES,
    FRONTENDS,
    MANY,
    PATIENCE,
    PLACES,
    SILENCE,
    names,
    service,
    slices,
    target,
)
from tests.cluster.modes import ALSO_NFT
from tests.cluster.rules import Rules
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, Topology

# Hundreds of cases: in one backend; test_traffic is in both.
pytestmark = ALSO_NFT

# A: all endpoints; L: only the one on the node; m: the source address is replaced by the node's.
TRUTH = {
    # (from, internal policy, external policy) -> cluster ip, external frontends
    ("pod", "Cluster", "Cluster"): ("A", "Am"),
    ("node", "Cluster", "Cluster"): ("Am", "Am"),
    ("outside", "Cluster", "Cluster"): ("Am", "Am"),
    ("pod", "Cluster", "Local"): ("A", "A"),
    ("node", "Cluster", "Local"): ("Am", "Am"),
    ("outside", "Cluster", "Local"): ("Am", "L"),
    ("pod", "Local", "Cluster"): ("L", "Am"),
    ("node", "Local", "Cluster"): ("Lm", "Am"),
    ("outside", "Local", "Cluster"): ("Lm", "Am"),
    ("pod", "Local", "Local"): ("L", "A"),
    ("node", "Local", "Local"): ("Lm", "Am"),
    ("outside", "Local", "Local"): ("Lm", "L"),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "": {},
    "no detector": {"local": None},
    "masquerade all": {"masquerade_all": True},
    "interface detector": {"local": LocalDetector(interface="pod*")},
}


def truth(variation: str, place: str, internal: str, external: str, frontend: str) -> str:
    to_cluster_ip, to_external = TRUTH[place, internal, external]
    is_cluster_ip = frontend == "cluster ip"
    expected = to_cluster_ip if is_cluster_ip else to_external
    if variation == "no detector" and is_cluster_ip:
        return expected.removesuffix("m")
    if variation == "no detector" and place == "pod" and external == "Local":
        return "L"
    if variation == "masquerade all" and is_cluster_ip and not expected.endswith("m"):
        return expected + "m"
    return expected


@pytest.mark.parametrize("frontend", FRONTENDS)
@EVERYWHERE
@FAMILIES
@pytest.mark.parametrize("external", ["Cluster", "Local"])
@pytest.mark.parametrize("internal", ["Cluster", "Local"])
@pytest.mark.parametrize("variation", SETTINGS)
def test_policies_and_detector_decide_who_answers_and_which_source_it_sees(  # noqa: PLR0917 - the table's dimensions
    world: Topology,
    rules: Rules,
    variation: str,
    internal: str,
    external: str,
    family: Family,
    place: str,
    frontend: str,
) -> None:
    policies: dict[str, Any] = {"internal_local": internal == "Local", "external_local": external == "Local"}
    rules.ensure(service(**policies), *slices("pod1", "pod3"), **SETTINGS[variation])
    expected = truth(variation, place, internal, external, frontend)
    own = ADDRESSES[PLACES[place]][family]
    here, elsewhere = (POD_GATEWAY[family], NODE[family]) if expected.endswith("m") else (own, own)
    answers = set(world.ask(PLACES[place], *target(frontend, family), count=MANY))
    everyone = {("pod1", here), ("pod3", elsewhere)}
    assert answers == (everyone if expected[0] == "A" else {("pod1", here)})


# -- endpoints that are not ready --------------------------------------------------------------------------------------

LEAVING = build.SERVING_TERMINATING
GONE = {"ready": False, "serving": False, "terminating": True}
UNREADY = {"ready": False, "serving": True, "terminating": False}
READY: dict[str, bool] = {}


@FAMILIES
@pytest.mark.parametrize(
    ("here", "elsewhere", "from_pod", "from_outside"),
    [
        (READY, READY, {"pod1", "pod3"}, {"pod1"}),
        (READY, LEAVING, {"pod1"}, {"pod1"}),
        (LEAVING, READY, {"pod3"}, {"pod1"}),
        (LEAVING, LEAVING, {"pod1", "pod3"}, {"pod1"}),
        (GONE, LEAVING, {"pod3"}, {"timeout"}),
        (GONE, READY, {"pod3"}, {"timeout"}),
        (UNREADY, LEAVING, {"pod3"}, {"timeout"}),
    ],
)
def test_terminating_endpoints_serve_where_no_ready_one_may(
    world: Topology,
    rules: Rules,
    here: dict[str, bool],
    elsewhere: dict[str, bool],
    from_pod: set[str],
    from_outside: set[str],
    family: Family,
) -> None:
    conditions = {"pod1": here, "pod3": elsewhere}
    rules.ensure(service(external_local=True), *slices("pod1", "pod3", conditions=conditions))
    count, timeout = (1, SILENCE) if from_outside == {"timeout"} else (MANY, PATIENCE)
    for frontend in FRONTENDS[1:]:
        to = target(frontend, family)
        assert names(world, "pod", to) == from_pod, frontend
        assert names(world, "node", to) == from_pod, frontend
        assert names(world, "outside", to, count=count, timeout=timeout) == from_outside, frontend
    assert names(world, "pod", target("cluster ip", family)) == from_pod


@FAMILIES
@pytest.mark.parametrize("conditions", [GONE, UNREADY])
def test_endpoints_that_are_neither_ready_nor_leaving_are_none(
    world: Topology, rules: Rules, conditions: dict[str, bool], family: Family
) -> None:
    both = slices("pod1", "pod3", conditions={"pod1": conditions, "pod3": conditions})
    rules.ensure(service(external_local=True), *both)
    for place, frontend in (("pod", "cluster ip"), ("pod", "load balancer"), ("outside", "node port")):
        assert names(world, place, target(frontend, family), count=1) == {"refused"}, (place, frontend)


@FAMILIES
@EVERYWHERE
def test_a_local_cluster_ip_without_an_endpoint_here_is_silent(
    world: Topology, rules: Rules, place: str, family: Family
) -> None:
    rules.ensure(service(internal_local=True), *slices("pod3"))
    assert names(world, place, target("cluster ip", family), count=1, timeout=SILENCE) == {"timeout"}
    assert names(world, place, target("load balancer", family)) == {"pod3"}
