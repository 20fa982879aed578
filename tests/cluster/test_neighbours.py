"""Who else is on the node: other firewalls, newer tools, servers on the same ports, interfaces that come later."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd.model import LocalDetector, SlicePort
from tests import build
from tests.cluster.cases import EVERYWHERE, FRONTENDS, SILENCE, Target, names, service, slices, target
from tests.cluster.manifests import VIP, answers, manifest
from tests.cluster.modes import EVERY_MODE, IPTABLES
from tests.cluster.namespaces import inside
from tests.cluster.rules import Rules
from tests.program import Proxyd, write
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, V4, Topology

pytestmark = EVERY_MODE


@pytest.fixture
def foreign(rules: Rules) -> Iterator[Rules]:
    """Rules beside which a test writes those of others; gone after it."""
    yield rules
    rules.node.run("nft", "flush", "ruleset")
    rules.forget_served()


# -- firewalls ---------------------------------------------------------------------------------------------------------

FIREWALL = """
table inet firewall {
    chain forward { type filter hook forward priority filter + 10; policy drop; RULE; }
}
"""


@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("host", ["pod2", "client1"])
def test_a_firewall_can_tell_what_we_forward_by_the_status_of_the_connection(
    world: Topology, foreign: Rules, host: str, frontend: str
) -> None:
    foreign.serve(service(), *slices("pod1", "pod3"))
    foreign.node.run("nft", "-f", "-", stdin=FIREWALL.replace("RULE", "ct status dnat accept"))
    assert names(world, host, target(frontend, V4)) == {"pod1", "pod3"}
    assert names(world, "client1", Target(ADDRESSES["pod1"][V4], 8080), count=1, timeout=SILENCE) == {"timeout"}


def test_what_a_later_firewall_drops_is_dropped(world: Topology, foreign: Rules) -> None:
    # No accept of ours could change that, so there is none: the node's owner has the last word.
    foreign.serve(service(), *slices("pod1"))
    foreign.node.run("nft", "-f", "-", stdin=FIREWALL.replace("RULE", "ct status dnat tcp dport != 8080 accept"))
    assert names(world, "client1", target("cluster ip", V4), count=1, timeout=SILENCE) == {"timeout"}
    assert names(world, "node", target("cluster ip", V4)) == {"pod1"}


@IPTABLES
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_a_node_that_forwards_nothing_by_default_forwards_what_comes_from_outside(
    world: Topology, foreign: Rules, frontend: str
) -> None:
    tool = str(foreign.mode)
    foreign.serve(service(), *slices("pod1", "pod3"))
    foreign.node.run(tool, "-P", "FORWARD", "DROP")
    try:
        assert names(world, "client1", target(frontend, V4)) == {"pod1", "pod3"}
        # Answers to what others let out come back in; nothing else is anybody's permission.
        assert names(world, "client1", Target(ADDRESSES["pod1"][V4], 8080), count=1, timeout=SILENCE) == {"timeout"}
    finally:
        foreign.node.run(tool, "-P", "FORWARD", "ACCEPT")


# -- tools -------------------------------------------------------------------------------------------------------------


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _message(kind: int, flags: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body


def add_set_of_the_future() -> None:
    """Makes a table with a set whose type no library of today knows, as a newer nft might."""
    number = struct.Struct("!I").pack
    head, batch = struct.pack("!BBH", 2, 0, 0), struct.pack("!BBH", 0, 0, 10)
    table = head + _attribute(1, b"newer\0")
    kept = (
        table
        + _attribute(2, b"odd\0")
        + b"".join(_attribute(n, number(v)) for n, v in ((3, 0), (4, 63), (5, 4), (10, 1)))
    )
    # NFNL_MSG_BATCH_BEGIN, NFT_MSG_NEWTABLE, NFT_MSG_NEWSET, NFNL_MSG_BATCH_END
    parts = ((16, 1, batch), (10 << 8, 0x401, table), (10 << 8 | 9, 0x401, kept), (17, 1, batch))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as netfilter:
        netfilter.send(b"".join(_message(*part) for part in parts))


def test_what_a_newer_tool_wrote_into_its_own_table_does_not_disturb_us(
    node: Topology, folder: Path, log: Path
) -> None:
    inside(node.node, add_set_of_the_future)
    assert "Unknown data type" in node.node.run("nft", "list", "ruleset").stderr
    with Proxyd(node, folder, log):
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")
    with Proxyd(node, folder, log) as proxyd:
        assert answers(node) == {"pod4"}
        assert not proxyd.events("rules not written")
    assert "table ip newer" in node.node.run("nft", "list", "tables").stdout


# -- ports -------------------------------------------------------------------------------------------------------------


@EVERYWHERE
def test_a_node_port_is_served_though_a_process_listens_on_it(world: Topology, rules: Rules, place: str) -> None:
    # At an address that takes no node ports; in iptables mode 127.0.0.1 does.
    assert names(world, "node", Target(POD_GATEWAY[V4], 2222)) == {"node"}
    rules.ensure(service(ports=(build.port(node_port=2222),)), *slices("pod1"))
    assert names(world, place, Target(NODE[V4], 2222)) == {"pod1"}
    assert names(world, place, Target(NODE[V4], 80)) == {"node"}


def test_answers_to_the_nodes_own_connections_are_not_taken_for_node_ports(world: Topology, rules: Rules) -> None:
    # Every port that the node, or masquerading on it, takes for a connection is a node port too.
    low, high = 30000, 30999
    kept = world.node.run("cat", "/proc/sys/net/ipv4/ip_local_port_range").stdout.split()
    served = tuple(build.port(n, f"p{n}", "tcp", n) for n in range(low + 1, high, 2))
    # Linux prefers even ports for connections.
    refused = tuple(build.port(n, f"p{n}", "tcp", n) for n in range(low, high, 2))
    there = tuple(SlicePort(port.name, "tcp", 8080) for port in served)
    rules.serve(
        service(ports=served),
        *slices("pod1", ports=there),
        build.service("none", ip="10.96.0.11", ports=refused),
        build.service("web", namespace="other", ip="10.96.0.12"),
        build.endpoint_slice("web", build.endpoint(ADDRESSES["pod3"][V4]), namespace="other"),
    )
    world.node.call("sysctl", settings={"ipv4/ip_local_port_range": f"{low} {high}"})
    try:
        for to in (Target(ADDRESSES["pod3"][V4], 8080), Target("10.96.0.12", 80)):
            assert names(world, "node", to, count=300) == {"pod3"}
        assert names(world, "client1", Target("10.96.0.12", 80), count=300) == {"pod3"}
    finally:
        world.node.call("sysctl", settings={"ipv4/ip_local_port_range": " ".join(kept)})


# -- interfaces --------------------------------------------------------------------------------------------------------


def test_pods_are_local_by_an_interface_that_comes_after_the_rules(world: Topology, rules: Rules) -> None:
    rules.serve(service(), *slices("pod1"), local=LocalDetector(interface="late*"))
    pod, own = world.hosts["pod2"], "10.244.1.99"

    def seen() -> set[str]:
        return {answer.source for answer in world.ask("pod2", *target("cluster ip", V4), count=3, source_ip=own)}

    for _ in range(2):
        world.node.run("ip", "link", "add", "late0", "type", "veth", "peer", "name", "eth9", "netns", str(pod.pid))
        world.node.ip(V4, ["link set late0 up", f"route add {own} dev late0"])
        pod.ip(V4, ["link set eth9 up", f"address add {own}/32 dev eth9", "route add default dev eth9 table 9"])
        pod.ip(V4, [f"rule add from {own} table 9"])
        world.node.call("sysctl", settings={"ipv4/conf/late0/proxy_arp": "1"})
        assert seen() == {own}
        pod.ip(V4, [f"rule delete from {own} table 9"])
        world.node.ip(V4, ["link delete late0"])
    assert {a.source for a in world.ask("pod2", *target("cluster ip", V4), count=3)} != {ADDRESSES["pod2"][V4]}


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("affinity", [0, 60])
def test_the_longest_names_that_there_are_do_not_get_into_each_others_way(
    world: Topology, rules: Rules, affinity: int
) -> None:
    namespace = "n" * 63
    objects = []
    for number, (last, pod) in enumerate((("a", "pod1"), ("b", "pod3"))):
        name, port = "s" * 62 + last, "p" * 15
        fields = {"namespace": namespace, "affinity_seconds": affinity, "ports": (build.port(name=port),)}
        objects += [
            build.service(name, ip=f"10.96.0.{10 + number}", **fields),
            build.endpoint_slice(
                name,
                build.endpoint(ADDRESSES[pod][V4]),
                namespace=namespace,
                ports=(SlicePort(port, "tcp", 8080),),
            ),
        ]
    # A name that begins with a digit, and a word of nft's own.
    objects += [
        build.service("fwd", namespace="0-0", ip="10.96.0.12", affinity_seconds=affinity),
        build.endpoint_slice("fwd", build.endpoint(ADDRESSES["pod4"][V4]), namespace="0-0"),
    ]
    rules.serve(*objects)
    for ip, pod in (("10.96.0.10", "pod1"), ("10.96.0.11", "pod3"), ("10.96.0.12", "pod4")):
        assert names(world, "client1", Target(ip, 80)) == {pod}
