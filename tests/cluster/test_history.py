"""`proxyd history`: what the running proxyd has done lately and why, for people and programs, in every mode."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.manifests import manifest
from tests.cluster.modes import ALSO_NFT, Mode
from tests.program import PROXYD, Proxyd, until, write
from tests.topology import Topology

pytestmark = ALSO_NFT

EDITS = {Mode.NFTABLES: "nft delete table ip proxyd", Mode.NFT: "iptables-nft -t nat -F KUBE-SERVICES"}


@pytest.fixture
def running(node: Topology, mode: Mode, folder: Path, log: Path) -> Iterator[Proxyd]:
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        yield proxyd


def history(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    command = world.node.command(PROXYD, "history", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def entries(world: Topology, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(history(world, "-o", "json", *words).stdout)["entries"]
    return found


def origins(entry: dict[str, Any]) -> list[str]:
    return [each["origin"] for each in entry["events"]]


def test_start_change_and_repair_are_told(node: Topology, mode: Mode, running: Proxyd, folder: Path) -> None:
    assert origins(entries(node)[0])[0] == "Start"
    write(folder, "other.yaml", manifest("other", ip="10.96.0.77"))
    until(lambda: any("default/other" in each["services"] for each in entries(node)), "the change is told", every=0.2)
    node.node.run(*EDITS[mode].split())
    until(lambda: any(f["undone"] for each in entries(node) for f in each["families"]), "the repair is told", every=0.2)
    found = entries(node)
    assert [each["sequence"] for each in found] == list(range(1, len(found) + 1))
    change = next(each for each in found[1:] if "default/other" in each["services"])
    assert {"origin": "Service", "object": "default/other", "action": "added"} in change["events"]
    v4 = change["families"][0]
    assert v4["family"] == "IPv4"
    assert v4["operations"] > 0
    assert v4["kernelSeconds"] > 0
    repair = next(each for each in found if "ForeignEdit" in origins(each))
    assert next(each["undone"]["edits"] for each in repair["families"] if each["undone"]) >= 1
    done = history(node)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == len(found)
    assert "; Start" in lines[0]
    assert any("Service default/other added" in line and "ms waiting + " in line for line in lines)
    assert any("foreign edit" in line and " undone (" in line for line in lines)
    assert len(history(node, "-n", "1").stdout.splitlines()) == 1


def test_changes_of_one_service_only(node: Topology, running: Proxyd, folder: Path) -> None:
    for name, ip in (("one", "10.96.0.71"), ("two", "10.96.0.72")):
        write(folder, f"{name}.yaml", manifest(name, ip=ip))
        until(lambda name=name: any(f"default/{name}" in e["services"] for e in entries(node)), name, every=0.2)  # type: ignore[misc]
    found = entries(node, "default/two")
    assert any(each["services"] == ["default/two"] for each in found)
    assert not any(each["services"] == ["default/one"] for each in found)


def test_it_can_be_followed(node: Topology, running: Proxyd, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "followed"
    with output.open("w") as stream:
        following = node.start([PROXYD, "history", "-f", "-o", "json"], stdout=stream, stderr=stream)
        try:
            until(lambda: "Start" in output.read_text(), "what was before is shown")
            write(folder, "later.yaml", manifest("later", ip="10.96.0.78"))
            until(lambda: "default/later" in output.read_text(), "what comes is shown")
        finally:
            following.terminate()
            following.wait()
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [each["sequence"] for each in found] == list(range(1, len(found) + 1))


def test_wrong_words_and_nobody_there_are_one_clear_line(node: Topology) -> None:
    done = history(node)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "proxyd: no proxyd runs in this network namespace\n"
    done = history(node, "web")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "proxyd: a Service is named NAMESPACE/NAME, got 'web'\n"
