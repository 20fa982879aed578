"""`proxyd status`: the report of the proxyd that runs in this network namespace, for people and for programs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd import __version__
from tests.cluster.manifests import manifest
from tests.program import PROXYD, Proxyd, until, write
from tests.topology import Topology

FIREWALL = """
table inet theirs {
  chain forwarding { type filter hook forward priority 10; policy drop; ct status dnat accept; }
}
"""


def status(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    command = world.node.command(PROXYD, "status", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def running(node: Topology, folder: Path, log: Path) -> Iterator[Proxyd]:
    with Proxyd(node, folder, log) as proxyd:
        yield proxyd


def test_it_says_what_is_served_and_what_was_found(node: Topology, running: Proxyd) -> None:
    done = status(node)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"proxyd {__version__}, nftables mode, node node1: ready\n")
    assert "1 Services, 2 endpoints in force" in done.stdout
    assert "node ports on 192.0.2." in done.stdout
    report = json.loads(status(node, "-o", "json").stdout)
    assert report["ready"] is True
    assert [each["family"] for each in report["families"]] == ["IPv4", "IPv6"]
    assert {each["name"] for each in report["identity"]["detected"]} >= {"node name", "nf_conntrack_tcp_be_liberal"}
    assert report["limits"][0]["name"] == "tracked connections"


def test_findings_and_firewalls_are_in_it(node: Topology, running: Proxyd, folder: Path) -> None:
    node.node.run("nft", "-f", "-", stdin=FIREWALL)
    write(folder, "twin.yaml", manifest("twin"))

    def told() -> bool:
        report = json.loads(status(node, "-o", "json").stdout)
        return bool(report["servicesInConflict"] == 1 and report["foreignTables"] == ["inet theirs"])

    until(told, "the conflict is reported")
    text = status(node).stdout
    assert "- Service default/web: " in text
    assert "! chain forwarding of table inet theirs drops" in text
    node.node.run("nft", "delete", "table", "inet", "theirs")


def test_what_may_interfere_is_said_at_start_too(node: Topology, folder: Path, log: Path) -> None:
    node.node.run("nft", "-f", "-", stdin=FIREWALL)
    with Proxyd(node, folder, log) as proxyd:
        until(lambda: any("inet theirs" in each["what"] for each in proxyd.events("found on this node")), "it is said")


def test_without_a_proxyd_there_is_one_clear_line(node: Topology) -> None:
    done = status(node)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "proxyd: no proxyd runs in this network namespace\n"


def test_other_users_get_no_answer(node: Topology, running: Proxyd) -> None:
    command = node.node.command("setpriv", "--reuid=65534", "--clear-groups", PROXYD, "status")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "does not answer" in done.stderr
    assert "are you root?" in done.stderr
    assert status(node).returncode == 0
