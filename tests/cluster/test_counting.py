"""Connections through the running program, and what its metrics say of them."""

from __future__ import annotations

import re
from pathlib import Path

from proxyd.nft.layout import INVALID_DROPPED
from tests.cluster.manifests import METRICS_PORT, VIP, answers, manifest
from tests.program import Proxyd, until, write
from tests.topology import ADDRESSES, V4, Topology

# Longer than two readings take.
PATIENCE = 90.0


def counted(proxyd: Proxyd) -> dict[str, float]:
    """Connections of the Service ("") and of its endpoints, by pod."""
    names = {f"{ADDRESSES[pod][V4]}:8080": pod for pod in ("pod1", "pod3", "pod4")}
    _, page = proxyd.get("/metrics", METRICS_PORT)
    found = re.findall(r"^proxyd_(?:service|endpoint)_connections_total\{(.*)\} (\S+)$", page, re.MULTILINE)
    labels = [dict(re.findall(r'(\w+)="([^"]*)"', each)) for each, _ in found]
    assert all(
        (each["ip_family"], each["namespace"], each["protocol"]) == ("IPv4", "default", "tcp") for each in labels
    )
    return {
        names.get(each.get("endpoint", ""), ""): float(value)
        for each, (_, value) in zip(labels, found, strict=True)
        if (each["service"], each["port"]) == ("web", "http")
    }


class Clients:
    """Opens connections, one by one, and knows how many there were."""

    def __init__(self, node: Topology) -> None:
        self.node = node
        self.opened = 0

    def until_told(self, proxyd: Proxyd, more_than: float) -> None:
        """Until more connections than that are told. Those before the first reading are not: they may be another's."""

        def told() -> bool:
            self.opened += 1
            answers(self.node, count=1)
            return counted(proxyd).get("", 0) > more_than

        until(told, "connections are told", PATIENCE, every=0.5)


def test_connections_are_told_and_go_on_through_changes_and_restarts(node: Topology, folder: Path, log: Path) -> None:
    clients = Clients(node)
    write(folder, "web.yaml", manifest())
    with Proxyd(node, folder, log) as proxyd:
        clients.until_told(proxyd, 0)
        before = counted(proxyd)[""]
        clients.until_told(proxyd, before)
        until(lambda: len(counted(proxyd)) == 3, "endpoints are told", PATIENCE)
        by_pod = counted(proxyd)
        assert before < by_pod[""] <= clients.opened
        # Another number of endpoints is another element for the Service.
        write(folder, "web.yaml", manifest(pods=("pod1",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod1")
        clients.until_told(proxyd, by_pod[""])
        until(lambda: set(counted(proxyd)) == {"", "pod1"}, "it is gone", PATIENCE)
        assert counted(proxyd)["pod1"] >= by_pod["pod1"]
        proxyd.stop()
    # A new process counts from zero, whatever the old one's rules have counted.
    clients = Clients(node)
    with Proxyd(node, folder, log) as proxyd:
        clients.until_told(proxyd, 0)
        assert counted(proxyd)[""] <= clients.opened


def test_where_conntrack_is_liberal_nothing_is_dropped_and_the_start_says_so(
    node: Topology, folder: Path, log: Path
) -> None:
    liberal = {"netfilter/nf_conntrack_tcp_be_liberal": "1"}
    node.node.call("sysctl", settings=liberal)
    try:
        with Proxyd(node, folder, log) as proxyd:
            assert proxyd.wait_event("proxyd starts", drop_invalid_segments="none")
            rules = node.node.run("nft", "list", "table", "ip", "proxyd").stdout
            assert "ct state invalid" not in rules
            proxyd.stop()
    finally:
        node.node.call("sysctl", settings=dict.fromkeys(liberal, "0"))
    log.unlink()
    with Proxyd(node, folder, log) as proxyd:
        assert proxyd.wait_event("proxyd starts", drop_invalid_segments="of Services")
        rules = node.node.run("nft", "list", "table", "ip", "proxyd").stdout
        assert rules.count("ct state invalid jump") == 3
        assert f'counter name "{INVALID_DROPPED}" drop' in rules
