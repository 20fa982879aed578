"""What explain can be answered from beside the running proxyd: a file that kubectl wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.manifests import objects

FLAGS = ("--hostname-override", "node1", "--cluster-cidr", "10.244.0.0/16")
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}
LIST: dict[str, Any] = {"apiVersion": "v1", "kind": "List", "items": [*objects(), NODE]}


def explain(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxyd", "explain", "default/web", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("name", ["dump.yaml", "dump.json", "dump", ".hidden"])
def test_a_list_in_one_file(tmp_path: Path, name: str) -> None:
    text = json.dumps(LIST) if name.endswith("json") else yaml.safe_dump(LIST)
    (tmp_path / name).write_text(text)
    # Beside it lies what a folder would take, and this must not.
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all(objects(pods=())))
    done = explain("--manifests", str(tmp_path / name), *FLAGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert "any endpoint: 2, 1/2 each" in done.stdout
    assert "there is no Node" not in done.stdout


def test_that_the_node_is_not_in_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "dump.yaml").write_text(yaml.safe_dump(LIST))
    done = explain("--manifests", str(tmp_path / "dump.yaml"), "--hostname-override", "node9", *FLAGS[2:])
    assert "note: there is no Node node9 in there (--hostname-override names another)" in done.stdout


@pytest.mark.parametrize(("text", "wrong"), [("", "it is empty"), ("{", "invalid YAML"), ("- a\n", "no kind")])
def test_a_file_that_is_no_dump(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "dump.yaml"
    file.write_text(text)
    done = explain("--manifests", str(file), *FLAGS)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"manifest file {file}: " in done.stderr
    assert wrong in done.stderr


def test_words_that_do_not_go_together(tmp_path: Path) -> None:
    done = explain("--manifests", str(tmp_path), "--kubeconfig", "x", *FLAGS)
    assert (done.returncode, done.stderr) == (2, "proxyd: --manifests and --kubeconfig: say one of them\n")
    done = explain("--cluster-cidr", "10.0.0.0/8")
    assert done.returncode == 2
    assert "goes with --manifests, --kubeconfig, --master only" in done.stderr
