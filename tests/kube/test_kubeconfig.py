"""Kubeconfigs that cannot be used: each is one line that names the file and what about it, and nothing is sent."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxyd.kube.client import ClientError, connect

Kubeconfig = dict[str, Any]


def good() -> Kubeconfig:
    """The shape of kubeadm's kubeconfig.conf."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": {"server": "https://192.0.2.1:6443"}}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "namespace": "default", "user": "default"}}],
        "current-context": "default",
        "users": [{"name": "default", "user": {"tokenFile": "token"}}],
    }


def cluster(config: Kubeconfig) -> dict[str, Any]:
    found: dict[str, Any] = config["clusters"][0]["cluster"]
    return found


def user(config: Kubeconfig) -> dict[str, Any]:
    found: dict[str, Any] = config["users"][0]["user"]
    return found


def complaint(folder: Path, change: Callable[[Kubeconfig], object]) -> str:
    """What is said of a kubeconfig with one thing wrong."""
    config = good()
    change(config)
    path = folder / "kubeconfig.conf"
    path.write_text(yaml.safe_dump(config))
    return complaint_about(path)


def complaint_about(path: Path) -> str:
    with pytest.raises(ClientError) as caught:
        connect(str(path), "")
    said = str(caught.value)
    assert said.isprintable(), "one line"
    return said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "text").write_text("nothing of the kind\n")
    (tmp_path / "folder").mkdir()
    return tmp_path


def test_the_good_one_is_good(folder: Path) -> None:
    path = folder / "kubeconfig.conf"
    path.write_text(yaml.safe_dump(good()))
    assert connect(str(path), "").host == "https://192.0.2.1:6443"


BROKEN: dict[str, tuple[Callable[[Kubeconfig], object], str]] = {
    "no current context": (lambda c: c.pop("current-context"), "current-context"),
    "an empty current context": (lambda c: c.update({"current-context": ""}), "context"),
    "a context that is not there": (lambda c: c.update({"current-context": "other"}), "other"),
    "no contexts": (lambda c: c.pop("contexts"), "contexts"),
    "contexts null": (lambda c: c.update(contexts=None), "contexts"),
    "a context without a cluster": (lambda c: c["contexts"][0]["context"].pop("cluster"), "cluster"),
    "a cluster that is not there": (lambda c: c["contexts"][0]["context"].update(cluster="other"), "other"),
    "no clusters": (lambda c: c.pop("clusters"), "clusters"),
    "a cluster without a server": (lambda c: cluster(c).pop("server"), "server"),
    "an empty server": (lambda c: cluster(c).update(server=""), "server"),
    "a server that is a number": (lambda c: cluster(c).update(server=6443), "server"),
    "a server that is no URL": (lambda c: cluster(c).update(server="https://[::1"), "URL"),
    "a server with a port that is none": (lambda c: cluster(c).update(server="https://192.0.2.1:http"), "address"),
    "a server of another kind": (lambda c: cluster(c).update(server="ftp://192.0.2.1"), "address"),
    "a user that is not there": (lambda c: c["contexts"][0]["context"].update(user="other"), "other"),
    "no token file": (lambda c: user(c).update(tokenFile="none"), "none: No such file"),
    "a token file that is a folder": (lambda c: user(c).update(tokenFile="folder"), "folder"),
    "no CA file": (lambda c: cluster(c).update({"certificate-authority": "none"}), "none"),
    "a CA file that is none": (lambda c: cluster(c).update({"certificate-authority": "text"}), "text"),
    "a CA file that is a folder": (lambda c: cluster(c).update({"certificate-authority": "folder"}), "folder"),
    "CA data that is no base64": (lambda c: cluster(c).update({"certificate-authority-data": "!"}), "certificate"),
    "CA data that is no certificate": (
        lambda c: cluster(c).update({"certificate-authority-data": base64.b64encode(b"x").decode()}),
        "certificate",
    ),
    "no client certificate": (lambda c: user(c).update({"client-certificate": "none", "client-key": "text"}), "none"),
    "no client key": (lambda c: user(c).update({"client-certificate": "text", "client-key": "none"}), "none"),
    "a client certificate that is none": (
        lambda c: user(c).update({"client-certificate": "text", "client-key": "text"}),
        "text",
    ),
    "users that are no list": (lambda c: c.update(users="me"), "users"),
    "a cluster that is no map": (lambda c: c["clusters"][0].update(cluster="x"), "cluster"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_thing_wrong(folder: Path, name: str) -> None:
    change, word = BROKEN[name]
    said = complaint(folder, change)
    assert word in said
    assert str(folder) in said


@pytest.mark.parametrize(
    "content",
    [b"", b"\n# nothing\n", b"{", b"- a\n- b\n", b"words", b"17", b"\xff\xfe", b"\x00", b"a: *b", b"\tb: 1", b"null"],
)
def test_a_file_that_is_no_kubeconfig(folder: Path, content: bytes) -> None:
    path = folder / "kubeconfig.conf"
    path.write_bytes(content)
    assert str(path) in complaint_about(path)


def test_no_file_at_all(folder: Path) -> None:
    assert complaint_about(folder / "none") == f"kubeconfig {folder / 'none'}: No such file or directory"
    assert complaint_about(folder / "folder") == f"kubeconfig {folder / 'folder'}: Is a directory"
    assert "Not a directory" in complaint_about(folder / "text" / "config")


def test_the_kubeconfig_of_kubeadm_with_its_token_file(folder: Path) -> None:
    example = Path(__file__).parents[1] / "config" / "examples" / "kubeconfig.conf"
    path = folder / "kubeconfig.conf"
    shutil.copy(example, path)
    said = complaint_about(path)
    assert "/var/run/secrets/kubernetes.io/serviceaccount/" in said, "not in a pod, so its files are not there"
    config = yaml.safe_load(example.read_text())
    cluster(config).pop("certificate-authority")
    user(config)["tokenFile"] = str(folder / "token")
    path.write_text(yaml.safe_dump(config))
    assert connect(str(path), "").host == "https://control-plane.example.org:6443"


@pytest.mark.parametrize("master", ["https://", "ftp://192.0.2.1", "https://192.0.2.1:http", "http://[::1"])
def test_a_master_that_is_no_url(folder: Path, master: str) -> None:
    with pytest.raises(ClientError, match=r"^--master: the API server's address .* is not a URL"):
        connect("", master)
