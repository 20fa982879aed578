"""`proxyd plan`: what it says is what happens then, and it writes nothing, in both modes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.manifests import VIP, manifest
from tests.cluster.modes import ALSO_NFT, EVERY_MODE, Mode
from tests.program import FLAGS, PROXYD, Proxyd, until, write
from tests.topology import ADDRESSES, V4, Topology

NEW = "10.96.0.20"
POD1, POD3, POD4 = (f"{ADDRESSES[pod][V4]}" for pod in ("pod1", "pod3", "pod4"))
SETTINGS = "conntrack_(max|tcp)|route_localnet|ip_forward"
SWITCHED = {Mode.NFTABLES: "iptables", Mode.NFT: "nftables", Mode.LEGACY: "nftables"}


def traces(world: Topology) -> dict[str, str]:
    """All that a plan could leave behind."""
    run = world.node.run
    found = {
        "rules": "\n".join(
            line
            for line in run("nft", "-s", "list", "ruleset").stdout.splitlines()
            # What packets put there, by their clients or by themselves.
            if "expires" not in line
        ),
        "sockets": run("ss", "-Hlntux").stdout,
        "settings": run("sh", "-c", f"sysctl -a 2>/dev/null | grep -E '{SETTINGS}'").stdout,
    }
    for tool in ("iptables-legacy-save", "ip6tables-legacy-save"):
        lines = run(tool).stdout.splitlines()
        found[tool] = "\n".join(line.partition("[")[0] for line in lines if not line.startswith("#"))
    return found


def asked(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    command = world.node.command(PROXYD, "plan", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def plan(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    """Plans, and sees to it that nothing is another thing after it."""
    before = traces(world)
    done = asked(world, *words)
    assert traces(world) == before
    return done


def planned(world: Topology, *words: str, status: int = 5) -> dict[str, Any]:
    done = plan(world, *words, "-o", "json")
    assert (done.returncode, done.stderr) == (status, ""), done.stdout
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def changes(told: dict[str, Any], family: str = "IPv4") -> dict[str, str]:
    """What becomes of each Service that is not as it was."""
    (found,) = [each for each in told["families"] if each["family"] == family]
    return {each["service"]: each["what"] for each in found["difference"]["services"]}


def other(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / "other"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        write(folder, f"{name}.yaml", text)
    return folder


@EVERY_MODE
def test_manifests_that_would_be_applied(node: Topology, mode: Mode, folder: Path, log: Path, tmp_path: Path) -> None:
    new = other(tmp_path, web=manifest(pods=("pod1", "pod4")), new=manifest("new", NEW, pods=()))
    with Proxyd(node, folder, log, flags=mode.flags):
        assert planned(node, status=0)["families"][0]["operations"] == 0
        told = planned(node, "--apply", str(new))
        assert told["how"] == "change"
        assert changes(told) == {"default/new": "added", "default/web": "changed"}
        assert changes(told, "IPv6") == {}
        done = plan(node, "--apply", str(new), "--rules")
        assert f"- {POD3}:8080\n" in done.stdout
        assert f"+ {POD4}:8080\n" in done.stdout
        # Then it really happens, and there is nothing more to be done.
        for each in ("web", "new"):
            write(folder, f"{each}.yaml", (new / f"{each}.yaml").read_text())
        until(lambda: asked(node, "--manifests", str(folder)).returncode == 0, "it is served")
        assert planned(node, "--apply", str(new), status=0)["families"][0]["difference"]["unchanged"] == 2
        # As all there is, one of them alone takes the other away.
        (new / "new.yaml").unlink()
        assert changes(planned(node, "--manifests", str(new))) == {"default/new": "removed"}


@ALSO_NFT
def test_another_mode(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log, flags=mode.flags):
        told = planned(node, "--proxy-mode", SWITCHED[mode])
        assert (told["how"], told["mode"]) == ("start", SWITCHED[mode])
        assert "mode" in told["configuration"]
        assert changes(told) == {}
        assert told["families"][0]["operations"] > 10
        whose = [each["whose"] for each in told["removals"]]
        assert whose
        assert set(whose) == {"proxyd's other mode"}
    # What was written serves on, and the same is told of it when nobody runs.
    told = planned(node, "--manifests", str(folder), "--proxy-mode", SWITCHED[mode], *mode.flags[2:])
    assert changes(told) == {}
    assert told["before"].startswith("the rules of proxyd's")


@ALSO_NFT
def test_another_configuration(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log, flags=mode.flags):
        told = planned(node, "--masquerade-all")
        assert told["how"] == "start"
        assert any(each.endswith("masqueradeAll") for each in told["configuration"])
        assert told["families"][0]["settings"] == ["masquerade_all: False -> True"]
        assert changes(told) == {}
    wrong = plan(node, "--manifests", str(folder), "--cluster-cidr", "nonsense")
    assert (wrong.returncode, wrong.stdout) == (2, "")


@ALSO_NFT
def test_the_text_of_a_start_is_what_a_start_writes(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    words = ("--manifests", str(folder), *mode.flags)
    told = planned(node, *words, "--rules")
    texts = [each["text"] for family in told["families"] for each in family["writes"]]
    if mode is Mode.NFTABLES:
        for each in texts:
            node.node.run("nft", "-f", "-", stdin=each)
    else:
        for family, tool in zip(told["families"], ("iptables-nft", "ip6tables-nft"), strict=True):
            for each in family["writes"]:
                node.node.run(f"{tool}-restore", "--noflush", stdin=each["text"])
    by_hand = rules(node)
    node.node.run("nft", "flush", "ruleset")
    if mode is not Mode.NFTABLES:
        node.node.run("iptables-nft", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    with Proxyd(node, folder, log, flags=mode.flags):
        pass
    assert rules(node) == by_hand
    assert VIP in by_hand
    # That everything is written anew is no change.
    assert changes(planned(node, *words, status=0)) == {}


def rules(world: Topology) -> str:
    """Without what is counted, by rules too that need counters which a plan does not make."""
    listed = world.node.run("nft", "-s", "list", "ruleset").stdout
    return "\n".join(sorted(line for line in listed.splitlines() if "nfacct" not in line))


WEB = f'-d {VIP}/32 -p tcp -m comment --comment "default/web:http cluster IP" -m tcp --dport 80'
NAMED = '-m comment --comment "default/web:http"'
KUBE_PROXY = f"""
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]
:KUBE-SEP-AAAAAAAAAAAAAAAA - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES {WEB} -j KUBE-SVC-AAAAAAAAAAAAAAAA
-A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment "default/web:http -> {POD1}:8080" -j KUBE-SEP-AAAAAAAAAAAAAAAA
-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp {NAMED} -m tcp -j DNAT --to-destination {POD1}:8080
COMMIT
"""


@pytest.mark.modes(Mode.NFTABLES, Mode.NFT, Mode.LEGACY)
def test_taking_over_from_kube_proxy(node: Topology, mode: Mode, folder: Path) -> None:
    tool = "iptables-legacy" if mode is Mode.LEGACY else "iptables-nft"
    node.node.run(f"{tool}-restore", "--noflush", stdin=KUBE_PROXY)
    told = planned(node, "--manifests", str(folder), *FLAGS)
    assert told["before"] == f"the rules of kube-proxy's iptables mode ({tool})"
    assert changes(told) == {"default/web": "changed"}
    (change,) = told["families"][0]["difference"]["services"][0]["frontends"]
    assert change["before"]["endpoints"] == [[POD1, 8080]]
    assert change["after"]["endpoints"] == [[POD1, 8080], [POD3, 8080]]
    (gone,) = told["removals"]
    assert (gone["whose"], gone["chains"], gone["jumps"]) == ("kube-proxy", 6, 2)
    write(folder, "web.yaml", manifest(pods=("pod1",)))
    assert changes(planned(node, "--manifests", str(folder), *FLAGS)) == {}


def test_nobody_can_answer(node: Topology) -> None:
    done = plan(node)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == "proxyd: no proxyd runs in this network namespace: say --manifests DIR or --kubeconfig FILE\n"
