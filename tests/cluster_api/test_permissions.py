"""The ClusterRole that deploy/ ships: enough for all that proxyd does, and nothing beyond it."""

from __future__ import annotations

from pathlib import Path

from tests.cluster_api.steps import Offers, break_streams, right_again
from tests.controlplane.outpost import outpost
from tests.controlplane.plane import PROXYD, PROXYD_NAMESPACE, Plane
from tests.deployment import one

Permission = tuple[str, str, str]
# That something is said again, which is seldom: see test_events.
AGAIN = {("events.k8s.io", "events", "patch")}


def granted() -> set[Permission]:
    """What the role allows: group, resource, verb."""
    return {
        (group, resource, verb)
        for rule in one("ClusterRole")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_role_allows_exactly_what_proxyd_asks_for(plane: Plane, offer: Offers, tmp_path: Path) -> None:
    before = len(plane.audit())
    for streaming_lists in (True, False):
        with outpost(plane, tmp_path / str(streaming_lists), streaming_lists=streaming_lists) as here:
            break_streams(here)
            right_again(here, offer)
            offer.withdraw()
    records = plane.audit()[before:]
    ours = f"system:serviceaccount:{PROXYD_NAMESPACE}:{PROXYD}"
    assert {each["user"]["username"] for each in records} == {ours}
    assert [each for each in records if each["responseStatus"]["code"] >= 400] == []
    asked = {(each["objectRef"].get("apiGroup", ""), each["objectRef"]["resource"], each["verb"]) for each in records}
    assert asked == granted() - AGAIN


def test_of_the_nodes_only_its_own_is_asked_for(plane: Plane, offer: Offers, tmp_path: Path) -> None:
    before = len(plane.audit())
    with outpost(plane, tmp_path) as here:
        right_again(here, offer)
    asked = [each["objectRef"] for each in plane.audit()[before:] if each["objectRef"]["resource"] == "nodes"]
    assert asked
    assert {each.get("name") for each in asked} == {"node1"}
