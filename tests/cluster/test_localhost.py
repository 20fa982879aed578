"""Node ports on the loopback address of the node, with the running program: who is reached, by whom, and how it ends."""

from __future__ import annotations

import ipaddress
import json
import re
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cases import SILENCE
from tests.cluster.manifests import METRICS_PORT, metric, text
from tests.cluster.modes import IPTABLES, Mode
from tests.cluster.namespaces import inside
from tests.program import Proxyd, until, write
from tests.topology import ADDRESSES, NODE, NODE_PORTS, OTHER, V4, V6, Family, Topology

LOOPBACK = {V4: "127.0.0.1", V6: "::1"}
PORT, UDP_PORT, SCTP_PORT = 30080, 30053, 30007
ASKED = ("--nodeport-addresses", "primary,localhost")
PODS = ("pod1", "pod3")
# What pods see as the source of a connection from the node.
SOURCES = {
    V4: {"pod1": "10.244.1.1", "pod3": NODE[V4]},
    V6: {"pod1": "fd00:10:244:1::1", "pod3": NODE[V6]},
}
LISTENERS = "kubeproxy_nftables_localhost_nodeport_listeners"
FAMILIES = pytest.mark.parametrize("family", Family)


def manifest(*pods: str, node_port: int = PORT, tcp_port: int = 8080, **spec: Any) -> str:
    """A dual-stack Service with node ports of all protocols, and its endpoints; pod1 and pod2 are on the node."""
    ports = [
        {"name": "http", "port": 80, "nodePort": node_port},
        {"name": "dns", "port": 53, "protocol": "UDP", "nodePort": UDP_PORT},
        {"name": "sig", "port": 7, "protocol": "SCTP", "nodePort": SCTP_PORT},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"type": "NodePort", "clusterIPs": ["10.96.0.10", "fd00:10:96::10"], "ports": ports, **spec},
    }
    slices = [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"web-{family}".lower(), "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": family.value,
            "ports": [
                {"name": "http", "port": tcp_port},
                {"name": "dns", "port": 8053, "protocol": "UDP"},
                {"name": "sig", "port": 7, "protocol": "SCTP"},
            ],
            "endpoints": [
                {"addresses": [ADDRESSES[pod][family]], "nodeName": "node1" if pod in ("pod1", "pod2") else "node2"}
                for pod in pods
            ],
        }
        for family in (V4, V6)
    ]
    return text(service, *slices)


@pytest.fixture
def web(node: Topology, folder: Path, log: Path) -> Iterator[Proxyd]:
    """A proxyd that was asked for node ports on localhost, and a Service with two endpoints."""
    write(folder, "web.yaml", manifest(*PODS))
    with Proxyd(node, folder, log, *ASKED) as proxyd:
        for family in Family:
            until(lambda family=family: metric(proxyd, LISTENERS, family) == 1, "a listener")  # type: ignore[misc]
        yield proxyd


def found(world: Topology, family: Family, port: int = PORT, count: int = 40, **how: Any) -> dict[str, set[str]]:
    """Who answers on localhost, and which sources they see."""
    by: dict[str, set[str]] = {}
    for answer in world.ask("node", LOOPBACK[family], port, count=count, **how):
        by.setdefault(answer.by, set()).add(answer.source)
    return by


@FAMILIES
def test_the_node_reaches_all_endpoints_and_they_see_the_node(web: Proxyd, node: Topology, family: Family) -> None:
    assert found(node, family) == {pod: {SOURCES[family][pod]} for pod in PODS}
    # As ever, from outside and by the node's address.
    for who in ("client1", "node"):
        assert {each.by for each in node.ask(who, NODE[family], PORT, count=40)} == set(PODS)
    assert metric(web, "proxyd_localhost_nodeport_connections_total", family) == 40


@FAMILIES
def test_policy_local_keeps_to_endpoints_of_the_node(web: Proxyd, node: Topology, folder: Path, family: Family) -> None:
    write(folder, "web.yaml", manifest(*PODS, externalTrafficPolicy="Local"))
    until(lambda: set(found(node, family)) == {"pod1"}, "endpoints of the node only")
    write(folder, "web.yaml", manifest("pod3", externalTrafficPolicy="Local"))
    until(lambda: set(found(node, family, count=1)) == {"refused"}, "nobody listens")
    assert metric(web, LISTENERS, family) == 0
    write(folder, "web.yaml", manifest("pod3"))
    until(lambda: set(found(node, family, count=1)) == {"pod3"}, "all endpoints")


def test_endpoints_and_ports_are_followed(web: Proxyd, node: Topology, folder: Path) -> None:
    write(folder, "web.yaml", manifest("pod2"))
    until(lambda: set(found(node, V4)) == {"pod2"}, "another endpoint")
    write(folder, "web.yaml", manifest("pod2", node_port=30081))
    until(lambda: set(found(node, V4, 30081, count=1)) == {"pod2"}, "another port")
    assert set(found(node, V4, count=1)) == {"refused"}
    write(folder, "web.yaml", manifest(node_port=30081))
    until(lambda: set(found(node, V4, 30081, count=1)) == {"refused"}, "no endpoint")
    (folder / "web.yaml").unlink()
    until(lambda: metric(web, "proxyd_services") == 0, "no Service")
    assert metric(web, LISTENERS) == 0
    assert not web.events(level="error")


