"""The page about plan shows what plan says."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.program import PROXYD, Proxyd, write
from tests.topology import Topology

PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
MANIFESTS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = re.findall(r"^```\n\$ proxyd plan ([^\n]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_each_example_is_what_is_said(
    node: Topology, folder: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in zip(("manifests", "new"), MANIFESTS, strict=True):
        (tmp_path / name).mkdir(exist_ok=True)
        write(tmp_path / name, "web.yaml", text)
    # A kubelet that uses the nft backend, so that it does not depend on the host.
    node.node.run("iptables-nft", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    monkeypatch.chdir(tmp_path)
    assert len(EXAMPLES) > 2
    with Proxyd(node, folder, log):
        for words, shown in EXAMPLES:
            command = node.node.command(PROXYD, "plan", *shlex.split(words))
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert (_same(done.stdout), done.stderr) == (_same(shown), ""), words


def _same(text: str) -> str:
    """Without the note about counters: tests before may have made them."""
    return re.sub(r"^note: counters \(nfacct\).*\n", "", text, flags=re.MULTILINE)
