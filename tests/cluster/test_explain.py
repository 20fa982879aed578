"""`proxyd explain`: what it says of a connection is what becomes of it, with real packets, in both modes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from proxyd.explain.answer import Explanation, Verdict
from proxyd.explain.packet import explain_packet
from proxyd.explain.view import Index, Packet, View
from proxyd.kernel.addresses import own_addresses
from proxyd.model import Endpoint, EndpointSlice, Family, Service, SlicePort
from tests import build
from tests.cluster.cases import EXTERNAL, LOAD_BALANCER, NODE_PORT, PATIENCE, PLACES, REFUSED, SILENCE, VIP
from tests.cluster.manifests import manifest
from tests.cluster.modes import ALSO_NFT, Mode
from tests.cluster.namespaces import inside
from tests.cluster.rules import Rules
from tests.program import FLAGS, PROXYD, Proxyd, until, write
from tests.topology import ADDRESSES, NODE, OTHER, POD_GATEWAY, PODS, V4, Topology

OURS = {*NODE.values(), *POD_GATEWAY.values()}
# Connections to see all of up to three endpoints (chance that one does not answer: 1 in 10^5).
ENOUGH = 30


# -- random Services, real packets -------------------------------------------------------------------------------------


def service(random: Random, protocol: str) -> Service:
    return build.service(
        cluster_ips=(VIP[V4],),
        external_ips=(EXTERNAL[V4],),
        ingress_ips=(LOAD_BALANCER[V4],),
        ports=(build.port(node_port=NODE_PORT, protocol=protocol),),
        source_ranges=random.choice([(), (), ("198.51.100.7/32",), ("10.244.0.0/16", "192.0.2.0/24")]),
        internal_local=random.random() < 0.3,
        external_local=random.random() < 0.5,
    )


def slice_of(random: Random, protocol: str) -> EndpointSlice:
    endpoints = [
        Endpoint(
            ADDRESSES[pod][V4],
            ready=random.random() < 0.6,
            serving=random.random() < 0.7,
            terminating=random.random() < 0.5,
            node=build.NODE if PODS[pod].router == "node" else "node2",
            zone_hints=random.choice([(), ("za",), ("zb",)]),
        )
        for pod in random.sample(sorted(PODS), random.choice([0, 1, 2, 3]))
    ]
    return build.endpoint_slice("web", *endpoints, ports=(SlicePort("http", protocol, 8080),))


def question(random: Random, protocol: str) -> tuple[str, Packet]:
    """Who asks, and what."""
    place = random.choice(["pod1", *PLACES.values()])
    addresses = [VIP[V4], EXTERNAL[V4], LOAD_BALANCER[V4], NODE[V4], NODE[V4]]
    address = random.choice(addresses)
    port = random.choice([NODE_PORT, NODE_PORT, 81] if address == NODE[V4] else [80, 80, 80, 81])
    return place, Packet(ADDRESSES[place][V4], address, protocol, port)


@ALSO_NFT
@pytest.mark.parametrize("seed", range(12))
def test_an_answer_is_never_wrong(world: Topology, rules: Rules, seed: int) -> None:
    random = Random(seed)
    protocol = random.choice(["tcp", "tcp", "udp"])
    objects = service(random, protocol), slice_of(random, protocol)
    on: dict[str, Any] = {"masquerade_all": random.random() < 0.2}
    if random.random() < 0.2:
        on["local"] = None
    rules.serve(*objects, **on)
    store = build.store(*objects)
    mode = "nftables" if rules.mode is Mode.NFTABLES else "iptables"
    here = inside(world.node, lambda: own_addresses(V4))
    view = View(mode, build.settings(V4, **on), Index(store.all_services()), store.service, here, localhost=True)
    for place, packet in {question(random, protocol) for _ in range(8)}:
        answer = explain_packet(view, packet)
        check(world, place, answer)


def check(world: Topology, place: str, answer: Explanation) -> None:
    """Connects as the question says, and compares what comes of it."""
    asked = answer.asked
    patience = PATIENCE if answer.endpoints or answer.verdict is Verdict.REJECTED else SILENCE
    count = ENOUGH if answer.endpoints else 1
    answers = world.ask(place, asked.destination, asked.port, asked.protocol, count, timeout=patience)
    by = {each.by for each in answers}
    match answer.verdict:
        case Verdict.DELIVERED:
            names = {leaf.addresses[V4]: name for name, leaf in PODS.items()}
            assert by == {names[each.address] for each in answer.endpoints}, answer
            replaced = {names[each.address]: each.source_replaced for each in answer.endpoints}
            # What the node sends has an address of the node with and without: which one is the kernel's choice.
            own = OURS if place == "node" else {asked.source}
            for each in answers:
                assert each.source in ({*OURS, OTHER[V4]} if replaced[each.by] else own), (each, answer)
        case Verdict.REJECTED:
            assert by <= REFUSED, answer
        case Verdict.DROPPED:
            assert by == {"timeout"}, answer
        case _:
            assert not by & {*PODS}, answer


# -- the program -------------------------------------------------------------------------------------------------------


def explain(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    command = world.node.command(PROXYD, "explain", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def told(world: Topology, *words: str) -> Any:
    return json.loads(explain(world, *words, "-o", "json").stdout)


@ALSO_NFT
def test_the_running_proxyd_is_asked(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    client, pod = ADDRESSES["client1"][V4], ADDRESSES["pod2"][V4]
    with Proxyd(node, folder, log, flags=mode.flags):
        done = explain(node, "--from", client, "--to", f"{VIP[V4]}:80/tcp")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"{client} -> {VIP[V4]}:80/tcp: DELIVERED" in done.stdout
        assert "default/web" in done.stdout
        answer = told(node, "--from", pod, "--to", f"{VIP[V4]}:80")
        assert [each["chance"] for each in answer["packet"]["endpoints"]] == ["1/2", "1/2"]
        assert answer["packet"]["mode"] == mode.flags[1]
        assert explain(node, "--from", client, "--to", "10.96.99.99:80").returncode == 3
        assert explain(node, "--from", client, "--to", f"{VIP[V4]}:81").returncode == 1
        # It is what is served now, not what was at the start.
        write(folder, "web.yaml", manifest(pods=()))
        until(lambda: explain(node, "default/web").returncode == 1, "the change is seen")
        assert "REJECTED" in explain(node, "default/web").stdout
        assert explain(node, "default/nothing").returncode == 3
        wrong = explain(node, "--from", "nobody", "--to", f"{VIP[V4]}:80")
        assert (wrong.returncode, wrong.stderr) == (2, "proxyd: --from: must be an IP address, got 'nobody'\n")
    done = explain(node, "default/web")
    assert (done.returncode, done.stderr) == (4, "proxyd: no proxyd runs in this network namespace\n")


def test_the_interface_is_asked_for_where_it_tells_pods(node: Topology, folder: Path, log: Path) -> None:
    by_interface = ("--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "pod")
    pod = ADDRESSES["pod2"][V4]
    to = f"{VIP[V4]}:80"
    with Proxyd(node, folder, log, flags=(*FLAGS[:4], *by_interface)):
        done = explain(node, "--from", pod, "--to", to)
        assert done.returncode == 2
        assert "say with --interface" in done.stderr
        answer = told(node, "--from", pod, "--to", to, "--interface", "pod2")
        assert {each["sourceWhy"] for each in answer["packet"]["endpoints"]} == {"local-pod"}
        assert {each.source for each in node.ask("pod2", VIP[V4], 80, count=5)} == {pod}


def test_manifests_are_answered_from_without_a_running_proxyd(node: Topology, folder: Path) -> None:
    words = ("--manifests", str(folder), *FLAGS)
    answer = told(node, "--from", ADDRESSES["pod2"][V4], "--to", f"{VIP[V4]}:80", *words)
    assert answer["verdict"] == "delivered"
    assert len(answer["packet"]["endpoints"]) == 2
    assert node.node.run("nft", "list", "ruleset").stdout == ""
    missing = explain(node, "default/web", "--manifests", str(folder / "nowhere"))
    assert (missing.returncode, missing.stdout) == (2, "")


def test_families_of_the_node(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log):
        v6 = told(node, "--from", ADDRESSES["client1"][Family.IPV6], "--to", "[fd00:10:96::10]:80")
        assert (v6["verdict"], v6["packet"]["family"]) == ("untouched", "IPv6")
