"""`proxyd explain` from the API server itself, and from a dump of its own listing: the same answer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cluster_api.steps import Offers
from tests.controlplane import objects
from tests.controlplane.plane import PROXYD_NAMESPACE, URL, Plane, kubeconfig
from tests.program import PROXYD

FLAGS = ("--hostname-override", "node1", "--cluster-cidr", "10.244.0.0/16", "--proxy-mode", "nftables")
LISTS = ("/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices", "/api/v1/nodes")


def explain(plane: Plane, *words: str) -> subprocess.CompletedProcess[str]:
    command = plane.host.command(PROXYD, "explain", *words, *FLAGS)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def config(plane: Plane, file: Path, token: str) -> str:
    return str(kubeconfig(file, URL, plane.authority.certificate, token=token))


def test_the_api_server_and_its_dump_give_the_same_answer(plane: Plane, offer: Offers, tmp_path: Path) -> None:
    offer.keep(objects.service("web"))
    offer.keep(objects.endpoint_slice("web", ["10.244.1.2", "10.244.1.3"]))
    file = config(plane, tmp_path / "config", plane.token())
    done = explain(plane, "default/web", "--kubeconfig", file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "any endpoint: 2, 1/2 each" in done.stdout
    items = []
    for path in LISTS:
        listed = plane.admin.get(path)
        kind = listed["kind"].removesuffix("List")
        items += [{"apiVersion": listed["apiVersion"], "kind": kind, **each} for each in listed["items"]]
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert explain(plane, "default/web", "--manifests", str(dump)).stdout == done.stdout


def test_what_it_may_not_list_is_named(plane: Plane, tmp_path: Path) -> None:
    plane.admin.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "nobody", "namespace": PROXYD_NAMESPACE}}
    )
    file = config(plane, tmp_path / "config", plane.token("nobody"))
    done = explain(plane, "default/web", "--kubeconfig", file)
    assert (done.returncode, done.stdout) == (4, "")
    assert "403 Forbidden" in done.stderr
    assert "(a role must allow the verb list on nodes of the core API group)" in done.stderr
    file = config(plane, tmp_path / "config", "no such token")
    assert "401 Unauthorized" in explain(plane, "default/web", "--kubeconfig", file).stderr


def test_an_api_server_that_is_not_there(plane: Plane, tmp_path: Path) -> None:
    file = config(plane, tmp_path / "config", plane.token())
    done = explain(plane, "default/web", "--kubeconfig", file, "--master", "https://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (4, "")
    assert "cannot list nodes at https://127.0.0.1:1" in done.stderr
    missing = explain(plane, "default/web", "--kubeconfig", str(tmp_path / "nowhere"))
    assert missing.returncode == 2
