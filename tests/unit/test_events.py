"""What is said on which object, and its JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from proxyd.kube import events
from proxyd.kube.events import Notice
from proxyd.model import Finding, Reason, ServiceKey

# What the API server takes as the name of an object (RFC 1123 subdomain).
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CONFLICT = Finding("Service", "shop/web", Reason.FRONTEND_CONFLICT, "10.96.0.1:80/tcp is served for shop/api instead")


def notice(finding: Finding = CONFLICT) -> Notice:
    made = events.of_finding(finding)
    assert made is not None
    return made


def body(made: Notice, uid: str = "1-2-3", node: str = "node1", at: float = 1795953600.25) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(events.event(made, uid, node, at))
    return decoded


@pytest.mark.parametrize("reason", list(Reason))
def test_every_finding_reason_makes_a_warning_with_a_reason_and_action_of_its_own_words(reason: Reason) -> None:
    made = notice(Finding("Service", "shop/web", reason, "why"))
    assert made.warning
    assert re.fullmatch("([A-Z][a-z]+)+", made.reason)
    assert re.fullmatch("([A-Z][a-z]+)+", made.action)
    assert made.reason.lower() == reason.replace("-", "")


def test_only_what_concerns_one_node_is_said_by_each() -> None:
    own = {reason for reason in Reason if notice(Finding("Service", "a/b", reason, "")).of_node}
    assert own == {
        Reason.KERNEL_REFUSED,
        Reason.INTERNAL_ERROR,
        Reason.NODE_NOT_FOUND,
        Reason.POD_RANGE_UNKNOWN,
        Reason.FAMILY_MISMATCH,
        Reason.CONFIGURATION_REFUSED,
    }


def test_the_body_of_an_event() -> None:
    got = body(notice())
    name = got["metadata"].pop("name")
    assert name.startswith("web.")
    assert got == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "shop"},
        "eventTime": "2026-11-29T12:00:00.250000Z",
        "reportingController": "proxyd",
        "reportingInstance": "node1",
        "action": "AssignFrontend",
        "reason": "FrontendConflict",
        "type": "Warning",
        "regarding": {"apiVersion": "v1", "kind": "Service", "namespace": "shop", "name": "web", "uid": "1-2-3"},
        "note": CONFLICT.message,
    }
    assert events.path(notice()) == "/apis/events.k8s.io/v1/namespaces/shop/events"


def test_a_slice_and_an_object_whose_uid_is_not_known() -> None:
    got = body(notice(Finding("EndpointSlice", "shop/web-x1", Reason.UNREADABLE_OBJECT, "not a list")), uid="")
    assert got["regarding"] == {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "namespace": "shop",
        "name": "web-x1",
    }


def test_events_on_a_node_are_in_the_default_namespace() -> None:
    made = events.starting("node1", "proxyd starts", "1")
    got = body(made, uid="node1")
    assert got["metadata"]["namespace"] == "default"
    assert got["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "node1"}
    assert (got["type"], got["reason"], got["action"]) == ("Normal", "Starting", "StartKubeProxy")
    assert events.path(made) == "/apis/events.k8s.io/v1/namespaces/default/events"


def test_what_is_not_an_object_of_the_api_makes_no_event() -> None:
    assert events.of_finding(Finding("Manifest", "web.yaml", Reason.UNREADABLE_OBJECT, "no YAML")) is None


def test_kube_proxys_events_have_its_reasons_and_actions() -> None:
    made = [
        events.health_address_taken("node1", "taken"),
        events.metrics_address_taken("node1", "taken"),
        events.health_check_port_taken(ServiceKey("shop", "web"), "node1", "taken"),
    ]
    assert [(each.kind, each.reason, each.action) for each in made] == [
        ("Node", "FailedToStartProxierHealthcheck", "StartKubeProxy"),
        ("Node", "FailedToStartMetricServer", "StartKubeProxy"),
        ("Service", "FailedToStartServiceHealthcheck", "Listen"),
    ]
    assert all(each.warning and each.of_node for each in made)
    assert made[2].note == "node node1: taken"


class TestName:
    def test_all_nodes_give_the_same_thing_the_same_name(self) -> None:
        assert events.event_name(notice(), "1", "node1") == events.event_name(notice(), "1", "node2")

    def test_what_is_about_a_node_has_a_name_for_each(self) -> None:
        refused = notice(Finding("Service", "shop/web", Reason.KERNEL_REFUSED, "no"))
        assert events.event_name(refused, "1", "node1") != events.event_name(refused, "1", "node2")

    def test_each_start_another_object_and_another_note_have_names_of_their_own(self) -> None:
        starts = [events.event_name(events.starting("node1", "", when), "", "node1") for when in "ab"]
        same = [events.event_name(notice(), uid, "node1") for uid in "ab"]
        other = events.event_name(notice()._replace(note="other"), "a", "node1")
        assert len({*starts, *same, other}) == 5

    @pytest.mark.parametrize("name", ["a", "a" * 253, "a" * 235 + "-" * 17 + "b", "a" * 234 + ".-.bcdefghijklmnopqr"])
    def test_it_is_one_that_the_api_server_takes(self, name: str) -> None:
        made = events.event_name(notice()._replace(name=name), "1", "node1")
        assert SUBDOMAIN.fullmatch(made)
        assert len(made) <= 253


@pytest.mark.parametrize("letter", ["a", "ü", "好"])
def test_a_long_note_is_cut_within_a_thousand_bytes_and_twenty_four(letter: str) -> None:
    note = body(notice()._replace(note=letter * 2000))["note"]
    assert 1000 < len(note.encode()) <= 1024
    assert note.endswith("...")
    assert set(note[:-3]) == {letter}


def test_a_series() -> None:
    assert json.loads(events.series(7, 1795953600.0)) == {
        "series": {"count": 7, "lastObservedTime": "2026-11-29T12:00:00.000000Z"}
    }
