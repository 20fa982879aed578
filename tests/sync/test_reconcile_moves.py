"""One family's passes over Services that share something: frontends that move, conflicts, settings of the node."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.model import LocalDetector, Reason, Service
from proxyd.nft.objects import Transaction
from tests import build
from tests.fakes.packets import Host
from tests.fakes.ruleset import FakeRuleset
from tests.sync.clusters import V4, cluster, slices, with_node_port
from tests.world import World, even

# Keys that move between Services


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_two_services_swap_their_node_ports(ruleset: FakeRuleset, names: tuple[str, str]) -> None:
    one, two = names
    world = World(
        with_node_port(one, 30001, "10.96.0.1"),
        with_node_port(two, 30002, "10.96.0.2"),
        *slices(*names),
        ruleset=ruleset,
    )
    world.sync()
    done = len(ruleset.commits)
    world.put(with_node_port(one, 30002, "10.96.0.1"), with_node_port(two, 30001, "10.96.0.2"))
    world.sync()
    assert len(ruleset.commits) == done + 1
    assert world.reaches("192.0.2.11", 30002) == even("10.244.1.1")
    assert world.reaches("192.0.2.11", 30001) == even("10.244.2.1")


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("at_once", [True, False])
def test_an_external_address_moves(ruleset: FakeRuleset, names: tuple[str, str], at_once: bool) -> None:
    giver, taker = names
    plain = [build.service(giver, ip="10.96.0.1"), build.service(taker, ip="10.96.0.2")]
    with_ip = [
        build.service(giver, ip="10.96.0.1", external_ips=("198.51.100.1",)),
        build.service(taker, ip="10.96.0.2", external_ips=("198.51.100.1",)),
    ]
    world = World(with_ip[0], plain[1], *slices(*names), ruleset=ruleset)
    world.sync()
    done = len(ruleset.commits)
    world.put(with_ip[1])
    if not at_once:
        world.sync()
    world.put(plain[0])
    world.sync()
    assert len(ruleset.commits) <= done + 2
    assert world.reaches("198.51.100.1") == even("10.244.2.1")
    assert world.reconciler.findings == {}
    assert not world.ruleset.refused


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("a", "a")])
def test_a_service_is_recreated_under_the_same_cluster_ip(ruleset: FakeRuleset, names: tuple[str, str]) -> None:
    old, new = names
    world = World(build.service(old), build.endpoint_slice(old, "10.244.1.1", "10.244.1.2"), ruleset=ruleset)
    world.sync()
    world.remove(build.service(old), build.endpoint_slice(old))
    world.put(build.service(new, affinity_seconds=60), build.endpoint_slice(new, "10.244.2.1"))
    world.sync()
    assert world.reaches("10.96.0.1") == even("10.244.2.1")
    assert not world.ruleset.refused


def test_load_balancer_ranges_move_with_the_address(ruleset: FakeRuleset) -> None:
    def guarded(name: str, ip: str, ranges: tuple[str, ...], **fields: Any) -> Service:
        return build.service(name, ip=ip, ingress_ips=("198.51.100.1",), source_ranges=ranges, **fields)

    first = guarded("a", "10.96.0.1", ("203.0.113.0/24", "10.244.0.0/16"))
    second = guarded("b", "10.96.0.2", ("203.0.113.0/25",), created="2026-02-01T00:00:00Z")
    world = World(first, second, *slices("a", "b"), ruleset=ruleset)
    world.sync()
    assert world.reaches("198.51.100.1") == world.reaches("198.51.100.1", by="pod") == even("10.244.1.1")
    world.remove(first)
    world.sync()
    assert world.reaches("198.51.100.1") == even("10.244.2.1")
    assert world.reaches("198.51.100.1", by="pod") == even("drop")
    world.put(first)
    world.sync()
    assert world.reaches("198.51.100.1", by="pod") == even("10.244.1.1")


# Conflicts


def test_the_older_service_has_the_address_and_the_other_takes_over(ruleset: FakeRuleset) -> None:
    young = build.service("a", ip="10.96.0.1", external_ips=("198.51.100.1",), created="2026-03-01T00:00:00Z")
    old = build.service("b", ip="10.96.0.2", external_ips=("198.51.100.1",), created="2026-02-01T00:00:00Z")
    world = World(young, *slices("a", "b"), ruleset=ruleset)
    world.sync()
    assert world.reaches("198.51.100.1") == even("10.244.1.1")
    world.put(old)
    world.sync()
    assert world.reaches("198.51.100.1") == even("10.244.2.1")
    (finding,) = world.reconciler.findings[build.key("a")]
    assert (finding.reason, "default/b" in finding.message) == (Reason.FRONTEND_CONFLICT, True)
    assert world.reaches("10.96.0.1") == even("10.244.1.1")
    world.remove(old)
    world.sync()
    assert world.reaches("198.51.100.1") == even("10.244.1.1")
    assert world.reconciler.findings == {}


def test_a_cluster_ip_wins_over_an_external_address(ruleset: FakeRuleset) -> None:
    world = World(
        build.service("a", ip="10.96.0.1", external_ips=("10.96.0.2",), created="2020-01-01T00:00:00Z"),
        build.service("b", ip="10.96.0.2"),
        *slices("a", "b"),
        ruleset=ruleset,
    )
    world.sync()
    assert world.reaches("10.96.0.2") == even("10.244.2.1")
    assert list(world.reconciler.findings) == [build.key("a")]


def test_a_restart_decides_conflicts_alike(ruleset: FakeRuleset) -> None:
    three = [
        build.service(name, ip=f"10.96.0.{n}", external_ips=("198.51.100.1",), created=created)
        for n, (name, created) in enumerate(
            (("a", ""), ("b", "2026-02-01T00:00:00Z"), ("c", "2026-01-01T00:00:00Z")), 1
        )
    ]
    world = World(*three, *slices("a", "b", "c"), ruleset=ruleset)
    world.sync()
    before = world.reconciler.findings
    assert world.reaches("198.51.100.1") == even("10.244.3.1")
    world.restart()
    world.settle()
    assert world.reaches("198.51.100.1") == even("10.244.3.1")
    assert world.reconciler.findings == before


# Settings


def written(world: World) -> Transaction:
    """Syncs; gives the one transaction of it."""
    done = len(world.ruleset.commits)
    world.sync()
    (transaction,) = world.ruleset.commits[done:]
    return transaction


def chains_of(transaction: Transaction) -> set[str]:
    return {chain.name.removeprefix("g1/") for chain in transaction.chains}


def test_a_new_zone_changes_endpoints_with_hints_only(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    hinted = [build.endpoint(f"10.244.1.{n}", zone_hints=(zone,)) for n, zone in ((1, "za"), (2, "zb"))]
    world.put(build.endpoint_slice("a", *hinted))
    world.sync()
    assert world.reaches("10.96.0.1") == even("10.244.1.1")
    world.settings = build.settings(zone="zb")
    transaction = written(world)
    assert world.reaches("10.96.0.1") == even("10.244.1.2")
    assert not transaction.chains
    assert {e.container for e in transaction.add_elements} == {"g1/endpoints-tcp", "g1/hairpin"}
    assert all("10.96.0.2" not in e.key for e in transaction.add_elements)


def test_other_node_port_addresses_change_elements_only(ruleset: FakeRuleset) -> None:
    world = World(with_node_port("a", 30001, "10.96.0.1"), *slices("a"), ruleset=ruleset)
    world.sync()
    world.settings = build.settings(node_port_addresses=("192.0.2.12",))
    transaction = written(world)
    assert not transaction.chains
    assert [e.key for e in transaction.delete_elements] == ["192.0.2.11"]
    assert [e.key for e in transaction.add_elements] == ["192.0.2.12"]
    assert world.reaches("192.0.2.11", 30001) == even("192.0.2.11")
    assert world.reaches("192.0.2.12", 30001) == even("10.244.1.1")


def test_node_ports_on_all_addresses_rewrite_two_chains(ruleset: FakeRuleset) -> None:
    world = World(with_node_port("a", 30001, "10.96.0.1"), *slices("a"), ruleset=ruleset)
    world.sync()
    world.settings = build.settings(node_port_addresses=None)
    assert chains_of(written(world)) == {"services", "no-endpoint-nodeports-check"}
    everywhere = Host(frozenset({"192.0.2.11", "192.0.2.77"}))
    assert world.reaches("192.0.2.77", 30001, host=everywhere) == even("10.244.1.1")
    assert world.reaches("127.0.0.1", 30001, by="node", host=everywhere) == even("127.0.0.1")


def test_another_detector_rewrites_the_chains_that_ask_it(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a"), ruleset=ruleset)
    world.sync()
    ((_, outside), *_) = world.ask("10.96.0.1", by="pod")
    assert not outside.masqueraded
    world.settings = build.settings(local=LocalDetector(interface="cali*"))
    assert chains_of(written(world)) == {"services", "external-local", "np-external-local"}
    assert all(each.masqueraded for _, each in world.ask("10.96.0.1", by="pod"))


def test_settings_that_could_not_be_written_are_written_later(ruleset: FakeRuleset) -> None:
    world = World(with_node_port("a", 30001, "10.96.0.1"), *slices("a"), ruleset=ruleset)
    world.sync()
    world.settings = build.settings(node_port_addresses=("192.0.2.12",))
    ruleset.refuse_family(V4)
    assert not world.try_sync()
    ruleset.recover()
    world.settle()
    assert world.reaches("192.0.2.12", 30001) == even("10.244.1.1")
    assert world.reaches("192.0.2.11", 30001) == even("192.0.2.11")
