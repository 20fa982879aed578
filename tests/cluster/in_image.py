"""proxyd in its image, with the rights of its DaemonSet: for `make image-test`, as the name keeps pytest from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.manifests import VIP, answers, manifest
from tests.program import FLAGS, PROXYD, Proxyd, write
from tests.topology import Topology

MODES = {"nftables": "nftables", "iptables-nft": "iptables", "iptables-legacy": "iptables"}


def ask(node: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(node.node.command(PROXYD, *words), capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("mode", MODES)
def test_services_are_served_changed_and_cleaned_up(
    node: Topology, folder: Path, log: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXYD_IPTABLES_BACKEND", mode.rpartition("-")[2])
    with Proxyd(node, folder, log, flags=("--proxy-mode", MODES[mode], *FLAGS[2:])) as proxyd:
        assert answers(node) == {"pod1", "pod3"}
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")
        # The host's own tools, of whatever version, can read what ours have written.
        for command in (("nft", "list", "ruleset"), ("nft", "-j", "list", "tables"), ("iptables-nft-save",)):
            node.node.run(*command)
        report = ask(node, "status")
        assert (report.returncode, report.stderr) == (0, "")
        assert proxyd.get("/", 10253)[0] == 200, "the page's files are in the image"
        assert ask(node, "cleanup").returncode == 1
        assert proxyd.stop() == 0
    assert answers(node) == {"pod4"}
    # Without --own: in iptables mode the rules could be kube-proxy's.
    assert ask(node, "cleanup").returncode == 0
    assert answers(node, count=1) == {"unreachable"}
