"""What others do to our rules while the daemon runs is found and undone, and what they do elsewhere is their business."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.manifests import VIP, Connecting, answers, manifest, metric
from tests.program import Proxyd, until, write
from tests.topology import Topology

REPAIRED = "proxyd_drift_repaired_total"
NOTICED = "somebody changed our table"
UNDONE = "our table is as it was"


def generation(world: Topology) -> str:
    """The prefix of what is in use now, such as "g1"."""
    found = re.search(
        r"jump (g\d+)/services", world.node.run("nft", "list", "chain", "ip", "proxyd", "nat-output").stdout
    )
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("edit", "families", "how"),
    [
        ("delete table ip proxyd", ["IPv4"], "rewritten"),
        ("delete table ip6 proxyd", ["IPv6"], "rewritten"),
        ("flush ruleset", ["IPv4", "IPv6"], "rewritten"),
        ("add chain ip proxyd mine", ["IPv4"], "rewritten"),
        ("add set ip proxyd mine { type ipv4_addr; elements = { 10.96.0.10 }; }", ["IPv4"], "rewritten"),
        ("add chain ip proxyd filter-input { policy drop; }", ["IPv4"], "rewritten"),
        ("add table ip proxyd { flags dormant; }", ["IPv4"], "rewritten"),
        ("flush chain ip proxyd nat-prerouting", ["IPv4"], "mended"),
        ("delete element ip proxyd G/endpoints-tcp { 10.96.0.10 . 80 . 1 }", ["IPv4"], "mended"),
        ("flush map ip proxyd G/endpoints-tcp", ["IPv4"], "mended"),
        ("add element ip proxyd G/no-endpoints { 10.96.0.10 . tcp . 80 : goto G/reject }", ["IPv4"], "mended"),
        ("add element ip proxyd G/service-ips { * : drop }", ["IPv4"], "rewritten"),
        (
            "delete element ip proxyd G/service-ips { 10.96.0.10 . tcp . 80 }\n"
            "add element ip proxyd G/service-ips { 10.96.0.10 . tcp . 80 : drop }",
            ["IPv4"],
            "mended",
        ),
        (
            "add element ip proxyd G/cluster-ips { 10.9.9.9 }\nadd element ip6 proxyd G/cluster-ips { 2001:db8::9 }",
            ["IPv4", "IPv6"],
            "mended",
        ),
        ("insert rule ip proxyd G/services ip daddr 10.96.0.10 drop", ["IPv4"], "mended"),
    ],
)
def test_a_foreign_edit_is_undone_although_nothing_changes_in_the_cluster(
    node: Topology, folder: Path, log: Path, edit: str, families: list[str], how: str
) -> None:
    with Proxyd(node, folder, log) as proxyd:
        before = {word: _rules(node, word) for word in ("ip", "ip6")}
        node.node.run("nft", edit.replace("G/", f"{generation(node)}/"))
        until(lambda: all(metric(proxyd, REPAIRED, each) == 1 for each in families), "it is repaired")
        assert answers(node) == {"pod1", "pod3"}
        until(lambda: {word: _rules(node, word) for word in ("ip", "ip6")} == before, "the rules are what they were")
        assert sorted(each["ip_family"] for each in proxyd.events(NOTICED)) == families
        assert [each["how"] for each in proxyd.events(UNDONE)] == [how] * len(families)


def test_pins_of_clients_are_made_by_packets_and_are_no_edits(node: Topology, folder: Path, log: Path) -> None:
    write(folder, "pinned.yaml", manifest("pinned", "10.96.0.12", sessionAffinity="ClientIP"))
    with Proxyd(node, folder, log) as proxyd:
        until(lambda: answers(node, ip="10.96.0.12", count=1) & {"pod1", "pod3"}, "it is served")
        assert len(answers(node, ip="10.96.0.12")) == 1
        pins = node.node.run("nft", "list", "set", "ip", "proxyd", "affinity").stdout
        assert "expires" in pins
        # Whoever takes the pins away does so.
        node.node.run("nft", "flush set ip proxyd affinity")
        # What is told last is noticed last.
        node.node.run("nft", f"add element ip proxyd {generation(node)}/cluster-ips {{ 10.9.9.9 }}")
        until(lambda: metric(proxyd, REPAIRED) == 1, "the one edit that was ours to undo")
        (noticed,) = proxyd.events(NOTICED)
        assert noticed["what"] == f"added element in {generation(node)}/cluster-ips"
        assert "expires" not in node.node.run("nft", "list", "set", "ip", "proxyd", "affinity").stdout


def _rules(world: Topology, word: str) -> list[str]:
    """Our table, without what differs between equals and what packets put into it."""
    listed = world.node.run("nft", "list", "table", word, "proxyd", check=False).stdout
    listed = re.sub(r"elements = \{[^}]* expires [^}]*\}", " ", listed)
    return sorted(re.sub(r"\bg\d+/|packets \d+ bytes \d+|[,{}]|elements = ", " ", listed).split())


def test_edits_outside_our_tables_cause_nothing(node: Topology, folder: Path, log: Path) -> None:
    foreign = (
        "table inet proxyd { set g1/cluster-ips { type ipv4_addr; elements = { 10.96.0.10 }; }; chain services {}; }"
    )
    with Proxyd(node, folder, log) as proxyd:
        for edit in (
            foreign,
            "table ip nat { chain KUBE-SERVICES {}; chain PREROUTING { type nat hook prerouting priority -100; }; }",
            "insert rule ip nat PREROUTING counter jump KUBE-SERVICES",
            "flush chain ip nat PREROUTING",
            "delete table ip nat",
            "delete table inet proxyd",
        ):
            node.node.run("nft", edit)
        # What is told last is noticed last.
        node.node.run("nft", "add chain ip proxyd mine")
        until(lambda: metric(proxyd, REPAIRED) == 1, "the one edit that was ours to undo")
        assert [each["what"] for each in proxyd.events(NOTICED)] == ["added chain mine"]


@contextmanager
def editing(world: Topology, edit: str) -> Iterator[threading.Event]:
    """Makes an edit again and again, as fast as it can, until the end or until it is told to stop."""
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            world.node.run("nft", edit, check=False)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield stopped
    finally:
        stopped.set()
        thread.join()


def test_edits_without_end_do_not_hold_up_changes_and_are_undone_once_they_end(
    node: Topology, folder: Path, log: Path
) -> None:
    with Proxyd(node, folder, log) as proxyd:
        with editing(node, "insert rule ip proxyd nat-prerouting counter"), Connecting(node) as connecting:
            until(lambda: metric(proxyd, REPAIRED) > 1, "it is repaired all the time")
            for pod in ("pod4", "pod2", "pod3", "pod1") * 2:
                write(folder, "web.yaml", manifest(pods=(pod,)))
                assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer=pod)
            connecting.more()
        assert set(connecting.counts) <= {"pod1", "pod2", "pod3", "pod4"}
        until(lambda: "counter" not in _base_chain(node), "the last edit is undone")
        assert answers(node) == {"pod1"}
        # Many edits, few repairs.
        assert metric(proxyd, REPAIRED) > 2 * len(proxyd.events(NOTICED))


def _base_chain(world: Topology) -> str:
    return world.node.run("nft", "list", "chain", "ip", "proxyd", "nat-prerouting").stdout


def test_a_service_that_was_damaged_is_served_again_whoever_changes_next(
    node: Topology, folder: Path, log: Path
) -> None:
    write(folder, "other.yaml", manifest("other", "10.96.0.11"))
    with Proxyd(node, folder, log) as proxyd:
        node.node.run("nft", "flush", "map", "ip", "proxyd", f"{generation(node)}/endpoints-tcp")
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")
        until(lambda: answers(node, ip="10.96.0.11") == {"pod1", "pod3"}, "the other one is served")
        write(folder, "other.yaml", manifest("other", "10.96.0.11", ("pod2",)))
        assert node.hosts["client1"].call("ask_until", ip="10.96.0.11", port=80, answer="pod2")
        assert not proxyd.events("rules not written")
