"""UDP flows that the kernel remembers, with the real daemon and real packets: what moves on, what is refused, what stays.

Every sender keeps its source port, as DNS and SIP servers do; otherwise nothing of this shows.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.model import Family
from tests.cluster.cases import FAMILIES, FRONTENDS, REFUSED, VIP, Target
from tests.cluster.flows import (
    DEAD,
    KEEP_TRACKING,
    NODE_PORT,
    READY,
    TCP,
    TERMINATING,
    Bench,
    every_frontend,
    pod,
    service,
    slices,
    target,
)
from tests.cluster.modes import ALSO_LEGACY, ALSO_NFT, Mode
from tests.cluster.namespaces import inside
from tests.fakes.flows import Flow
from tests.netns import add_many_flows
from tests.program import until
from tests.topology import V4, V6


@ALSO_NFT
@FAMILIES
def test_flows_follow_the_endpoint_that_replaces_their_own(mode: Mode, bench: Bench, family: Family) -> None:
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert {bench.send(to, port) for to, port in every_frontend(family)} == {"pod1"}
    bench.put(service(), *slices(pod3=READY))
    for to, port in every_frontend(family):
        bench.until_answered(to, port, {"pod3"})
    assert bench.metric("kubeproxy_conntrack_reconciler_deleted_entries_total", family) >= len(FRONTENDS)


@ALSO_LEGACY
@FAMILIES
@pytest.mark.parametrize("how", ["scaled to zero", "not serving"])
def test_flows_to_the_last_endpoint_are_refused_when_that_is_gone(
    mode: Mode, bench: Bench, family: Family, how: str
) -> None:
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert {bench.send(to, port) for to, port in every_frontend(family)} == {"pod1"}
    bench.put(service(), *(slices() if how == "scaled to zero" else slices(pod1=DEAD)))
    for to, port in every_frontend(family):
        bench.until_answered(to, port, REFUSED)


@ALSO_NFT
@FAMILIES
def test_flows_that_began_before_the_service_are_served(mode: Mode, bench: Bench, family: Family) -> None:
    bench.start()
    for to, port in every_frontend(family):
        bench.send(to, port)
    untranslated = {each.destination for each in bench.flows(family) if each.answers == each.destination}
    assert {Backend(*to) for to, _ in every_frontend(family)} <= untranslated
    bench.put(service(), *slices(pod1=READY))
    for to, port in every_frontend(family):
        bench.until_answered(to, port, {"pod1"})


@FAMILIES
def test_a_flow_that_was_refused_is_served_when_an_endpoint_comes(bench: Bench, family: Family) -> None:
    to = target("cluster ip", family)
    bench.put(service(), *slices())
    bench.start()
    bench.until_answered(to, 5353, REFUSED)
    bench.put(service(), *slices(pod1=READY))
    bench.until_answered(to, 5353, {"pod1"})


@FAMILIES
def test_what_changed_while_nobody_was_there_is_made_good(bench: Bench, family: Family) -> None:
    to, late = target("cluster ip", family), target("external ip", family)
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert bench.send(to, 5353) == "pod1"
    bench.stop()
    bench.world.node.run("nft", KEEP_TRACKING)
    for each in ("ip", "ip6"):
        bench.world.node.run("nft", "delete", "table", each, "proxyd")
    assert bench.send(late, 5354) != "pod1"  # not translated
    bench.put(service(), *slices(pod3=READY))
    bench.start()
    bench.until_answered(to, 5353, {"pod3"})
    bench.until_answered(late, 5354, {"pod3"})


@FAMILIES
def test_a_node_port_on_every_address_of_the_node(bench: Bench, family: Family) -> None:
    second = {V4: "203.0.113.77", V6: "2001:db8:113::77"}[family]
    bench.world.node.ip(family, [f"address add {second} dev lo"])
    try:
        bench.put(service(), *slices(pod1=READY))
        bench.start("--nodeport-addresses", "0.0.0.0/0,::/0")
        to = Target(second, NODE_PORT)
        assert bench.send(to, 5353) == "pod1"
        bench.put(service(), *slices(pod3=READY))
        bench.until_answered(to, 5353, {"pod3"})
    finally:
        bench.world.node.ip(family, [f"address del {second} dev lo"])


@FAMILIES
def test_flows_of_an_external_ip_that_is_taken_away_end_and_others_stay(bench: Bench, family: Family) -> None:
    gone, kept = target("external ip", family), target("cluster ip", family)
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert bench.send(gone, 5353) == bench.send(kept, 5354) == "pod1"
    bench.put_and_wait(family, service(externalIPs=[]), *slices(pod1=READY))
    left = {each.destination for each in bench.flows(family) if each.answers == pod("pod1", family)}
    assert left == {Backend(*kept)}
    assert bench.send(gone, 5353) != "pod1"


@FAMILIES
def test_flows_of_a_deleted_service_end(bench: Bench, family: Family) -> None:
    to = target("cluster ip", family)
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert bench.send(to, 5353) == "pod1"
    bench.put_and_wait(family)
    assert bench.send(to, 5353) != "pod1"
    assert not any(each.answers == pod("pod1", family) for each in bench.flows(family))


@ALSO_LEGACY
@FAMILIES
def test_a_port_that_turns_from_udp_to_tcp_ends_its_udp_flows_only(mode: Mode, bench: Bench, family: Family) -> None:
    to = target("cluster ip", family)
    other = {**service(clusterIPs=[{V4: "10.96.0.77", V6: "fd00:10:96::77"}[family]]), "metadata": {"name": "other"}}
    other["spec"] |= {"clusterIP": other["spec"]["clusterIPs"][0], "externalIPs": [], "type": "ClusterIP"}
    other["spec"]["ports"] = [{"name": "dns", "port": 53, "protocol": "UDP"}]
    del other["status"]
    others = [{**each, "metadata": {"name": "other-" + each["metadata"]["name"]}} for each in slices(pod1=READY)]
    for each in others:
        each["metadata"]["labels"] = {"kubernetes.io/service-name": "other"}
    bench.put(service(), other, *slices(pod1=READY), *others)
    bench.start()
    beside = Target(other["spec"]["clusterIP"], 53)
    assert bench.send(to, 5353) == bench.send(beside, 5354) == "pod1"
    before = bench.flows(family)
    flipped = service(ports=[{"name": "dns", "port": 53, "protocol": "TCP", "nodePort": NODE_PORT}, TCP])
    bench.put_and_wait(family, flipped, other, *slices(pod1=READY), *others)
    gone = before - bench.flows(family)
    assert {(each.protocol, each.destination) for each in gone} == {("udp", Backend(*to))}
    # In iptables mode nobody minds what is sent to another port of a cluster IP.
    assert bench.send(to, 5353) in (REFUSED if mode is Mode.NFTABLES else {"timeout", "unreachable"})
    assert bench.send(beside, 5354) == "pod1"


@FAMILIES
def test_tcp_is_never_touched(bench: Bench, family: Family) -> None:
    to = Target(VIP[family], 80)
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    [answer] = bench.world.ask("client1", *to)
    assert answer.by == bench.send(target("cluster ip", family), 5353) == "pod1"
    before = {each for each in bench.flows(family) if each.protocol == "tcp" and each.destination == Backend(*to)}
    assert before
    bench.put_and_wait(family, service(), *slices(pod3=READY))
    bench.until_answered(target("cluster ip", family), 5353, {"pod3"})
    assert before <= bench.flows(family)


@FAMILIES
def test_an_endpoint_that_terminates_keeps_its_flows_while_it_serves(bench: Bench, family: Family) -> None:
    to = target("cluster ip", family)
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert bench.send(to, 5353) == "pod1"
    bench.put_and_wait(family, service(), *slices(pod1=TERMINATING, pod3=READY))
    assert {bench.send(to, port) for port in range(6000, 6008)} == {"pod3"}
    assert bench.send(to, 5353) == "pod1"
    bench.put(service(), *slices(pod1=DEAD | {"terminating": True}, pod3=READY))
    bench.until_answered(to, 5353, {"pod3"})


@FAMILIES
def test_a_restart_cuts_no_flow_that_has_its_endpoint(bench: Bench, family: Family) -> None:
    """Balanced anew, twenty flows would go where they went with a chance of one in a million."""
    to, ports = target("cluster ip", family), range(6000, 6020)
    bench.put(service(), *slices(pod1=READY, pod3=READY))
    bench.start()
    before = {port: bench.send(to, port) for port in ports}
    assert set(before.values()) == {"pod1", "pod3"}
    bench.stop()
    bench.start()
    assert {port: bench.send(to, port) for port in ports} == before
    assert bench.metric("kubeproxy_conntrack_reconciler_deleted_entries_total", family) == 0


@FAMILIES
def test_more_endpoints_cut_no_flow(bench: Bench, family: Family) -> None:
    to, ports = target("cluster ip", family), range(6000, 6020)
    bench.put(service(), *slices(pod1=READY, pod3=READY))
    bench.start()
    before = {port: bench.send(to, port) for port in ports}
    bench.put_and_wait(family, service(), *slices(pod1=READY, pod3=READY, pod2=READY, pod4=READY))
    assert {port: bench.send(to, port) for port in ports} == before


def test_a_full_tracker_delays_no_rule_and_takes_no_memory(bench: Bench) -> None:
    """Hundreds of thousands of flows, a tenth of them stale; a TCP endpoint is replaced while they are looked through."""
    limit = int(bench.world.node.run("cat", "/proc/sys/net/netfilter/nf_conntrack_max").stdout)
    count = min(200_000, limit * 3 // 4) // 10 * 10
    vip = Backend(VIP[V4], 53)
    bench.put(service(), *slices(pod1=READY, pod3=READY))
    bench.start()
    before = _peak(bench)
    inside(bench.world.node, lambda: add_many_flows(_crowd(n, vip) for n in range(count)))
    bench.put(service(), *slices(pod3=READY))
    assert bench.world.hosts["client1"].call("ask_until", ip=VIP[V4], port=80, answer="pod3")
    deleted = "kubeproxy_conntrack_reconciler_deleted_entries_total"
    until(lambda: bench.metric(deleted, V4) >= count // 10, "stale flows deleted")
    assert bench.metric(deleted, V4) == count // 10
    assert _peak(bench) - before < 20_000
    found = int(bench.world.node.run("cat", "/proc/sys/net/netfilter/nf_conntrack_count").stdout)
    assert count * 9 // 10 <= found < count * 9 // 10 + 1000


def _crowd(number: int, vip: Backend) -> Flow:
    """A flow of its own client: of ten, one to pod1, two to pod3, and seven to somebody else."""
    source = Backend(f"100.64.{number // 250 % 250}.{number % 250 + 1}", 1024 + number // 62500)
    match number % 10:
        case 0:
            return Flow(source, vip, pod("pod1", V4))
        case 1 | 2:
            return Flow(source, vip, pod("pod3", V4))
        case _:
            return Flow(source, Backend("192.0.2.99", 53), Backend("192.0.2.99", 53))


def _peak(bench: Bench) -> int:
    """The daemon's largest memory so far, kB."""
    assert bench.proxyd is not None
    status = Path(f"/proc/{bench.proxyd.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found
    return int(found[1])
