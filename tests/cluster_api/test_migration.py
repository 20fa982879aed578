"""From kube-proxy to proxyd and back, in every mode of kube-proxy, under load: not one connection fails."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.namespaces import inside
from tests.controlplane import objects
from tests.controlplane.kube_proxy import MODES, KubeProxy, program, way_to
from tests.controlplane.plane import Plane
from tests.load import MORE
from tests.netns import forget_flows
from tests.program import PROXYD, Proxyd, until
from tests.topology import ADDRESSES, NODE, V4, V6, Topology

LOAD = Path(__file__).parents[1] / "load.py"
CLUSTER_IP = {V4: "10.96.0.10", V6: "fd00:10:96::10"}
LOCAL_IP = {V4: "10.96.0.11", V6: "fd00:10:96::11"}
IDLE_IP = {V4: "10.96.0.12", V6: "fd00:10:96::12"}
BALANCER = {V4: "203.0.113.10", V6: "2001:db8:113::10"}
NODE_PORT, LOCAL_NODE_PORT, HELD_PORT = 30080, 30081, 9000
# pod2 is on the node and no endpoint, pod1 is on the node and one, so that its connections come back to it at times.
PLACES = ("client1", "node", "pod2", "pod1")
PORTS = [
    {"name": "http", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT},
    {"name": "held", "port": HELD_PORT, "nodePort": NODE_PORT + 2},
    {"name": "dns", "port": 53, "targetPort": 8053, "protocol": "UDP", "nodePort": NODE_PORT + 3},
]
SLICE_PORTS = [
    {"name": "http", "port": 8080, "protocol": "TCP"},
    {"name": "held", "port": HELD_PORT, "protocol": "TCP"},
    {"name": "dns", "port": 8053, "protocol": "UDP"},
]

# What others have beside kube-proxy: a kubelet, a plugin that uses a chain of kube-proxy's, an administrator.
NEIGHBOURS = """*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:CNI-HOSTPORT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT
-A CNI-HOSTPORT -p tcp -m tcp --dport 4711 -m comment --comment "not -j KUBE-SERVICES" -j ACCEPT
-A POSTROUTING -o nowhere -j MASQUERADE
COMMIT
*filter
:ufw-user - [0:0]
-A FORWARD -m comment --comment "-j KUBE-FORWARD" -j ufw-user
-A ufw-user -p tcp -m tcp --dport 25 -j DROP
COMMIT
"""
SOMEBODYS = "table ip somebodys { chain KUBE-SERVICES { ip daddr 10.98.0.0/16 drop; }; }"


def services() -> Iterator[objects.Manifest]:
    """A Service with everything, one of policy Local, and one without endpoints."""
    common = {"ipFamilyPolicy": "RequireDualStack", "type": "LoadBalancer", "ports": PORTS}
    local = [{**PORTS[0], "nodePort": LOCAL_NODE_PORT}]
    for name, ips, more in (
        ("web", CLUSTER_IP, {}),
        ("local", LOCAL_IP, {"externalTrafficPolicy": "Local", "ports": local}),
        ("idle", IDLE_IP, {"type": "ClusterIP", "ports": [{"name": "http", "port": 80}]}),
    ):
        yield objects.service(name, clusterIP=ips[V4], clusterIPs=list(ips.values()), **{**common, **more})


def slices() -> Iterator[objects.Manifest]:
    for name in ("web", "local"):
        for family in (V4, V6):
            made = objects.endpoint_slice(name, [ADDRESSES["pod1"][family], ADDRESSES["pod3"][family]])
            made["metadata"]["name"] = f"{name}-{family.lower()}"
            made["endpoints"][1]["nodeName"] = "node2"
            made["ports"] = SLICE_PORTS
            yield made


def targets(place: str) -> list[tuple[str, str, int]]:
    """What is connected to, and how, from one place."""
    return [
        target
        for family in (V4, V6)
        for target in (
            ("tcp", CLUSTER_IP[family], 80),
            ("tcp", NODE[family], NODE_PORT),
            ("tcp", NODE[family], LOCAL_NODE_PORT),
            ("tcp", BALANCER[family], 80),
            ("udp", CLUSTER_IP[family], 53),
            ("held", CLUSTER_IP[family], HELD_PORT),
            ("held", NODE[family], NODE_PORT + 2),
        )
    ]


class Load:
    """Connections from everywhere to everything, all the time."""

    def __init__(self, world: Topology) -> None:
        self._world = world
        self._programs: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Load:
        for place in PLACES:
            self._programs[place] = self._start(place, "ask", json.dumps(targets(place)))
        return self

    def _start(self, host: str, *words: str) -> subprocess.Popen[str]:
        command = self._world.hosts[host].command(sys.executable, "-I", "-S", str(LOAD), *words)
        made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert made.stdout is not None
        assert made.stdout.readline() == "ready\n"
        return made

    def __exit__(self, *_: object) -> None:
        for process in self._programs.values():
            process.kill()
            process.communicate()

    def more(self) -> None:
        """Waits until everything has been connected to some more."""
        for process in self._programs.values():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("more\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"

    def end(self) -> None:
        """Ends it, and fails if a single connection did not succeed."""
        for place, process in self._programs.items():
            text, _ = process.communicate("", 60)
            counts: dict[str, dict[str, int]] = json.loads(text)
            assert len(counts) == len(targets(place))
            for target, outcomes in counts.items():
                assert set(outcomes) <= {"pod1", "pod3", "echoed"}, f"{place} to {target}: {outcomes}"
                assert sum(outcomes.values()) >= MORE, f"{place} to {target}: {outcomes}"


@pytest.fixture(scope="module")
def world(plane: Plane) -> Iterator[Topology]:
    """A cluster, its objects at the API server, and servers for held connections."""
    try:
        program()
    except LookupError as missing:
        pytest.skip(str(missing))
    api = plane.admin
    with Topology() as topology, contextlib.ExitStack() as stack:
        for pod in ("pod1", "pod3"):
            words = topology.hosts[pod].command(sys.executable, "-I", "-S", str(LOAD), "serve", str(HELD_PORT))
            server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(server.communicate)
            stack.callback(server.kill)
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        made = [*services(), *slices()]
        stack.callback(api.delete_all, made)
        for each in made:
            api.create(each)
        ingress = {"loadBalancer": {"ingress": [{"ip": ip} for ip in BALANCER.values()]}}
        api.patch("/api/v1/namespaces/default/services/web/status", {"status": ingress})
        addresses = [{"type": "InternalIP", "address": ip} for ip in NODE.values()]
        api.patch("/api/v1/nodes/node1/status", {"status": {"addresses": addresses}})
        stack.callback(api.patch, "/api/v1/nodes/node1/status", {"status": {"addresses": []}})
        yield topology


@pytest.fixture
def config(plane: Plane, world: Topology, tmp_path: Path) -> Iterator[Path]:
    """The kubeconfig for programs on the node, which has no rules before and after."""
    clear(world)
    with way_to(plane, world, tmp_path) as file:
        yield file
    clear(world)


def clear(world: Topology) -> None:
    world.node.run("nft", "flush", "ruleset")
    for tool in ("iptables-legacy", "ip6tables-legacy"):
        for table in ("nat", "filter", "mangle"):
            world.node.run(tool, "-t", table, "-F")
            world.node.run(tool, "-t", table, "-X")
    inside(world.node, forget_flows)


def rules(world: Topology) -> list[str]:
    """All rules, chains and tables of the node in the words of its own tools, but what is built in or changes by itself.

    And but for KUBE-FIREWALL, which kube-proxy shares with the kubelet and never removes itself.
    """
    found = [f"{line}" for line in world.node.run("nft", "list", "tables").stdout.splitlines() if "prox" in line]
    for tool in ("iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"):
        table = ""
        for line in world.node.run(f"{tool}-save").stdout.splitlines():
            table = line if line.startswith("*") else table
            if (line.startswith("-A") or " - [" in line) and "KUBE-FIREWALL" not in line:
                found.append(f"{tool} {table} {line.split(' [')[0]}")
    return found


def rules_of_kube_proxy(world: Topology) -> list[str]:
    """Whatever has a name of kube-proxy's. For tests that add no rules of others."""
    return [line for line in rules(world) if " KUBE-" in line or ":KUBE-" in line or line.endswith(" kube-proxy")]


