"""nftables itself in trouble: a library that refuses, that lists nothing, or that says it failed when it did not.

The library in these tests is the real one behind a wrapper, which does to some commands what broken ones do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.manifests import VIP, Connecting, answers, manifest
from tests.program import FLAGS, HEALTH_PORT, Proxyd, until, write
from tests.topology import Topology

WRAPPER = """
import json, os, sys

HERE = os.path.dirname(os.path.abspath(__file__))
# The module of this name is the real one from here on.
sys.path.remove(HERE)
del sys.modules["nftables"]
import nftables


class Wrapped(nftables.Nftables):
    def cmd(self, text):
        for trouble in json.load(open(os.path.join(HERE, "trouble.json"))):
            if trouble["word"] in text:
                if trouble["after"]:
                    super().cmd(text)
                return 1, "", trouble["says"]
        return super().cmd(text)


nftables.Nftables = Wrapped
"""
MISSING = """Error: Could not process rule: No such file or directory
add rule ip proxyd g1/lb-tcp-2 dnat ip to ip daddr . tcp dport . numgen random mod 2 map @g1/endpoints-tcp
                                                                 ^^^^^^^^^^^^^^^^^^^
"""
FAILED = "rules not written"


class Library:
    """The wrapper, and what is wrong with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        write(folder, "nftables.py", WRAPPER)
        self.is_well()

    def is_well(self) -> None:
        write(self._folder, "trouble.json", "[]")

    def fails(self, word: str, says: str, *, after: bool = False) -> None:
        """Fails each command that has ``word`` in it; with ``after``, having carried it out."""
        write(self._folder, "trouble.json", json.dumps([{"word": word, "says": says, "after": after}]))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    path = tmp_path / "library"
    monkeypatch.setenv("PYTHONPATH", f"{path}:{Path(__file__).parents[2]}")
    return Library(path)


def waits(proxyd: Proxyd, family: str = "IPv4") -> list[float]:
    """How long it was going to wait after each failure."""
    return [each["retry_in_seconds"] for each in proxyd.events(FAILED, ip_family=family)]


def test_a_kernel_without_a_feature_is_named_and_the_old_rules_stay(
    node: Topology, folder: Path, log: Path, library: Library
) -> None:
    with Proxyd(node, folder, log):
        pass
    log.unlink()
    library.fails("numgen random mod 2 ", MISSING)
    with Connecting(node) as connecting, Proxyd(node, folder, log, wait=False) as proxyd:
        assert "numgen random mod 2" in proxyd.wait_event(FAILED, ip_family="IPv4")["error"]
        until(lambda: len(waits(proxyd)) >= 2, "it is tried again")
        assert waits(proxyd) == sorted(set(waits(proxyd))), "ever more rarely"
        status, body = proxyd.get("/healthz")
        assert (status, json.loads(body)["status"]["IPv4"]["healthy"]) == (503, False)
        assert proxyd.get("/livez")[0] == 200
        connecting.more()
        library.is_well()
        proxyd.wait_healthy()
        assert proxyd.stop() == 0
    assert set(connecting.counts) == {"pod1", "pod3"}


def test_changes_and_repairs_go_on_where_the_library_can_list_nothing(
    node: Topology, folder: Path, log: Path, library: Library
) -> None:
    with Proxyd(node, folder, log) as proxyd:
        library.fails("list ", "Error: cannot parse what somebody else wrote\n")
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")
        node.node.run("nft", "delete", "table", "ip", "proxyd")
        until(lambda: answers(node) == {"pod4"}, "it is repaired")
        assert not proxyd.events(FAILED)


@pytest.mark.parametrize(
    ("word", "edit", "noticed"),
    [
        ("delete element ", "", "transaction refused, writing everything anew"),
        # The commit that switches to rules written anew, after somebody's edit.
        ("nat-postrouting", "add chain ip proxyd mine", FAILED),
    ],
)
def test_a_commit_that_is_called_a_failure_costs_no_connection_and_is_not_repeated_for_ever(
    node: Topology, folder: Path, log: Path, library: Library, word: str, edit: str, noticed: str
) -> None:
    with Proxyd(node, folder, log) as proxyd, Connecting(node) as connecting:
        library.fails(word, "netlink: Error: No buffer space available\n", after=True)
        if edit:
            node.node.run("nft", edit)
            proxyd.wait_event(noticed)
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")
        proxyd.wait_event(noticed)
        connecting.more()
        library.is_well()
        write(folder, "web.yaml", manifest(pods=("pod1",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod1")
        proxyd.wait_healthy()
        connecting.more()
    assert set(connecting.counts) <= {"pod1", "pod3", "pod4"}


def test_rules_that_cannot_be_written_for_long_make_the_node_unhealthy_for_everyone_who_asks(
    node: Topology, folder: Path, log: Path, library: Library
) -> None:
    local = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32001}
    write(folder, "web.yaml", manifest(**local))
    with Proxyd(node, folder, log, flags=(*FLAGS, "--iptables-sync-period", "1s")) as proxyd:

        def statuses() -> list[int]:
            asked = (("/healthz", HEALTH_PORT), ("/livez", HEALTH_PORT), ("/", 32001))
            return [proxyd.get(path, port, "192.0.2.11")[0] for path, port in asked]

        until(lambda: statuses() == [200, 200, 200], "all is well")
        library.fails("proxyd", "Error: Could not process rule: Operation not permitted\n")
        write(folder, "web.yaml", manifest(pods=("pod1",), **local))
        proxyd.wait_event(FAILED, ip_family="IPv4")
        until(lambda: statuses() == [503, 503, 503], "a change has waited for too long")
        assert answers(node) == {"pod1", "pod3"}
        library.is_well()
        until(lambda: statuses() == [200, 200, 200], "all is well again")
        assert answers(node) == {"pod1"}