def test_with_affinity_one_endpoint_has_all_connections(web: Proxyd, node: Topology, folder: Path) -> None:
    write(folder, "web.yaml", manifest(*PODS, sessionAffinity="ClientIP"))
    until(lambda: len(found(node, V4)) == 1, "one endpoint")
    (pinned,) = found(node, V4)
    (other,) = set(PODS) - {pinned}
    write(folder, "web.yaml", manifest(other, sessionAffinity="ClientIP"))
    until(lambda: set(found(node, V4)) == {other}, "the endpoint that is left")


@FAMILIES
def test_udp_is_refused_at_once(web: Proxyd, node: Topology, family: Family) -> None:
    assert set(found(node, family, UDP_PORT, count=3, protocol="udp")) == {"refused"}
    # Whoever listens there does not get it: the port is a Service's, as it is on other addresses.
    listener = inside(node.node, lambda: _udp_listener(family))
    with listener:
        assert set(found(node, family, UDP_PORT, count=3, protocol="udp")) == {"refused"}
    assert {each.by for each in node.ask("node", NODE[family], UDP_PORT, "udp", count=40)} == set(PODS)


def test_what_is_refused_is_counted_by_protocol_and_survives_rules_that_are_written_anew(
    web: Proxyd, node: Topology
) -> None:
    def rejected() -> dict[tuple[str, str], float]:
        _, page = web.get("/metrics", METRICS_PORT)
        name = "kubeproxy_nftables_localhost_nodeport_rejected_packets_total"
        found = re.findall(rf'^{name}{{ip_family="(\w+)",protocol="(\w+)"}} (\S+)$', page, re.MULTILINE)
        return {(family, protocol): float(packets) for family, protocol, packets in found}

    found(node, V4, UDP_PORT, count=3, protocol="udp")
    found(node, V6, UDP_PORT, count=2, protocol="udp")
    node.node.call("sctp_send", ip=LOOPBACK[V4], port=SCTP_PORT, source_port=7777)
    expected = {("IPv4", "udp"): 3, ("IPv6", "udp"): 2, ("IPv4", "sctp"): 1, ("IPv6", "sctp"): 0}
    until(lambda: rejected() == expected, "all are counted")
    node.node.run("nft", "add", "chain", "ip", "proxyd", "foreign")
    until(lambda: metric(web, "proxyd_drift_repaired_total") == 1, "everything is written anew")
    found(node, V4, UDP_PORT, count=1, protocol="udp")
    until(lambda: rejected() == expected | {("IPv4", "udp"): 4}, "counting goes on")


def _udp_listener(family: Family) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if family is V6 else socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((LOOPBACK[family], UDP_PORT))
    return sock


@pytest.mark.parametrize("addresses", ["primary", "", "0.0.0.0/0,::/0", "all"])
def test_who_did_not_ask_for_it_is_refused_at_once(node: Topology, folder: Path, log: Path, addresses: str) -> None:
    write(folder, "web.yaml", manifest(*PODS))
    with Proxyd(node, folder, log, *(("--nodeport-addresses", addresses) if addresses else ())) as proxyd:
        for family in Family:
            assert set(found(node, family, count=3)) == {"refused"}
            assert set(found(node, family, UDP_PORT, count=3, protocol="udp")) == {"refused"}
            assert {each.by for each in node.ask("node", NODE[family], PORT, count=40)} == set(PODS)
            assert metric(proxyd, LISTENERS, family) == 0
        listener = inside(node.node, lambda: _udp_listener(V4))
        with listener:
            assert set(found(node, V4, UDP_PORT, count=1, protocol="udp", timeout=SILENCE)) == {"timeout"}


# -- neighbours --------------------------------------------------------------------------------------------------------


def _sum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def syn(source: str, destination: str, source_port: int, port: int) -> bytes:
    """An IP packet that asks for a connection."""
    from_, to = (ipaddress.ip_address(each).packed for each in (source, destination))
    tcp = struct.pack("!HHIIBBHHH", source_port, port, 1, 0, 5 << 4, 2, 65535, 0, 0)
    check = _sum(from_ + to + struct.pack("!HH", socket.IPPROTO_TCP, len(tcp)) + tcp)
    tcp = tcp[:16] + struct.pack("!H", check) + tcp[18:]
    if len(to) == 16:
        return struct.pack("!IHBB", 6 << 28, len(tcp), socket.IPPROTO_TCP, 64) + from_ + to + tcp
    head = struct.pack("!BBHHHBBH", 0x45, 0, 40, 1, 0, 64, socket.IPPROTO_TCP, 0) + from_ + to
    return head[:10] + struct.pack("!H", _sum(head)) + head[12:] + tcp