def written_by_kube_proxy(world: Topology, mode: str) -> bool:
    """Whether its rules are complete, in both families."""
    if mode == "nftables":
        texts = [world.node.run("nft", "list", "table", f, "kube-proxy", check=False).stdout for f in ("ip", "ip6")]
    else:
        texts = [world.node.run(f"{tool}-{mode.split('-')[1]}-save").stdout for tool in ("iptables", "ip6tables")]
    return all(BALANCER[family] in text for family, text in zip((V4, V6), texts, strict=True))


def sources(world: Topology) -> dict[tuple[str, str, int], set[tuple[str, str]]]:
    """Who answers connections from everywhere to everything, and which source address they see."""
    return {
        (place, ip, port): {tuple(answer) for answer in world.ask(place, ip, port, count=30)}
        for place in PLACES
        for kind, ip, port in targets(place)
        if kind == "tcp"
    }


def start_kube_proxy(world: Topology, folder: Path, config: Path, mode: str) -> KubeProxy:
    made = KubeProxy(world, folder, config, mode)
    until(lambda: written_by_kube_proxy(world, mode), f"rules of kube-proxy:\n{made.output()}")
    return made


def cleanup(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    return world.node.run(PROXYD, "cleanup", *words, check=False)


@pytest.mark.parametrize("mode", MODES)
def test_no_connection_fails_on_the_way_to_proxyd_and_back(
    world: Topology, config: Path, tmp_path: Path, mode: str
) -> None:
    kubeconfig = ("--kubeconfig", str(config))
    with start_kube_proxy(world, tmp_path, config, mode) as kube_proxy, Load(world) as load:
        load.more()
        kube_proxy.stop()
        seen = sources(world)
        with Proxyd(world, None, tmp_path / "proxyd.log", *kubeconfig) as proxyd:
            until(lambda: not rules_of_kube_proxy(world), "rules gone")
            until(lambda: len(proxyd.events("rules of kube-proxy removed")) == 2, "one place of each family is told")
            load.more()
            assert sources(world) == seen, "with proxyd's rules"
            assert proxyd.stop() == 0
        load.more()
        with start_kube_proxy(world, tmp_path, config, mode):
            assert sources(world) == seen, "with both"
            assert cleanup(world, "--own").stderr == ""
            assert "proxyd" not in world.node.run("nft", "list", "tables").stdout
            load.more()
            load.end()


@pytest.fixture
def neighbours(world: Topology, config: Path) -> list[str]:
    """Rules of others in every place; gives all rules as they are then."""
    for tool in ("iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"):
        world.node.run(f"{tool}-restore", "--noflush", stdin=NEIGHBOURS)
    world.node.run("nft", SOMEBODYS)
    return rules(world)


@pytest.mark.parametrize("mode", MODES)
def test_others_rules_stay_as_they_are_and_kube_proxy_works_as_before_after_a_cleanup(
    world: Topology, config: Path, neighbours: list[str], tmp_path: Path, mode: str
) -> None:
    somebodys = world.node.run("nft", "list", "table", "ip", "somebodys").stdout
    with start_kube_proxy(world, tmp_path, config, mode):
        first = rules(world)
    assert len(first) > len(neighbours)
    with Proxyd(world, None, tmp_path / "proxyd.log", "--kubeconfig", str(config)):
        until(
            lambda: [line for line in rules(world) if not line.startswith("table")] == neighbours, "only others' rules"
        )
    with start_kube_proxy(world, tmp_path, config, mode):
        pass
    done = cleanup(world)
    assert (done.returncode, done.stderr) == (0, "")
    assert rules(world) == neighbours
    assert world.node.run("nft", "list", "table", "ip", "somebodys").stdout == somebodys
    with start_kube_proxy(world, tmp_path, config, mode), Load(world) as load:
        assert sorted(rules(world)) == sorted(first)
        load.more()
        load.end()


def test_a_kube_proxy_that_runs_on_is_told_loudly_and_costs_no_connection(
    world: Topology, config: Path, tmp_path: Path
) -> None:
    kubeconfig = ("--kubeconfig", str(config))
    with start_kube_proxy(world, tmp_path, config, "iptables-nft"), Load(world) as load:
        with Proxyd(world, None, tmp_path / "proxyd.log", *kubeconfig) as proxyd:
            proxyd.wait_event("rules of kube-proxy removed")
            until(lambda: rules_of_kube_proxy(world), "kube-proxy puts its rules back")
            back = "rules of kube-proxy are back, removing them again: is it still running? Stop it on this node"
            assert proxyd.wait_event(back)["level"] == "warning"
            load.more()
        load.end()
