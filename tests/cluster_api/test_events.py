"""Events on the objects of a real API server, written with the role that deploy/ ships."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyd.kube.recorder import Limits
from tests.cluster_api.steps import Offers
from tests.controlplane import objects
from tests.controlplane.api import Api, path_of
from tests.controlplane.namespaces import inside, listen
from tests.controlplane.outpost import ENDPOINT, METRICS_PORT, PATIENCE, Outpost, outpost
from tests.controlplane.plane import Plane
from tests.deployment import DAEMON_SET
from tests.program import DEADLINE, Proxyd, until
from tests.topology import V4

# The names of Services here are used once: Events outlive what they are about.
Event = dict[str, Any]
SHARED = "198.51.100.7"
HARD_FAIL = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node1
bindAddressHardFail: true
clientConnection: {{kubeconfig: {kubeconfig}}}
"""


def events_on(plane: Plane, reason: str, name: str) -> list[Event]:
    return [each for each in plane.events(reason) if each["regarding"]["name"] == name]


def wait_event(plane: Plane, reason: str, name: str) -> Event:
    """Waits for an Event on an object, and gives it."""
    until(lambda: events_on(plane, reason, name), f"Event {reason} on {name}", PATIENCE)
    [event] = events_on(plane, reason, name)
    return event


def outcomes(here: Outpost) -> dict[str, int]:
    every = ("created", "counted", "known", "dropped", "given-up")
    return {each: int(here.metric("proxyd_events_total", outcome=each)) for each in every}


def make_conflict(offer: Offers, *names: str) -> None:
    """The first one wins, by its name where both came in the same second."""
    for name in names:
        offer.keep(objects.service(name, externalIPs=[SHARED]))


