"""What becomes of real connections, by the rules that proxyd's parts write: frontends, ranges, refusals, protocols."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from typing import Any

import pytest

from proxyd.model import Endpoint, Family, ServicePort, SlicePort
from tests import build
from tests.cluster.cases import (
    EVERYWHERE,
    FAMILIES,
    FRONTENDS,
    LOAD_BALANCER,
    NODE_PORT,
    PLACES,
    PROTOCOLS,
    REFUSED,
    SILENCE,
    VIP,
    Target,
    each,
    names,
    service,
    slices,
    target,
)
from tests.cluster.modes import EVERY_MODE, IPTABLES, NFTABLES, Mode
from tests.cluster.rules import Rules
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, V4, V6, Topology

pytestmark = EVERY_MODE

# -- frontends ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frontend", FRONTENDS)
@FAMILIES
@PROTOCOLS
@pytest.mark.parametrize("affinity", [0, 60])
def test_a_pod_reaches_itself(
    world: Topology, rules: Rules, affinity: int, protocol: str, family: Family, frontend: str
) -> None:
    ports = (build.port(protocol=protocol, node_port=NODE_PORT),)
    there = (SlicePort("http", protocol, 8080),)
    rules.ensure(service(ports=ports, affinity_seconds=affinity), *slices("pod1", ports=there))
    assert set(world.ask("pod1", *target(frontend, family), protocol, 3)) == {("pod1", POD_GATEWAY[family])}


@FAMILIES
def test_node_ports_answer_on_the_nodes_own_address_only(world: Topology, rules: Rules, family: Family) -> None:
    rules.ensure(service(), *slices("pod1", "pod3"))
    assert names(world, "pod", Target(POD_GATEWAY[family], NODE_PORT)) == {"refused"}
    # In iptables mode nobody minds what else is sent to a cluster IP, so it goes to and fro.
    nobody = {"refused"} if rules.mode is Mode.NFTABLES else {"unreachable"}
    assert names(world, "outside", Target(VIP[family], NODE_PORT), count=1) == nobody


@NFTABLES
@FAMILIES
def test_node_ports_on_all_addresses_leave_loopback_alone(world: Topology, rules: Rules, family: Family) -> None:
    rules.ensure(service(), *slices("pod1", "pod3"), node_port_addresses=None)
    for address in (POD_GATEWAY[family], NODE[family]):
        assert names(world, "pod", Target(address, NODE_PORT)) == {"pod1", "pod3"}
    assert names(world, "node", Target("127.0.0.1" if family is V4 else "::1", NODE_PORT)) == {"refused"}


@FAMILIES
def test_an_external_ip_that_is_the_nodes_address_takes_its_own_port_only(
    world: Topology, rules: Rules, family: Family
) -> None:
    rules.ensure(service(external_ips=tuple(NODE.values())), *slices("pod1", "pod3"))
    for place in PLACES:
        assert names(world, place, Target(NODE[family], 80)) == {"pod1", "pod3"}
        assert names(world, place, Target(NODE[family], 2222)) == {"node"}
        assert names(world, place, Target(NODE[family], 2223)) == {"refused"}


@FAMILIES
def test_endpoints_of_one_family_serve_nobody_in_the_other(world: Topology, rules: Rules, family: Family) -> None:
    other = V6 if family is V4 else V4
    theirs = [each for each in slices("pod1", "pod3") if each.family is family]
    rules.serve(service(), *theirs)
    for frontend, place in itertools.product(FRONTENDS, PLACES):
        assert names(world, place, target(frontend, family)) == {"pod1", "pod3"}, (frontend, place)
        assert not names(world, place, target(frontend, other), count=1, timeout=SILENCE) & {"pod1", "pod3"}
    rules.change(*(each for each in slices("pod1", "pod3") if each.family is other), gone=theirs)
    assert not names(world, "outside", target("cluster ip", family), count=1, timeout=SILENCE) & {"pod1", "pod3"}
    assert names(world, "outside", target("cluster ip", other)) == {"pod1", "pod3"}


# -- source ranges -----------------------------------------------------------------------------------------------------


def one(*hosts: str) -> tuple[str, ...]:
    """Ranges that hold these hosts and nobody else."""
    return tuple(
        f"{address}/{32 if family is V4 else 128}" for host in hosts for family, address in ADDRESSES[host].items()
    )


@FAMILIES
@pytest.mark.parametrize("external_local", [False, True])
@pytest.mark.parametrize("inside", ["client1", "client2", "pod2", "node"])
def test_only_sources_in_the_ranges_reach_the_load_balancers_address(
    world: Topology, rules: Rules, inside: str, external_local: bool, family: Family
) -> None:
    rules.ensure(service(source_ranges=one(inside), external_local=external_local), *slices("pod1"))
    hosts = ("client1", "client2", "pod2", "node")
    expected = {host: {"pod1"} if host == inside else {"timeout"} for host in hosts}
    assert each(world, target("load balancer", family), expected) == expected


@FAMILIES
def test_other_frontends_are_not_limited_by_source_ranges(world: Topology, rules: Rules, family: Family) -> None:
    rules.ensure(service(source_ranges=one("client1")), *slices("pod1"))
    for host, frontend in itertools.product(("client2", "pod2", "node"), FRONTENDS):
        if frontend != "load balancer":
            assert names(world, host, target(frontend, family), count=2) == {"pod1"}, (host, frontend)


@FAMILIES
def test_who_is_kept_out_does_not_get_to_the_nodes_own_server(world: Topology, rules: Rules, family: Family) -> None:
    address = LOAD_BALANCER[family]
    bound = f"{address}/{32 if family is V4 else 128} dev lo"
    rules.serve(service(source_ranges=one("client1")), *slices("pod1"))
    world.node.ip(family, [f"address add {bound}"])
    try:
        silence, own, served = {"timeout"}, {"node"}, {"pod1"}
        for port, expected in (
            (80, {"client1": served, "client2": silence, "pod2": silence}),
            (2222, {"client1": own, "client2": own, "pod2": own}),
        ):
            assert each(world, Target(address, port), expected) == expected
    finally:
        world.node.ip(family, [f"address delete {bound}"])


def test_ranges_of_one_family_leave_the_other_open(world: Topology, rules: Rules) -> None:
    rules.serve(service(source_ranges=("198.51.100.7/32",)), *slices("pod1"))
    assert names(world, "client2", target("load balancer", V4), count=1, timeout=SILENCE) == {"timeout"}
    assert names(world, "client2", target("load balancer", V6)) == {"pod1"}


def test_ranges_that_cannot_be_read_let_nobody_in(world: Topology, rules: Rules) -> None:
    rules.serve(service(source_ranges=("198.51.100.0",)), *slices("pod1"))
    for family in Family:
        assert names(world, "client1", target("load balancer", family), count=1, timeout=SILENCE) == {"timeout"}
        assert names(world, "client1", target("cluster ip", family)) == {"pod1"}


# -- refusals ----------------------------------------------------------------------------------------------------------

# Linux takes no notice of ICMPv6 while it connects over TCP: only what it sends again after a second is refused. nftables
# mode sends a reset; kube-proxy's rules, which iptables mode has, do not.
AT_ONCE = pytest.mark.parametrize(("family", "protocol"), [(V4, "tcp"), (V4, "udp"), (V6, "udp")])


def serve_nothing(rules: Rules, **fields: Any) -> None:
    """A Service without endpoints."""
    both = tuple(build.port(name=name, protocol=name, node_port=NODE_PORT) for name in ("tcp", "udp"))
    rules.ensure(service(ports=both, **fields), *slices())


@NFTABLES
@FAMILIES
@EVERYWHERE
@PROTOCOLS
@pytest.mark.parametrize("external_local", [False, True])
def test_without_endpoints_everyone_is_refused(
    world: Topology, rules: Rules, external_local: bool, protocol: str, place: str, family: Family
) -> None:
    serve_nothing(rules, external_local=external_local)
    for frontend in FRONTENDS:
        assert names(world, place, target(frontend, family), protocol, 2) <= REFUSED, frontend


@NFTABLES
@FAMILIES
@EVERYWHERE
@PROTOCOLS
def test_an_unknown_port_of_a_cluster_ip_is_refused(
    world: Topology, rules: Rules, protocol: str, place: str, family: Family
) -> None:
    rules.ensure(service(), *slices("pod1"))
    assert names(world, place, Target(VIP[family], 81), protocol, 2) <= REFUSED


@NFTABLES
@FAMILIES
@EVERYWHERE
@PROTOCOLS
def test_a_refusal_comes_before_the_kernel_asks_again(
    world: Topology, rules: Rules, protocol: str, place: str, family: Family
) -> None:
    serve_nothing(rules)
    for to in (*(target(frontend, family) for frontend in FRONTENDS), Target(VIP[family], 81)):
        assert REFUSED & names(world, place, to, protocol, 3, timeout=0.9), to


@IPTABLES
@AT_ONCE
@EVERYWHERE
@pytest.mark.parametrize("external_local", [False, True])
def test_without_endpoints_everyone_is_refused_at_once_in_iptables_mode(
    world: Topology, rules: Rules, external_local: bool, place: str, family: Family, protocol: str
) -> None:
    serve_nothing(rules, external_local=external_local)
    # As in kube-proxy, what the node itself sends to an external address leaves it, and is refused by who gets it, or not.
    for frontend in FRONTENDS[:2] if place == "node" else FRONTENDS:
        answers = names(world, place, target(frontend, family), protocol, 3, timeout=0.9)
        assert answers & REFUSED, frontend
        assert answers <= REFUSED | {"timeout"}, frontend


@EVERYWHERE
def test_without_endpoints_the_same_port_elsewhere_is_not_refused(world: Topology, rules: Rules, place: str) -> None:
    rules.ensure(service(external_ips=("192.0.2.11",), ports=(build.port(8443),)), *slices())
    assert names(world, place, Target("10.244.1.11", 8443), count=2) == {"pod1"}
    assert names(world, place, Target("192.0.2.11", 8443), count=2) == {"refused"}
    assert names(world, place, Target("192.0.2.11", 80), count=2) == {"node"}


# -- protocols ---------------------------------------------------------------------------------------------------------


@FAMILIES
@EVERYWHERE
@pytest.mark.parametrize("frontend", FRONTENDS)
def test_tcp_and_udp_on_one_port_are_two_things(
    world: Topology, rules: Rules, frontend: str, place: str, family: Family
) -> None:
    ports = (
        build.port(53, "dns", "udp", NODE_PORT),
        build.port(53, "dns-tcp", "tcp", NODE_PORT),
    )
    listed = (
        *slices("pod1", ports=(SlicePort("dns", "udp", 8053),)),
        *(
            build.endpoint_slice(
                "web",
                Endpoint(ADDRESSES["pod3"][f], node="node2"),
                name=f"t-{f}",
                family=f,
                ports=(SlicePort("dns-tcp", "tcp", 8443),),
            )
            for f in Family
        ),
    )
    rules.ensure(service(ports=ports), *listed)
    to = target(frontend, family, 53)
    assert names(world, place, to, "udp", 4) == {"pod1"}
    assert names(world, place, to, "tcp", 4) == {"pod3"}


@EVERYWHERE
def test_two_ports_of_one_address_are_two_endpoints(world: Topology, rules: Rules, place: str) -> None:
    first, second = (SlicePort("http", "tcp", number) for number in (8080, 9))
    one_port = slices("pod1", ports=(first,))
    other_port = build.endpoint_slice("web", Endpoint("10.244.1.11", node=build.NODE), name="other", ports=(second,))
    rules.ensure(service(), *one_port, other_port)
    # Nothing listens on port 9, so the pod refuses: both are used.
    assert names(world, place, target("cluster ip", V4)) == {"pod1", "refused"}


@pytest.mark.parametrize("to", ["cluster ip", "node port", "load balancer"])
def test_sctp_is_forwarded(world: Topology, rules: Rules, to: str) -> None:
    port = (ServicePort("assoc", "sctp", 80, NODE_PORT),)
    rules.ensure(service(ports=port), *slices("pod1", ports=(SlicePort("assoc", "sctp", 9000),)))
    world.hosts["pod1"].call("sctp_listen")
    world.hosts["client1"].call("sctp_send", ip=target(to, V4).address, port=target(to, V4).port, source_port=4000)
    assert world.hosts["pod1"].call("sctp_seen", timeout=5) == [POD_GATEWAY[V4], 9000]


# -- others on the same node -------------------------------------------------------------------------------------------

FOREIGN = """
table ip foreign {
    chain before { type filter hook prerouting priority mangle; ip daddr 10.96.0.10 meta mark set 0x10001; }
    chain after {
        type filter hook postrouting priority 300;
        ip daddr 10.244.0.0/16 ct state new meta mark 0x10001 counter name kept
        ip daddr 10.244.0.0/16 ct state new meta mark != 0x10001 counter name changed
    }
    counter kept {}
    counter changed {}
}
"""


@pytest.mark.parametrize("host", ["pod2", "client1"])
def test_marks_of_others_survive_and_ours_does_not_go_out(world: Topology, rules: Rules, host: str) -> None:
    rules.serve(service(), *slices("pod3"))
    world.node.run("nft", "-f", "-", stdin=FOREIGN)
    assert names(world, host, target("cluster ip", V4), count=5) == {"pod3"}

    def packets(counter: str) -> int:
        listed = world.node.run("nft", "list", "counter", "ip", "foreign", counter).stdout
        (number,) = re.findall(r"packets (\d+)", listed)
        return int(number)

    assert packets("kept") >= 5
    assert packets("changed") == 0


def test_a_connection_goes_on_while_everything_is_written_anew(world: Topology, rules: Rules) -> None:
    rules.serve(service(), *slices("pod1", "pod3"))
    end = time.monotonic() + 1
    answers: Counter[str] = Counter()
    while time.monotonic() < end:
        rules.write_anew()
        answers.update(answer.by for answer in world.ask("client1", *target("cluster ip", V4), count=20))
    assert set(answers) == {"pod1", "pod3"}
