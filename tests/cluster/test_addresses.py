"""Addresses of the node that come, go and move while proxyd runs, and a whole family that does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.manifests import answers, endpoint_slice, listing, metric, objects, text
from tests.netns import why_not
from tests.program import Proxyd, until, write
from tests.topology import ADDRESSES, NODE, OTHER, V4, V6, Topology

NODE_PORT = 30080
VIP, ALSO = "192.0.2.100", "192.0.2.12"
PODS = {"pod1", "pod3"}
PASSES = "kubeproxy_sync_proxy_rules_duration_seconds_count"


@pytest.fixture(scope="module")
def world() -> Iterator[Topology]:
    """A cluster of our own: here it loses addresses that other tests need."""
    if reason := why_not():
        pytest.skip(reason)
    with Topology() as topology:
        yield topology


@pytest.fixture
def served(folder: Path) -> Path:
    """A Service with a node port, for both families."""
    service, ipv4 = objects(
        type="NodePort",
        clusterIPs=["10.96.0.10", "fd00:10:96::10"],
        ports=[{"name": "http", "port": 80, "nodePort": NODE_PORT}],
    )
    ipv6: dict[str, Any] = endpoint_slice("web", name="web-6") | {
        "addressType": "IPv6",
        "endpoints": [{"addresses": [ADDRESSES[pod][V6]], "nodeName": "node1"} for pod in sorted(PODS)],
    }
    write(folder, "web.yaml", text(service, ipv4, ipv6))
    return folder


def answering(world: Topology, ip: str) -> set[str]:
    """Who answers at the node port; nobody does, and it is known at once, where the node does not take it."""
    return {each.by for each in world.ask("client1", ip, NODE_PORT, count=12, timeout=0.3)}


def wait_answered(world: Topology, ip: str) -> None:
    until(lambda: answering(world, ip) == PODS, f"the node port answers at {ip}")


def wait_left_alone(world: Topology, ip: str) -> None:
    until(lambda: not answering(world, ip) & PODS, f"no node port at {ip}")


def test_a_node_port_follows_addresses_that_come_and_go(node: Topology, served: Path, log: Path) -> None:
    with Proxyd(node, served, log, "--nodeport-addresses", "192.0.2.0/24"):
        wait_answered(node, NODE[V4])
        assert not answering(node, VIP) & PODS
        node.node.ip(V4, [f"address add {VIP}/32 dev eth0"])
        wait_answered(node, VIP)
        assert answering(node, NODE[V4]) == PODS
        node.node.ip(V4, [f"address delete {VIP}/32 dev eth0"])
        wait_left_alone(node, VIP)
        # Not only because nobody has the address: somebody else may have it now, beyond us.
        until(lambda: VIP not in listing(node), "no rule has it")
        assert answering(node, NODE[V4]) == PODS


def test_an_address_may_change_its_interface_and_its_range_decides(node: Topology, served: Path, log: Path) -> None:
    with Proxyd(node, served, log, "--nodeport-addresses", f"{VIP}/32"):
        assert answering(node, NODE[V4]) == {"refused"}
        node.node.ip(V4, [f"address add {VIP}/32 dev lo", f"address add {ALSO}/32 dev lo"])
        wait_answered(node, VIP)
        node.node.ip(V4, [f"address add {VIP}/32 dev eth0", f"address delete {VIP}/32 dev lo"])
        assert answering(node, ALSO) == {"refused"}
        wait_answered(node, VIP)
        node.node.ip(V4, [f"address delete {VIP}/32 dev eth0", f"address delete {ALSO}/32 dev lo"])
        wait_left_alone(node, VIP)


def test_without_a_node_object_primary_is_the_default_routes_address_and_follows_it(
    node: Topology, served: Path, log: Path
) -> None:
    with Proxyd(node, served, log):
        wait_answered(node, NODE[V4])
        assert not answering(node, ALSO) & PODS
        default = f"route replace default via {OTHER[V4]}"
        node.node.ip(V4, [f"address delete {NODE[V4]}/24 dev eth0", f"address add {ALSO}/24 dev eth0", default])
        try:
            wait_answered(node, ALSO)
        finally:
            node.node.ip(V4, [f"address delete {ALSO}/24 dev eth0", f"address add {NODE[V4]}/24 dev eth0", default])
        wait_answered(node, NODE[V4])


def test_addresses_that_change_no_rule_cause_no_pass(node: Topology, served: Path, log: Path) -> None:
    flags = ("--nodeport-addresses", "192.0.2.0/24")
    with Proxyd(node, served, log, *flags) as proxyd:
        wait_answered(node, NODE[V4])
        before = metric(proxyd, PASSES)
        many = [f"10.9.{n // 200}.{n % 200 + 1}/32 dev lo" for n in range(400)]
        node.node.ip(V4, [f"address add {each}" for each in many])
        node.node.ip(V4, [f"address add {VIP}/32 dev lo"])
        wait_answered(node, VIP)
        assert metric(proxyd, PASSES) == before + 1
        node.node.ip(V4, [f"address delete {each}" for each in (*many, f"{VIP}/32 dev lo")])
        wait_left_alone(node, VIP)


def test_ipv6_may_be_switched_off_and_on(node: Topology, served: Path, log: Path) -> None:
    def switch(off: str) -> None:
        node.node.call("sysctl", settings={"ipv6/conf/all/disable_ipv6": off})

    def restore() -> None:
        switch("0")
        node.node.ip(V6, [f"address replace {NODE[V6]}/64 dev eth0", f"route replace default via {OTHER[V6]}"])
        for name in ("pod1", "pod2"):
            address = ADDRESSES[name][V6]
            node.node.ip(
                V6, [f"address replace fd00:10:244:1::1/128 dev {name}", f"route replace {address} dev {name}"]
            )

    switch("1")
    try:
        # Without a single IPv6 address, from the start.
        with Proxyd(node, served, log) as proxyd:
            assert proxyd.events("proxyd starts")[0]["ip_families"] == "IPv4,IPv6"
            wait_answered(node, NODE[V4])
            for _ in range(2):
                restore()
                wait_answered(node, NODE[V6])
                switch("1")
                until(lambda: NODE[V6] not in listing(node, "ip6"), "gone")
                assert answers(node) == PODS
                assert answering(node, NODE[V4]) == PODS
            # Changes of Services go on in both families.
            write(
                served, "more.yaml", text(*objects("more", "10.96.0.11", clusterIPs=["10.96.0.11", "fd00:10:96::11"]))
            )
            until(lambda: answers(node, ip="10.96.0.11") == PODS, "a Service that comes meanwhile")
            until(lambda: "fd00:10:96::11" in listing(node, "ip6"), "IPv6 too")
            assert proxyd.get("/healthz")[0] == 200
            restore()
            wait_answered(node, NODE[V6])
            assert not proxyd.events(level="error")
    finally:
        restore()
