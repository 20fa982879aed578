"""What others do to our rules in iptables mode, by hand or by reloading a firewall, is found and undone in each backend."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cluster.manifests import VIP, answers, manifest, metric
from tests.cluster.modes import IPTABLES, Mode
from tests.program import Proxyd, until, write
from tests.topology import Topology

pytestmark = IPTABLES

REPAIRED = "proxyd_drift_repaired_total"
OTHER = "10.96.0.11"


def rules(world: Topology, mode: Mode) -> list[list[str]]:
    """Everything of both families, without what packets count, and in any order of Services."""
    both = (mode, str(mode).replace("iptables", "ip6tables"))
    texts = [world.node.run(f"{tool}-save").stdout for tool in both]
    return [sorted(line for line in re.sub(r"\[\d+:\d+\]", "", text).splitlines() if line[0] != "#") for text in texts]


def chain_of(world: Topology, mode: Mode, ip: str) -> str:
    """The chain that a cluster IP leads to."""
    saved = world.node.run(f"{mode}-save", "-t", "nat").stdout
    found = re.search(rf"-A KUBE-SERVICES -d {ip}/32 .*-j (KUBE-SVC-\w+)", saved)
    assert found
    return found[1]


def undone(world: Topology, mode: Mode, proxyd: Proxyd, *edits: str) -> None:
    """Makes each edit, and waits until it is undone although nothing changes in the cluster."""
    as_they_were = rules(world, mode)
    for edit in edits:
        family = "IPv6" if edit.startswith("ip6") else "IPv4"
        before = metric(proxyd, REPAIRED, family)
        tool, *words = edit.split()
        world.node.run(tool.replace("tables", f"tables-{mode.backend}") if tool != "nft" else tool, *words)
        until(lambda f=family, b=before: metric(proxyd, REPAIRED, f) > b, f"{edit}: repaired")  # type: ignore[misc]
        until(lambda: rules(world, mode) == as_they_were, f"{edit}: the rules are what they were")
        assert answers(world) == {"pod1", "pod3"}


def test_a_firewall_that_is_flushed_or_reloaded_in_any_table_comes_back(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    write(folder, "nobody.yaml", manifest("nobody", OTHER, ()))
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        assert answers(node, ip=OTHER, count=1) == {"refused"}  # by a rule in the table filter
        tables = ("iptables -t nat -F", "iptables -F", "ip6tables -t nat -F", "ip6tables -F")
        undone(node, mode, proxyd, *tables, "iptables -t mangle -X KUBE-PROXY-CANARY")
        if mode is Mode.NFT:
            undone(node, mode, proxyd, "nft delete table ip nat")


def test_single_rules_that_go_or_come_are_undone(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        chain = chain_of(node, mode, VIP)
        undone(
            node,
            mode,
            proxyd,
            "iptables -t nat -D POSTROUTING 1",
            "iptables -D FORWARD 1",
            f"iptables -t nat -I KUBE-SERVICES -d {VIP} -j RETURN",
            f"iptables -t nat -F {chain}",
            f"iptables -t nat -D {chain} 1",
        )


def test_a_service_that_was_damaged_is_served_again_whoever_changes_next(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    write(folder, "other.yaml", manifest("other", OTHER))
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        for damage in (("-F", chain_of(node, mode, OTHER)), ("-F",)):
            node.node.run(f"{mode}", "-t", "nat", *damage)
            if damage == ("-F",):
                # Chains that nothing refers to any more can go too, if they have not been mended yet.
                node.node.run(f"{mode}", "-t", "nat", "-X", check=False)
            for pod in ("pod4", "pod2"):
                write(folder, "web.yaml", manifest(pods=(pod,)))
                assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer=pod)
            until(lambda: answers(node, ip=OTHER) == {"pod1", "pod3"}, "the other one is served")
            write(folder, "other.yaml", manifest("other", OTHER, ("pod2",)))
            assert node.hosts["client1"].call("ask_until", ip=OTHER, port=80, answer="pod2")
            write(folder, "other.yaml", manifest("other", OTHER))
            until(lambda: answers(node, ip=OTHER) == {"pod1", "pod3"}, "both endpoints again")
        assert not proxyd.events("rules not written")
