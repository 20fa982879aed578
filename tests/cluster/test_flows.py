"""UDP flows that the kernel remembers, with the real daemon and real packets: what moves on, what is refused, what stays.

Every sender keeps its source port, as DNS and SIP servers do; otherwise nothing of this shows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.model import Family
from tests.cluster.cases import EXTERNAL, FAMILIES, FRONTENDS, LOAD_BALANCER, REFUSED, VIP, Target
from tests.cluster.conftest import inside
from tests.fakes.flows import Flow
from tests.netns import add_many_flows, forget_flows, list_flows
from tests.program import FLAGS, Proxyd, until, write
from tests.topology import ADDRESSES, NODE, V4, V6, Topology

NODE_PORT = 30053
METRICS_PORT = 10249
SILENCE = 0.3
# Keeps the connection tracker at work while there are no rules of ours.
KEEP_TRACKING = "table inet keep { chain c { type filter hook prerouting priority 0; ct state invalid counter; }; }"
TCP = {"name": "web", "port": 80, "protocol": "TCP"}


def target(frontend: str, family: Family) -> Target:
    if frontend == "node port":
        return Target(NODE[family], NODE_PORT)
    addresses = {"cluster ip": VIP, "load balancer": LOAD_BALANCER, "external ip": EXTERNAL}
    return Target(addresses[frontend][family], 53)


def every_frontend(family: Family) -> list[tuple[Target, int]]:
    """Each with a source port for it."""
    return [(target(frontend, family), 5353 + number) for number, frontend in enumerate(FRONTENDS)]


def service(**spec: Any) -> dict[str, Any]:
    """A Service with UDP on every kind of frontend, and TCP beside it."""
    defaults = {
        "type": "NodePort",
        "clusterIPs": list(VIP.values()),
        "clusterIP": VIP[V4],
        "externalIPs": list(EXTERNAL.values()),
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP", "nodePort": NODE_PORT}, TCP],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "dns"},
        "spec": {**defaults, **spec},
        "status": {"loadBalancer": {"ingress": [{"ip": address} for address in LOAD_BALANCER.values()]}},
    }


def slices(**pods: dict[str, bool]) -> list[dict[str, Any]]:
    """Slices of both families with these pods and their conditions."""
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"dns-{family}".lower(), "labels": {"kubernetes.io/service-name": "dns"}},
            "addressType": family,
            "ports": [{"name": "dns", "port": 8053, "protocol": "UDP"}, {"name": "web", "port": 8080}],
            "endpoints": [
                {"addresses": [ADDRESSES[pod][family]], "conditions": conditions, "nodeName": "node1"}
                for pod, conditions in pods.items()
            ],
        }
        for family in Family
    ]


class Bench:
    """A daemon that is told in one step what there is, and senders of datagrams."""

    def __init__(self, world: Topology, path: Path) -> None:
        self.world, self.folder, self.log = world, path / "manifests", path / "log"
        self.folder.mkdir()
        self.proxyd: Proxyd | None = None

    def start(self, *flags: str) -> None:
        """Starts the daemon, and waits until it has looked at the flows of what there is."""
        self.proxyd = Proxyd(self.world, self.folder, self.log, flags=(*FLAGS, *flags))
        if any(self.folder.iterdir()):
            until(lambda: all(self.cleanings(family) for family in Family), "flows looked at")

    def stop(self) -> None:
        if self.proxyd is not None:
            self.proxyd.close()
            self.proxyd = None

    def put(self, *objects: dict[str, Any]) -> None:
        """What there is now."""
        write(self.folder, "dns.yaml", "\n---\n".join(map(json.dumps, objects)))

    def send(self, to: Target, port: int, who: str = "client1") -> str:
        """One datagram from this source port; gives who answers, or what happens instead."""
        [answer] = self.world.ask(who, *to, "udp", source_port=port, timeout=SILENCE)
        return answer.by

    def until_answered(self, to: Target, port: int, by: set[str], who: str = "client1") -> None:
        """Sends until the answer is one of these; a flow that is not deleted lives on by that, as in life."""
        until(lambda: self.send(to, port, who) in by, f"{by} answers {to}")

    def flows(self, family: Family) -> set[Flow]:
        return inside(self.world.node, lambda: list_flows(family))

    def metric(self, name: str, family: Family) -> float:
        assert self.proxyd is not None
        _, text = self.proxyd.get("/metrics", METRICS_PORT)
        found = re.search(rf'^{name}{{ip_family="{family}"}} (\S+)$', text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def cleanings(self, family: Family) -> float:
        return self.metric("kubeproxy_conntrack_reconciler_sync_duration_seconds_count", family)

    def put_and_wait(self, family: Family, *objects: dict[str, Any]) -> None:
        """What there is now; waits until the flows of a change have been looked at."""
        before = self.cleanings(family)
        self.put(*objects)
        until(lambda: self.cleanings(family) > before, "flows looked at")


READY: dict[str, bool] = {"ready": True}
TERMINATING = {"ready": False, "serving": True, "terminating": True}
DEAD = {"ready": False, "serving": False}


@pytest.fixture
def bench(world: Topology, tmp_path: Path) -> Iterator[Bench]:
    world.node.run("nft", "flush", "ruleset")
    inside(world.node, forget_flows)
    made = Bench(world, tmp_path)
    yield made
    made.stop()
    world.node.run("nft", "flush", "ruleset")
    inside(world.node, forget_flows)


@FAMILIES
def test_flows_follow_the_endpoint_that_replaces_their_own(bench: Bench, family: Family) -> None:
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert {bench.send(to, port) for to, port in every_frontend(family)} == {"pod1"}
    bench.put(service(), *slices(pod3=READY))
    for to, port in every_frontend(family):
        bench.until_answered(to, port, {"pod3"})
    assert bench.metric("kubeproxy_conntrack_reconciler_deleted_entries_total", family) >= len(FRONTENDS)


@FAMILIES
@pytest.mark.parametrize("how", ["scaled to zero", "not serving"])
def test_flows_to_the_last_endpoint_are_refused_when_that_is_gone(bench: Bench, family: Family, how: str) -> None:
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert {bench.send(to, port) for to, port in every_frontend(family)} == {"pod1"}
    bench.put(service(), *(slices() if how == "scaled to zero" else slices(pod1=DEAD)))
    for to, port in every_frontend(family):
        bench.until_answered(to, port, REFUSED)


@FAMILIES
def test_flows_that_began_before_the_service_are_served(bench: Bench, family: Family) -> None:
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
    left = {each.destination for each in bench.flows(family) if each.answers == _pod("pod1", family)}
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
    assert not any(each.answers == _pod("pod1", family) for each in bench.flows(family))


@FAMILIES
def test_a_port_that_turns_from_udp_to_tcp_ends_its_udp_flows_only(bench: Bench, family: Family) -> None:
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
    assert bench.send(to, 5353) in REFUSED
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


# Holds a connection: says so, and after each line of its input sends a byte and says what became of it.
HOLD = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as held:
    held.settimeout(5)
    print("connected", flush=True)
    for _ in sys.stdin:
        try:
            held.sendall(b"x")
            print("echoed" if held.recv(1) == b"x" else "closed", flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
"""
ECHO = """
import socket, threading
def echo(each):
    while data := each.recv(4096):
        each.sendall(data)
with socket.create_server(("::", 8090), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""


class Held:
    """A connection from client1 to an echo server in pod1 that stays open, as a program of its own on each side."""

    def __init__(self, world: Topology) -> None:
        self._world = world
        self._programs: list[subprocess.Popen[str]] = []
        assert self._start("pod1", ECHO).readline() == "listening\n"

    def _start(self, host: str, script: str, *arguments: str) -> TextIO:
        words = self._world.hosts[host].command(sys.executable, "-c", script, *arguments)
        program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._programs.append(program)
        assert program.stdout is not None
        return program.stdout

    def connect(self, to: Target) -> None:
        """Connects, as soon as the Service is served."""

        def connected() -> bool:
            self._said = self._start("client1", HOLD, to.address, str(to.port))
            return self._said.readline() == "connected\n"

        until(connected, f"{to} is served")

    def send(self) -> str:
        """Sends a byte; gives what became of it."""
        stdin = self._programs[-1].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()
        return self._said.readline().strip()

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()


@pytest.fixture
def held(world: Topology) -> Iterator[Held]:
    held = Held(world)
    yield held
    held.close()


def web(**pods: dict[str, bool]) -> list[dict[str, Any]]:
    """A TCP Service in front of the echo server, and its slices."""
    built = slices(**pods)
    for each in built:
        each["ports"] = [{"name": "web", "port": 8090}]
    return [service(ports=[TCP], type="ClusterIP"), *built]


@FAMILIES
def test_a_connection_to_an_endpoint_in_no_slice_is_reset_if_asked_for(
    bench: Bench, held: Held, family: Family
) -> None:
    bench.put(*web(pod1=READY))
    bench.start("--feature-gates", "ResetGoneTCP=true")
    held.connect(Target(VIP[family], 80))
    assert held.send() == "echoed"
    bench.put_and_wait(family, *web(pod1=DEAD | {"terminating": True}, pod3=READY))
    assert held.send() == "echoed", "terminating endpoints keep their connections"
    bench.put_and_wait(family, *web(pod3=READY))
    assert held.send() == "ConnectionResetError"


@FAMILIES
def test_a_connection_to_an_endpoint_in_no_slice_is_left_alone_otherwise(
    bench: Bench, held: Held, family: Family
) -> None:
    bench.start()
    bench.put(*web(pod1=READY))
    held.connect(Target(VIP[family], 80))
    bench.put(*web(pod3=READY))
    until(lambda: {each.by for each in bench.world.ask("client1", VIP[family], 80)} == {"refused"}, "the change is in")
    assert held.send() == "echoed"


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


def _pod(name: str, family: Family) -> Backend:
    return Backend(ADDRESSES[name][family], 8053)


def _crowd(number: int, vip: Backend) -> Flow:
    """A flow of its own client: of ten, one to pod1, two to pod3, and seven to somebody else."""
    source = Backend(f"100.64.{number // 250 % 250}.{number % 250 + 1}", 1024 + number // 62500)
    match number % 10:
        case 0:
            return Flow(source, vip, _pod("pod1", V4))
        case 1 | 2:
            return Flow(source, vip, _pod("pod3", V4))
        case _:
            return Flow(source, Backend("192.0.2.99", 53), Backend("192.0.2.99", 53))


def _peak(bench: Bench) -> int:
    """The daemon's largest memory so far, kB."""
    assert bench.proxyd is not None
    status = Path(f"/proc/{bench.proxyd.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+)", status)
    assert found
    return int(found[1])
