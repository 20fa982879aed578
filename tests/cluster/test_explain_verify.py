"""`proxyd explain --verify`: what the kernel says to an answer, in both modes, and where it differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxyd.explain.packet import explain_packet
from proxyd.explain.view import Index, Packet, View
from proxyd.kernel.ipt.iptables import IptablesTools
from proxyd.kernel.verifying import IptReader, NftReader, Reader, verify
from proxyd.model import EndpointSlice, Service
from tests import build
from tests.cluster.cases import EXTERNAL, LOAD_BALANCER, NODE_PORT, VIP, service, slices
from tests.cluster.manifests import manifest
from tests.cluster.modes import ALSO_NFT, EVERY_MODE, Mode, flush
from tests.cluster.namespaces import inside
from tests.cluster.rules import Rules
from tests.cluster.test_explain import explain
from tests.program import FLAGS, Proxyd, until, write
from tests.topology import ADDRESSES, NODE, V4, Topology

OTHER = "10.96.9.9"
CLIENT = ADDRESSES["client1"][V4]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "affinity": {"affinity_seconds": 60},
    "local": {"external_local": True, "internal_local": True},
    "ranges": {"source_ranges": ("198.51.100.0/24", "192.0.2.0/25")},
}


@EVERY_MODE
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_is_expected(world: Topology, rules: Rules, kind: str) -> None:
    mode = "nftables" if rules.mode is Mode.NFTABLES else "iptables"
    tos = [
        (VIP[V4], 80),
        (EXTERNAL[V4], 80),
        (LOAD_BALANCER[V4], 80),
        (NODE[V4], NODE_PORT),
        (VIP[V4], 81),
        (OTHER, 80),
    ]
    for pods in (("pod1", "pod3"), ("pod3",), ()):
        objects: tuple[Service | EndpointSlice, ...] = (service(**KINDS[kind]), *slices(*pods))
        rules.serve(*objects)
        store = build.store(*objects)
        here = frozenset({NODE[V4]})
        view = View(mode, build.settings(V4), Index(store.all_services()), store.service, here, localhost=True)
        for address, port in tos:
            told = explain_packet(view, Packet(CLIENT, address, "tcp", port), verifiable=True)
            assert told.written is not None
            found = inside(world.node, lambda told=told: verify(told, told.written, reader(rules.mode)))  # type: ignore[misc]
            assert found.differences == (), (address, port)
            assert bool(found.compared) == (mode == "nftables" or bool(told.service))


def reader(mode: Mode) -> Reader:
    return NftReader(V4) if mode is Mode.NFTABLES else IptReader(IptablesTools(V4, mode.backend), V4)


def verified(world: Topology, to: str, *words: str, source: str = CLIENT) -> tuple[int, dict[str, Any]]:
    done = explain(world, "--from", source, "--to", to, "--verify", "-o", "json", *words)
    assert done.stdout, done.stderr
    packet = json.loads(done.stdout)["packet"]
    assert packet["written"] is None
    return done.returncode, packet["verified"]


@ALSO_NFT
def test_tracked_connections_are_told(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    write(folder, "web.yaml", manifest(pods=("pod1",)))
    with Proxyd(node, folder, log, flags=mode.flags):
        node.ask("client1", VIP[V4], 80, count=5)
        _, found = verified(node, f"{VIP[V4]}:80")
        pod1 = {"address": ADDRESSES["pod1"][V4], "port": 8080, "count": 5, "chosen": True}
        assert found["connections"] == [pod1]
        write(folder, "web.yaml", manifest(pods=("pod3",)))
        until(lambda: {each.by for each in node.ask("client1", VIP[V4], 80)} == {"pod3"}, "the change")
        _, found = verified(node, f"{VIP[V4]}:80")
        by = {each["address"]: (each["count"], each["chosen"]) for each in found["connections"]}
        assert by[ADDRESSES["pod1"][V4]][1] is False
        assert by[ADDRESSES["pod3"][V4]][1] is True
        done = explain(node, "--from", CLIENT, "--to", f"{VIP[V4]}:80", "--verify")
        assert "all as it should be" in done.stdout
        assert "which new ones do not go to from there" in done.stdout
    flush(node)


def damage_nft(world: Topology) -> None:
    name = world.node.run(
        "sh", "-c", "nft list maps ip | sed -n 's/.*map \\(g[0-9]*\\).service-ips.*/\\1/p'"
    ).stdout.strip()
    world.node.run("nft", "delete", "element", "ip", "proxyd", f"{name}/service-ips", f"{{ {VIP[V4]} . tcp . 80 }}")


def damage_iptables(world: Topology) -> None:
    saved = world.node.run("iptables-nft-save", "-t", "nat").stdout.splitlines()
    rule = next(line for line in saved if line.startswith("-A KUBE-SERVICES") and VIP[V4] in line)
    chain = rule.rpartition("-j ")[2]
    first = next(line for line in saved if line.startswith(f"-A {chain} ") and "KUBE-SEP-" in line)
    world.node.run("sh", "-c", f"iptables-nft -t nat -D {first.removeprefix('-A ')}")


@ALSO_NFT
def test_differences_are_told(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    # Of a proxyd that has ended, since one that runs repairs its rules.
    from_files = ("--manifests", str(folder), *mode.flags)
    with Proxyd(node, folder, log, flags=mode.flags):
        pass
    status, found = verified(node, f"{VIP[V4]}:80", *from_files)
    assert (status, found["differences"]) == (0, [])
    write(folder, "web.yaml", manifest(pods=("pod1", "pod4")))
    status, found = verified(node, f"{VIP[V4]}:80", *from_files)
    assert status == 5
    assert any(ADDRESSES["pod4"][V4] in each or "KUBE-SEP" in each for each in found["differences"])
    write(folder, "web.yaml", manifest())
    damage_nft(node) if mode is Mode.NFTABLES else damage_iptables(node)
    status, found = verified(node, f"{VIP[V4]}:80", *from_files)
    assert (status, len(found["differences"])) == (5, 1)
    flush(node)
    assert verified(node, f"{VIP[V4]}:80", *from_files)[0] == 5


def test_only_a_packet_can_be_verified(node: Topology, folder: Path) -> None:
    from_files = ("--manifests", str(folder), *FLAGS)
    wrong = explain(node, "default/web", "--verify", *from_files)
    assert (wrong.returncode, wrong.stderr) == (2, "proxyd: --verify goes with --from and --to\n")
