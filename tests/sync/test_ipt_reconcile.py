"""One family's passes in iptables mode: what is served after each call, what a pass costs, what becomes of refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from proxyd.ipt import names
from proxyd.ipt.fixed import JUMPS, SHARED_JUMPS
from proxyd.ipt.objects import Chain, Placed, Rule, Table, Transaction
from proxyd.ipt.ownership import OWN_MARK
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family, SlicePort
from proxyd.sync.ipt.reconcile import LARGE
from proxyd.sync.order import StoppedError
from tests import build
from tests.fakes.ipt_kernel import FakeKernel
from tests.ipt_world import IptWorld, normal
from tests.sync.clusters import cluster
from tests.sync.ipt_passes import after_each_call, served, service_chains
from tests.world import Object, even

V4, V6 = Family.IPV4, Family.IPV6
NAT, FILTER = Table.NAT, Table.FILTER

# The first start


def test_a_first_start_serves_every_service_evenly() -> None:
    world = IptWorld(*cluster("a", "b", "c", endpoints=3))
    world.sync()
    assert all(served(world, number, 3) for number in (1, 2, 3))
    assert world.reconciler.tally.total.endpoints == 9
    assert not world.reconciler.full_owed
    assert not world.reconciler.cleanup_owed
    assert all(names.CANARY in world.kernel.rules.tables[table] for table in Table)


def test_the_other_family_serves_too() -> None:
    world = IptWorld(
        build.service(ip="2001:db8:96::1"),
        build.endpoint_slice("web", "fd00:10:244:1::1", "fd00:10:244:1::2", family=V6),
        family=V6,
    )
    world.sync()
    assert world.reaches("2001:db8:96::1") == even("fd00:10:244:1::1", "fd00:10:244:1::2")


def test_built_in_chains_lead_to_ours_in_the_order_of_kube_proxy() -> None:
    world = IptWorld()
    world.sync()
    for table, chain in {(each.table, each.chain) for each in JUMPS}:
        wanted = [each.rule for each in (*JUMPS, *SHARED_JUMPS) if (each.table, each.chain) == (table, chain)]
        assert world.kernel.rules.rules(table, chain) == wanted[::-1]


def test_services_come_call_by_call_with_the_api_server_and_dns_first() -> None:
    world = IptWorld(
        *cluster("a", "b"),
        build.service("kubernetes", ip="10.96.0.3"),
        build.endpoint_slice("kubernetes", "10.244.3.1", "10.244.3.2"),
        build.service("kube-dns", namespace="kube-system", ip="10.96.0.4"),
        build.endpoint_slice("kube-dns", "10.244.4.1", "10.244.4.2", namespace="kube-system"),
        kernel=FakeKernel(batch=1),
    )
    steps = after_each_call(world, lambda: [n for n in (1, 2, 3, 4) if served(world, n)])
    world.sync()
    assert steps == [[], [3, 4], [1, 3, 4], [1, 2, 3, 4]]


# A restart, and kube-proxy's rules


def test_a_restart_is_without_a_gap_and_leaves_only_what_is_wanted() -> None:
    world = IptWorld(*cluster("a", "b", "c"), kernel=FakeKernel(batch=1))
    world.sync()
    world.put(*cluster("a", "b", "c", "d", endpoints=4))
    world.remove(build.service("c"))
    world.restart()
    steps = after_each_call(world, lambda: [world.reaches(f"10.96.0.{n}") for n in (1, 2)])
    world.settle()
    for step in steps:
        for number, found in enumerate(step, 1):
            both = [even(*(f"10.244.{number}.{i + 1}" for i in range(n))) for n in (2, 4)]
            assert found in both
    assert served(world, 4, 4)
    assert world.reaches("10.96.0.3") == even("10.96.0.3")
    fresh = IptWorld(*world.store.services.objects.values(), *world.store.slices.objects.values())
    fresh.settle()
    assert normal(world.kernel) == normal(fresh.kernel)


def test_a_restart_without_changes_writes_nothing() -> None:
    world = IptWorld(*cluster("a", "b", external_ips=("198.51.100.1",)))
    world.sync()
    before = normal(world.kernel)
    world.restart()
    done = len(world.kernel.commits)
    world.settle()
    assert normal(world.kernel) == before
    assert world.kernel.commits[done:] == []


def test_the_longest_names_fit_into_comments_so_that_a_restart_finds_them_whole() -> None:
    name, port = {"name": "s" * 63, "namespace": "n" * 63}, "p" * 15
    family: dict[str, Any] = {"family": V6}
    world = IptWorld(
        build.service(
            **name,
            ip="2001:db8:96::1",
            ports=(build.port(name=port, node_port=30080),),
            ingress_ips=("2001:db8:1::1",),
            source_ranges=("2001:db8:9::/48",),
            external_local=True,
            affinity_seconds=60,
        ),
        build.endpoint_slice(
            name["name"],
            *(f"2001:db8:1111:2222:3333:4444:5555:666{n}" for n in (1, 2)),
            namespace=name["namespace"],
            ports=(SlicePort(port, "tcp", 65535),),
            **family,
        ),
        **family,
    )
    world.sync()
    assert not world.quarantined()
    assert max(len(r.comment) for r in world.kernel.rules.rules(NAT, names.SERVICES)) > 143
    world.restart()
    done = len(world.kernel.commits)
    world.settle()
    assert world.kernel.commits[done:] == []


def test_the_mark_of_whose_chains_these_are_is_put_there_by_every_full_write_and_is_never_left_over() -> None:
    world = IptWorld(*cluster("a", "b"))
    world.sync()
    assert OWN_MARK in world.kernel.rules.tables[NAT]
    del world.kernel.rules.tables[NAT][OWN_MARK]  # as a kube-proxy does
    for _ in range(2):
        world.restart()
        world.remove(*cluster("b"))
        world.settle()
        assert not world.reconciler.cleanup_owed
        assert OWN_MARK in world.kernel.rules.tables[NAT]


def test_only_chains_that_are_wrong_are_written_again() -> None:
    world = IptWorld(*cluster("a", "b", affinity_seconds=60))
    world.sync()
    before = normal(world.kernel)
    wrong = sorted(service_chains(world.kernel))[0]
    world.kernel.flush(NAT, wrong)
    world.restart()
    done = len(world.kernel.commits)
    world.settle()
    assert normal(world.kernel) == before
    written = {chain.name for call in world.kernel.commits[done:] for chain in call.chains}
    assert written & service_chains(world.kernel) == {wrong}


def test_rules_that_nobody_knows_leave_the_chains_that_services_share() -> None:
    world = IptWorld(*cluster("a", "b"))
    world.sync()
    before = normal(world.kernel)
    stale = Rule("ACCEPT", "stale", protocol="tcp", destination="10.96.0.1/32", port=80)
    world.kernel.commit([Transaction(V4, insert=(Placed(NAT, names.SERVICES, stale),))])
    world.restart()
    world.settle()
    assert normal(world.kernel) == before


def test_node_ports_come_last_again_where_somebody_appended_a_rule() -> None:
    world = IptWorld(*cluster("a", ports=(build.port(node_port=30080),)))
    world.sync()
    before = world.kernel.rules.rules(NAT, names.SERVICES)
    world.kernel.rules.tables[NAT][names.SERVICES] = before[::-1]
    world.restart()
    world.settle()
    assert world.kernel.rules.rules(NAT, names.SERVICES) == before


def test_what_stands_in_the_way_of_others_rules_is_not_touched() -> None:
    kernel = FakeKernel()
    theirs = Chain(NAT, "CNI-HOSTPORT-DNAT", (Rule("RETURN"),))
    kernel.commit([Transaction(V4, chains=(theirs,), insert=(Placed(NAT, "PREROUTING", Rule(theirs.name)),))])
    world = IptWorld(*cluster("a"), kernel=kernel)
    world.settle()
    world.restart()
    world.settle()
    assert kernel.rules.rules(NAT, theirs.name) == list(theirs.rules)
    assert Rule(theirs.name) in kernel.rules.rules(NAT, "PREROUTING")


def test_a_stop_halfway_leaves_what_was_served_and_a_restart_ends_right() -> None:
    world = IptWorld(*cluster("a", "b", "c"), kernel=FakeKernel(batch=1))
    counted = count(1)

    def stop_after_two() -> None:
        world.stopped = next(counted) >= 2

    world.kernel.watchers.append(stop_after_two)
    with pytest.raises(StoppedError):
        world.sync()
    assert [served(world, n) for n in (1, 2, 3)] == [True, False, False]
    world.kernel.watchers.clear()
    world.stopped = False
    world.restart()
    steps = after_each_call(world, lambda: served(world, 1))
    world.settle()
    assert all(steps)
    fresh = IptWorld(*cluster("a", "b", "c"))
    fresh.settle()
    assert normal(world.kernel) == normal(fresh.kernel)


# What changes


CHANGES: dict[str, Callable[[], Object]] = {
    "more endpoints": lambda: build.endpoint_slice("a", "10.244.1.1", "10.244.1.2", "10.244.1.3"),
    "fewer endpoints": lambda: build.endpoint_slice("a", "10.244.1.2"),
    "no endpoints": lambda: build.endpoint_slice("a"),
    "an external address": lambda: build.service("a", external_ips=("198.51.100.1",)),
    "affinity": lambda: build.service("a", affinity_seconds=60),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_one_call_that_does_not_grow_with_the_cluster(change: Callable[[], Object]) -> None:
    sizes = set()
    for services in (1, 50):
        world = IptWorld(*cluster(*(["a"] + [f"b{i}" for i in range(services)])), kernel=FakeKernel(batch=1000))
        world.sync()
        listed, done = world.kernel.listings, len(world.kernel.commits)
        world.put(change())
        world.sync()
        assert world.kernel.listings == listed
        (call,) = world.kernel.commits[done:]
        assert world.reconciler.operations == call.size
        assert not {chain.name for chain in call.chains} & {names.SERVICES, names.NODE_PORTS}
        sizes.add(call.size)
    assert len(sizes) == 1


def test_nothing_is_written_where_nothing_changed() -> None:
    world = IptWorld(*cluster("a"))
    world.sync()
    done = len(world.kernel.commits)
    world.sync({build.key("a"), build.key("unknown")})
    assert len(world.kernel.commits) == done


def test_many_changes_are_written_in_calls_that_each_forward_right() -> None:
    letters = "abcdef"
    world = IptWorld(*cluster(*letters), kernel=FakeKernel(batch=4))
    world.sync()
    world.put(*cluster(*letters, endpoints=3))
    steps = after_each_call(world, lambda: [served(world, n, 2) or served(world, n, 3) for n in range(1, 7)])
    world.sync()
    assert len(steps) > 3
    assert all(map(all, steps))
    assert all(served(world, n, 3) for n in range(1, 7))


def test_a_deleted_service_leaves_nothing_behind() -> None:
    rich: dict[str, Any] = {
        "external_ips": ("198.51.100.1",),
        "ports": (build.port(node_port=30080),),
        "affinity_seconds": 60,
    }
    world = IptWorld(*cluster("a"))
    world.settle()
    before = normal(world.kernel)
    both = cluster("a", "b", **rich)
    world.put(*both[2:])
    world.settle()
    assert normal(world.kernel) != before
    world.remove(both[2])
    world.settle()
    assert normal(world.kernel) == before


def test_other_node_settings_are_in_every_rule() -> None:
    world = IptWorld(*cluster("a"))
    world.sync()
    world.settings = build.settings(V4, masquerade_all=True)
    world.settle()
    fresh = IptWorld(*cluster("a"), masquerade_all=True)
    fresh.settle()
    assert normal(world.kernel) == normal(fresh.kernel)


def test_many_new_chains_in_one_call_are_named_first_and_in_order() -> None:
    services = cluster(*(f"s{i}" for i in range(200)), endpoints=10)
    world = IptWorld(*services[:40], kernel=FakeKernel(batch=100_000))
    world.sync()
    old = service_chains(world.kernel)
    done = len(world.kernel.commits)
    world.put(*services)
    world.restart()
    world.sync()
    (call,) = world.kernel.commits[done:]
    new = service_chains(world.kernel) - old
    assert [chain.name for chain in call.chains[: len(new)]] == sorted(new)
    assert all(world.kernel.rules.rules(NAT, name) for name in new | old)
    assert served(world, 1, endpoints=10)
    assert served(world, 200, endpoints=10)


def test_other_addresses_that_take_node_ports_cost_one_chain() -> None:
    objects = cluster("a", ports=(build.port(node_port=30080),))
    world = IptWorld(*objects, node_port_addresses=("192.0.2.11",))
    world.sync()
    world.settings = build.settings(V4, node_port_addresses=("192.0.2.12", "192.0.2.13"))
    done, read = len(world.kernel.commits), world.kernel.listings
    world.settle()
    fresh = IptWorld(*objects, node_port_addresses=("192.0.2.12", "192.0.2.13"))
    fresh.sync()
    assert normal(world.kernel) == normal(fresh.kernel)
    (call,) = world.kernel.commits[done:]
    assert {chain.name for chain in call.chains} == {names.SERVICES}
    assert world.kernel.listings == read


def test_settings_whose_rules_are_refused_are_owed_until_they_are_written() -> None:
    world = IptWorld(*cluster("a"), node_port_addresses=("192.0.2.11",))
    world.sync()
    world.settings = build.settings(V4, node_port_addresses=("192.0.2.12",))
    world.kernel.refuse_next(2)
    with pytest.raises(KernelRefusedError):
        world.sync()
    world.settle()
    fresh = IptWorld(*cluster("a"), node_port_addresses=("192.0.2.12",))
    fresh.sync()
    assert normal(world.kernel) == normal(fresh.kernel)


@pytest.mark.parametrize(("endpoints", "commented"), [(LARGE, True), (LARGE + 1, False)])
def test_rules_of_endpoints_have_comments_in_small_clusters_only(endpoints: int, *, commented: bool) -> None:
    world = IptWorld(
        build.service(), build.endpoint_slice("web", *(f"10.1.{i >> 8}.{i & 255}" for i in range(endpoints)))
    )
    world.sync()
    comments = {
        bool(rule.comment)
        for name, rules in world.kernel.rules.tables[NAT].items()
        if name.startswith(names.ENDPOINT)
        for rule in rules
    }
    assert comments == {commented}
