"""From Pods and selectors, by way of the EndpointSlice controller and proxyd, to real connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_api.steps import Offers
from tests.controlplane import objects
from tests.controlplane.api import Api, path_of
from tests.controlplane.outpost import outpost
from tests.controlplane.plane import Plane
from tests.program import until
from tests.topology import ADDRESSES, Topology

LABELS = {"app": "web"}
NODES = {"pod1": "node1", "pod2": "node1", "pod3": "node2", "pod4": "node2"}


@pytest.fixture(scope="module")
def world(plane: Plane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topology]:
    """A cluster of namespaces; the proxyd on its node talks to the control plane, the controllers run."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(plane.controllers())
        except LookupError as missing:
            pytest.skip(str(missing))
        topology = stack.enter_context(Topology())
        until(lambda: _is_there(plane.admin, "/api/v1/namespaces/default/serviceaccounts/default"), "service account")
        stack.enter_context(outpost(plane, tmp_path_factory.mktemp("node"), host=topology.node))
        yield topology


def _is_there(api: Api, path: str) -> bool:
    parent, name = path.rsplit("/", 1)
    return any(item["metadata"]["name"] == name for item in api.get(parent)["items"])


class Pods:
    """The hosts of the topology as Pods, reported by a kubelet of our own."""

    def __init__(self, api: Api, offer: Offers) -> None:
        self._api = api
        self._offer = offer

    def run(self, *names: str) -> None:
        """Has Pods placed, and running."""
        for name in names:
            self._offer.keep(objects.pod(name, LABELS, NODES[name]))
            self.report(name, ready=True)

    def report(self, name: str, *, ready: bool) -> None:
        """Reports whether a Pod is ready."""
        addresses = tuple(ADDRESSES[name].values())
        self._api.patch(f"{self._path(name)}/status", objects.running(addresses, ready=ready))

    def label(self, name: str, **labels: str | None) -> None:
        """Changes labels of a Pod."""
        self._api.patch(self._path(name), {"metadata": {"labels": labels}})

    def delete(self, name: str) -> None:
        """Takes a Pod away."""
        self._api.delete(self._path(name))

    @staticmethod
    def _path(name: str) -> str:
        return path_of(objects.pod(name, LABELS, NODES[name]))


@pytest.fixture
def pods(api: Api, offer: Offers) -> Pods:
    return Pods(api, offer)


NOBODY = ({"refused"}, {"refused"})


def answering(world: Topology, addresses: tuple[str, ...], timeout: float = 0.5) -> list[set[str]]:
    """Who answers connections from outside, at each of these addresses."""
    return [{each.by for each in world.ask("client1", ip, 80, count=24, timeout=timeout)} for ip in addresses]


def wait_answering(world: Topology, addresses: tuple[str, ...], *names: str) -> None:
    """Waits until exactly these answer, at the IPv4 and the IPv6 address; without names, until both are refused."""
    seen: list[set[str]] = []

    def only_they() -> bool:
        seen[:] = answering(world, addresses)
        return tuple(seen) == ((set(names),) * 2 if names else NOBODY)

    try:
        until(only_they, "")
    except TimeoutError:
        pytest.fail(f"{addresses}: not {names or 'nobody'} answer, but {seen}")


@pytest.fixture
def web(api: Api, offer: Offers, pods: Pods) -> tuple[str, ...]:
    """A Service of both families that selects Pods; gives its addresses."""
    manifest = objects.service("web", selector=LABELS, ipFamilyPolicy="RequireDualStack")
    offer.keep(manifest)
    return tuple(api.get(path_of(manifest))["spec"]["clusterIPs"])


def test_connections_go_to_the_pods_that_a_service_selects_and_that_are_ready(
    world: Topology, pods: Pods, web: tuple[str, ...]
) -> None:
    wait_answering(world, web)
    pods.run("pod1", "pod3")
    wait_answering(world, web, "pod1", "pod3")
    pods.report("pod3", ready=False)
    wait_answering(world, web, "pod1")
    pods.run("pod4")
    wait_answering(world, web, "pod1", "pod4")
    pods.label("pod1", app="other")
    wait_answering(world, web, "pod4")
    pods.delete("pod4")
    wait_answering(world, web)
    pods.label("pod1", app="web")
    wait_answering(world, web, "pod1")


def test_a_pod_that_takes_another_ones_place_gets_its_connections_and_none_is_lost(
    world: Topology, pods: Pods, web: tuple[str, ...]
) -> None:
    """A rolling update: the new Pod first, then the old one away, while connections are made all the time."""
    pods.run("pod1", "pod2")
    wait_answering(world, web, "pod1", "pod2")
    pods.run("pod3")
    wait_answering(world, web, "pod1", "pod2", "pod3")
    pods.report("pod1", ready=False)
    while "pod1" in (now := set().union(*answering(world, web, timeout=5))):
        assert now <= {"pod1", "pod2", "pod3"}
    wait_answering(world, web, "pod2", "pod3")


def test_a_deleted_service_is_not_answered_any_more(
    world: Topology, api: Api, pods: Pods, web: tuple[str, ...]
) -> None:
    pods.run("pod1")
    wait_answering(world, web, "pod1")
    api.delete(path_of(objects.service("web")))
    until(lambda: not set().union(*answering(world, web)) & {"pod1", "refused"}, "nobody knows the address")


def test_external_traffic_policy_local_reaches_only_pods_of_this_node(
    world: Topology, api: Api, offer: Offers, pods: Pods, tmp_path: Path
) -> None:
    manifest = objects.service(
        "local", selector=LABELS, type="NodePort", externalTrafficPolicy="Local", ipFamilyPolicy="RequireDualStack"
    )
    offer.keep(manifest)
    port = api.get(path_of(manifest))["spec"]["ports"][0]["nodePort"]
    pods.run("pod1", "pod3")
    addresses = tuple(ADDRESSES["node"].values())

    def seen() -> set[tuple[str, bool]]:
        answers = [a for address in addresses for a in world.ask("client1", address, port, count=12, timeout=0.5)]
        return {(each.by, each.source in ADDRESSES["client1"].values()) for each in answers}

    until(lambda: seen() == {("pod1", True)}, f"pod1 alone, and it sees the client, not {seen()}")
