"""One Service as its type, labels and slices change, with the daemon and real connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.manifests import VIP, answers, endpoint_slice, listing, manifest, objects, text
from tests.cluster.modes import EVERY_MODE, Mode
from tests.program import FLAGS, Proxyd, until, write
from tests.topology import NODE, V4, Topology

PORTS = [{"name": "http", "port": 80, "nodePort": 30080}]
OTHER = "10.96.0.11"


def asked(world: Topology, *to: tuple[str, int]) -> list[set[str]]:
    return [answers(world, ip=ip, port=port) for ip, port in to]


def written(world: Topology, mode: Mode) -> str:
    """The rules."""
    return listing(world) if mode is Mode.NFTABLES else world.node.run(f"{mode}-save").stdout


def changed(kind: str, **metadata: Any) -> list[dict[str, Any]]:
    """The objects of ``manifest``, with other metadata on one of them."""
    both = objects()
    for each in both:
        if each["kind"] == kind:
            each["metadata"] |= metadata
    return both


@EVERY_MODE
def test_a_service_changes_its_type_and_comes_back(mode: Mode, node: Topology, folder: Path, log: Path) -> None:
    everywhere = ((VIP, 80), (NODE[V4], 30080))
    headless = objects(clusterIP="None", clusterIPs=["None"], externalIPs=["203.0.113.20"])
    external = objects(type="ExternalName", externalName="example.org", clusterIP="", ports=None)
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        for away in (headless, external):
            write(folder, "web.yaml", manifest(type="NodePort", ports=PORTS))
            until(lambda: asked(node, *everywhere) == [{"pod1", "pod3"}] * 2, "it is served")
            write(folder, "web.yaml", text(*away))
            until(lambda: asked(node, *everywhere) == [{"unreachable"}, {"refused"}], "it is gone")
            assert "10.96.0.10" not in written(node, mode)
            assert "203.0.113.20" not in written(node, mode)
            write(folder, "web.yaml", manifest(ip=OTHER))
            until(lambda: answers(node, ip=OTHER) == {"pod1", "pod3"}, "it is back")
        balanced = manifest(type="LoadBalancer", ports=PORTS, externalIPs=["203.0.113.20"])
        for text_, to in ((balanced, (*everywhere, ("203.0.113.20", 80))), (manifest(), everywhere[:1])):
            write(folder, "web.yaml", text_)
            until(lambda to=to: asked(node, *to) == [{"pod1", "pod3"}] * len(to), "it is served")  # type: ignore[misc]
        assert "203.0.113.20" not in written(node, mode)
        assert answers(node, ip=NODE[V4], port=30080) == {"refused"}
        assert not proxyd.events(level="error")
        assert not proxyd.events("finding")


@pytest.mark.parametrize(
    ("kind", "labels", "without"),
    [
        ("Service", {"service.kubernetes.io/service-proxy-name": "other"}, "unreachable"),
        (
            "EndpointSlice",
            {"service.kubernetes.io/service-proxy-name": "other", "kubernetes.io/service-name": "web"},
            "refused",
        ),
        (
            "EndpointSlice",
            {"service.kubernetes.io/headless": "", "kubernetes.io/service-name": "web"},
            "refused",
        ),
        ("EndpointSlice", {}, "refused"),
    ],
)
def test_labels_take_a_service_or_a_slice_away_and_give_it_back(
    node: Topology, folder: Path, log: Path, kind: str, labels: dict[str, str], without: str
) -> None:
    with Proxyd(node, folder, log):
        for _ in range(2):
            assert answers(node) == {"pod1", "pod3"}
            write(folder, "web.yaml", text(*changed(kind, labels=labels)))
            until(lambda: answers(node) == {without}, "it is not ours")
            write(folder, "web.yaml", manifest())
            until(lambda: answers(node) == {"pod1", "pod3"}, "it is ours again")


def test_slices_of_several_managers_are_one_list_and_a_slice_passes_from_one_service_to_another(
    node: Topology, folder: Path, log: Path
) -> None:
    def given(to: str) -> str:
        one, _ = objects("one", VIP)
        two, _ = objects("two", OTHER)
        made = {"controller": endpoint_slice("one", "pod1"), "mirror": endpoint_slice("two", "pod2")}
        made["hand"] = endpoint_slice(to, "pod3", port=8081)
        nobodys = endpoint_slice("one", "pod4")
        for manager, each in made.items():
            each["metadata"]["name"] = manager
            each["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = manager
        nobodys["metadata"] = {"name": "nobodys", "ownerReferences": [{"kind": "Service", "name": "one"}]}
        return text(one, two, *made.values(), nobodys)

    with Proxyd(node, folder, log):
        for to, at_one, at_two in (("one", {"pod1", "pod3"}, {"pod2"}), ("two", {"pod1"}, {"pod2", "pod3"})) * 2:
            write(folder, "web.yaml", given(to))
            expected = [at_one, at_two]
            until(lambda expected=expected: asked(node, (VIP, 80), (OTHER, 80)) == expected, f"{to} has it")


def test_a_service_that_is_being_deleted_serves_and_follows_its_endpoints_until_it_is_gone(
    node: Topology, folder: Path, log: Path
) -> None:
    deleting = changed("Service", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.org/later"])
    with Proxyd(node, folder, log):
        write(folder, "web.yaml", text(deleting[0], endpoint_slice("web", "pod4")))
        until(lambda: answers(node) == {"pod4"}, "the new endpoint")
        write(folder, "web.yaml", text(*deleting))
        until(lambda: answers(node) == {"pod1", "pod3"}, "both endpoints")
        (folder / "web.yaml").unlink()
        until(lambda: answers(node, count=1) == {"unreachable"}, "it is gone")


# -- what load balancers are told --------------------------------------------------------------------------------------

LOCAL = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32001}
LEAVING = {"ready": False, "serving": True, "terminating": True}


def test_load_balancers_are_told_about_ready_pods_of_this_node_only(node: Topology, folder: Path, log: Path) -> None:
    def put(*there: dict[str, Any], **spec: Any) -> None:
        web = objects(externalIPs=["203.0.113.20"], **{**LOCAL, **spec})[0]
        write(folder, "web.yaml", text(web, *there))

    def told(port: int = 32001) -> int:
        status: int = node.hosts["client1"].call("http_get", host=NODE[V4], port=port, path="/")[0]
        return status

    here, elsewhere = endpoint_slice("web", "pod1"), endpoint_slice("web", "pod3", name="web-2")
    leaving = endpoint_slice("web", "pod1", **LEAVING)
    with Proxyd(node, folder, log):
        put(here, elsewhere)
        until(lambda: told() == 200, "a pod is here")
        put(leaving, elsewhere)
        until(lambda: told() == 503, "the only pod here is leaving")
        assert answers(node, ip="203.0.113.20") == {"pod1"}
        put(here, elsewhere)
        until(lambda: told() == 200, "a pod is here again")
        put(elsewhere)
        until(lambda: told() == 503, "no pod is here")
        put(here, healthCheckNodePort=32002)
        until(lambda: (told(32001), told(32002)) == (0, 200), "the port is another one")
        put(here, externalTrafficPolicy="Cluster", healthCheckNodePort=None)
        until(lambda: told(32002) == 0, "nobody need ask any more")
        put(here)
        until(lambda: told() == 200, "the policy is Local again")
        (folder / "web.yaml").unlink()
        until(lambda: told() == 0, "the Service is gone")


def test_the_name_of_the_node_is_what_the_slices_call_it_in_any_case(node: Topology, folder: Path, log: Path) -> None:
    write(folder, "web.yaml", manifest(externalIPs=["203.0.113.20"], externalTrafficPolicy="Local", type="NodePort"))
    with Proxyd(node, folder, log, flags=(*FLAGS, "--hostname-override", "NODE1")):
        assert answers(node, ip="203.0.113.20") == {"pod1"}
    # A prefix is no name: nothing is local.
    with Proxyd(node, folder, log, flags=(*FLAGS, "--hostname-override", "node1.example.org")):
        assert {each.by for each in node.ask("client1", "203.0.113.20", 80, timeout=0.3)} == {"timeout"}
