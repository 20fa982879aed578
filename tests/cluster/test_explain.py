"""`proxyd explain` as a program: who is asked, from what it answers, and its exit status."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from proxyd.model import Family
from tests.cluster.cases import VIP
from tests.cluster.manifests import manifest
from tests.cluster.modes import ALSO_NFT, Mode
from tests.program import FLAGS, PROXYD, Proxyd, until, write
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, V4, Topology

OURS = {*NODE.values(), *POD_GATEWAY.values()}
# Connections to see all of up to three endpoints (chance that one does not answer: 1 in 10^5).
ENOUGH = 30


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