def test_a_start_is_an_event_of_the_node(here: Outpost, plane: Plane) -> None:
    until(lambda: outcomes(here)["created"], f"created:\n{here.proxyd.output()}")
    event = max(events_on(plane, "Starting", "node1"), key=lambda each: each["eventTime"])
    assert event["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "node1"}
    assert (event["type"], event["action"], event["reportingController"]) == ("Normal", "StartKubeProxy", "proxyd")
    assert event["reportingInstance"] == "node1"
    assert event["metadata"]["namespace"] == "default"


def test_the_loser_of_a_conflict_is_told_with_its_uid_and_the_winner_is_not(
    here: Outpost, plane: Plane, api: Api, offer: Offers
) -> None:
    make_conflict(offer, "first", "second")
    event = wait_event(plane, "FrontendConflict", "second")
    assert event["regarding"]["uid"] == api.get(path_of(objects.service("second")))["metadata"]["uid"]
    assert (event["type"], event["action"]) == ("Warning", "AssignFrontend")
    assert "default/first" in event["note"]
    assert events_on(plane, "FrontendConflict", "first") == []


def test_what_is_refused_of_a_service_is_said_on_it(here: Outpost, plane: Plane, offer: Offers) -> None:
    offer.keep(objects.service("refused", externalIPs=["2001:db8::1"], ipFamilyPolicy="SingleStack"))
    event = wait_event(plane, "InvalidAddress", "refused")
    assert (event["type"], event["action"], event["regarding"]["kind"]) == ("Warning", "AdmitService", "Service")
    assert "2001:db8::1" in event["note"]


def test_two_nodes_that_find_the_same_say_it_once(plane: Plane, offer: Offers, tmp_path: Path) -> None:
    with outpost(plane, tmp_path / "one") as one, outpost(plane, tmp_path / "two") as two:
        make_conflict(offer, "early", "late")
        until(lambda: outcomes(one)["known"] + outcomes(two)["known"] == 1, "one of them is too late", PATIENCE)
        assert len(events_on(plane, "FrontendConflict", "late")) == 1


def test_a_conflict_that_comes_back_is_counted_in_the_same_event(
    here: Outpost, plane: Plane, api: Api, offer: Offers
) -> None:
    make_conflict(offer, "calm", "flaps")
    wait_event(plane, "FrontendConflict", "flaps")
    winner = objects.service("calm", externalIPs=[SHARED])
    for external in (["198.51.100.8"], [SHARED]):
        findings = 1.0 if external == [SHARED] else 0.0
        api.patch(path_of(winner), {"spec": {"externalIPs": external}})
        until(
            lambda findings=findings: here.metric("proxyd_findings", reason="frontend-conflict") == findings,
            f"{findings} conflicts",
        )
    until(lambda: outcomes(here)["counted"], f"counted:\n{here.proxyd.output()}", PATIENCE)
    event = wait_event(plane, "FrontendConflict", "flaps")
    assert event["series"]["count"] == 2
    assert event["series"]["lastObservedTime"] > event["eventTime"]


def test_a_taken_health_check_port_is_said_on_the_service(
    here: Outpost, plane: Plane, offer: Offers, tmp_path: Path
) -> None:
    here.proxyd.close()
    with inside(here.node):
        taken = socket.create_server((ENDPOINT[V4], 32123))
    words = ("--kubeconfig", str(here.kubeconfig()), "--nodeport-addresses", f"{ENDPOINT[V4]}/32")
    with contextlib.closing(taken), Proxyd(here, None, tmp_path / "again.log", *words):
        offer.keep(
            objects.service("local", type="LoadBalancer", externalTrafficPolicy="Local", healthCheckNodePort=32123)
        )
        event = wait_event(plane, "FailedToStartServiceHealthcheck", "local")
    assert (event["type"], event["action"]) == ("Warning", "Listen")
    assert f"node node1: cannot listen on {ENDPOINT[V4]}:32123" in event["note"]


def test_a_taken_address_is_said_on_the_node_also_by_a_proxyd_that_gives_up_at_once(
    here: Outpost, plane: Plane, tmp_path: Path
) -> None:
    here.proxyd.close()
    config = tmp_path / "config"
    config.write_text(HARD_FAIL.format(kubeconfig=here.kubeconfig()))
    with contextlib.closing(listen(here.node, METRICS_PORT)):
        again = Proxyd(here, None, tmp_path / "again.log", flags=("--config", str(config)), wait=False)
        assert again.process.wait(DEADLINE) == 1
    event = wait_event(plane, "FailedToStartMetricServer", "node1")
    assert (event["type"], event["action"]) == ("Warning", "StartKubeProxy")
    assert f"cannot listen on 127.0.0.1:{METRICS_PORT}" in event["note"]


@pytest.fixture
def many(offer: Offers) -> Iterator[int]:
    """Thousands of things to find at once, in few Services; gives how many."""
    services, addresses = 25, 100
    for number in range(services):
        externals = [f"2001:db8::{number:x}:{each:x}" for each in range(1, addresses + 1)]
        offer.keep(objects.service(f"many-{number}", externalIPs=externals, ipFamilyPolicy="SingleStack"))
    return services * addresses


def test_thousands_of_findings_at_once_make_few_requests(many: int, plane: Plane, tmp_path: Path) -> None:
    before = len(plane.audit())
    with outpost(plane, tmp_path) as here:
        assert here.metric("proxyd_findings", reason="invalid-address") >= many
        until(lambda: outcomes(here)["created"] + outcomes(here)["known"] >= 15, "some are written", PATIENCE)
        counted = outcomes(here)
        assert counted["dropped"] >= many - 25 * Limits().object_burst
        assert here.proxyd.get("/healthz")[0] == 200
    written = [each for each in plane.audit()[before:] if each["objectRef"]["resource"] == "events"]
    assert len(written) <= Limits().burst + PATIENCE / Limits().every


def test_without_permission_events_are_given_up_and_nothing_else_is(here: Outpost, plane: Plane, offer: Offers) -> None:
    until(lambda: outcomes(here)["created"], "the start is told")
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/proxyd"
    rules = plane.admin.get(role)["rules"]
    try:
        plane.admin.patch(role, {"rules": [each for each in rules if each["resources"] != ["events"]]})
        offer.keep(objects.service("unseen", externalIPs=["2001:db8::2"], ipFamilyPolicy="SingleStack"))
        until(lambda: outcomes(here)["given-up"], f"given up:\n{here.proxyd.output()}", PATIENCE)
        assert len(here.proxyd.events("Events cannot be written, will be tried again")) == 1
        here.serves(offer("served"))
    finally:
        plane.admin.apply_file(DAEMON_SET)