def answered(node: Topology, family: Family, port: int) -> set[int]:
    """Asks from the next router for connections to localhost and to the node; gives the source ports with an answer."""
    (shown,) = json.loads(node.node.run("ip", "-json", "link", "show", "dev", "eth0").stdout)
    kind = 0x86DD if family is V6 else 0x0800

    def wire() -> socket.socket:
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind))
        sock.bind(("node", 0))
        return sock

    with inside(node.hosts["other"], wire) as link:
        link.settimeout(10)
        head = bytes.fromhex(shown["address"].replace(":", "")) + link.getsockname()[4] + struct.pack("!H", kind)
        # The last one is answered, and then so would the others have been.
        for source_port, destination in ((1111, LOOPBACK[family]), (2222, NODE[family])):
            link.send(head + syn(OTHER[family], destination, source_port, port))
        ports = struct.Struct("!HH")
        start = len(head) + (40 if family is V6 else 20)
        found: set[int] = set()
        while 2222 not in found:
            packet = link.recv(2048)
            if len(packet) >= start + 4 and (both := ports.unpack_from(packet, start))[0] == port:
                found.add(both[1])
    return found


@FAMILIES
def test_a_neighbour_cannot_reach_localhost_through_the_node(web: Proxyd, node: Topology, family: Family) -> None:
    assert answered(node, family, PORT) == {2222}
    assert metric(web, "proxyd_localhost_nodeport_connections_total", family) == 0


@IPTABLES
def test_in_iptables_mode_a_neighbour_cannot_reach_what_listens_on_localhost(
    mode: Mode, node: Topology, folder: Path, log: Path
) -> None:
    """Node ports on 127.0.0.1 need route_localnet, which would let neighbours in to everything else there."""
    with Proxyd(node, folder, log, flags=mode.flags):
        assert node.node.run("sysctl", "-n", "net.ipv4.conf.all.route_localnet").stdout.strip() == "1"
        assert answered(node, V4, NODE_PORTS[0]) == {2222}


# -- connections that last ---------------------------------------------------------------------------------------------


class Long:
    """A connection from the node to a node port on localhost, with both ends in our hands."""

    def __init__(self, world: Topology, folder: Path, proxyd: Proxyd) -> None:
        self.server = inside(world.hosts["pod1"], lambda: socket.create_server(("", 9000)))
        self.server.settimeout(10)
        write(folder, "web.yaml", manifest("pod1", tcp_port=9000))
        while True:
            self.client = inside(world.node, lambda: socket.create_connection((LOOPBACK[V4], PORT), timeout=10))
            try:
                self.server.settimeout(0.2)
                self.endpoint, _ = self.server.accept()
                break
            except TimeoutError:
                self.client.close()  # it went to the endpoint that was there before
        self.endpoint.settimeout(10)
        self.proxyd = proxyd

    def works(self) -> bool:
        self.client.sendall(b"there")
        there = self.endpoint.recv(5, socket.MSG_WAITALL)
        self.endpoint.sendall(b"back")
        return (there, self.client.recv(4, socket.MSG_WAITALL)) == (b"there", b"back")

    def close(self) -> None:
        for sock in (self.client, self.endpoint, self.server):
            sock.close()


@pytest.fixture
def long(web: Proxyd, node: Topology, folder: Path) -> Iterator[Long]:
    made = Long(node, folder, web)
    yield made
    made.close()


def test_a_connection_outlives_its_endpoint_in_the_list_and_rules_that_are_written_anew(
    long: Long, node: Topology, folder: Path
) -> None:
    assert long.works()
    write(folder, "web.yaml", manifest("pod3"))
    until(lambda: set(found(node, V4)) == {"pod3"}, "another endpoint")
    assert long.works()
    node.node.run("nft", "flush", "ruleset")
    until(lambda: {each.by for each in node.ask("client1", NODE[V4], PORT)} == {"pod3"}, "the rules are back")
    assert long.works()
    assert set(found(node, V4)) == {"pod3"}


def test_a_service_that_is_gone_takes_its_connections_along(long: Long, folder: Path) -> None:
    assert long.works()
    (folder / "web.yaml").unlink()
    for sock in (long.client, long.endpoint):
        with pytest.raises(ConnectionResetError):
            sock.recv(1)


def test_when_it_is_asked_to_end_connections_may_finish_but_not_for_ever(long: Long, node: Topology) -> None:
    long.proxyd.process.send_signal(signal.SIGTERM)
    long.proxyd.wait_event("stopping; all rules stay")
    assert long.works()
    # Later, since one that still gets through waits for an answer that nobody gives.
    until(lambda: set(found(node, V4, count=1)) == {"refused"}, "nobody listens any more")
    with pytest.raises(ConnectionResetError):
        long.client.recv(1)
    assert long.proxyd.process.wait(10) == 0


def test_when_it_is_asked_to_end_it_waits_no_longer_than_connections_last(long: Long, node: Topology) -> None:
    long.proxyd.process.send_signal(signal.SIGTERM)
    long.proxyd.wait_event("stopping; all rules stay")
    long.client.sendall(b"that was it")
    long.client.shutdown(socket.SHUT_WR)
    assert long.endpoint.recv(100, socket.MSG_WAITALL) == b"that was it"
    long.endpoint.close()
    assert long.client.recv(1) == b""
    assert long.proxyd.process.wait(10) == 0
