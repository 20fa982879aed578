"""One family's passes: what is served after each commit, and what a pass costs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from proxyd.nft.layout import AFFINITY, COUNTERS, INVALID_DROPPED, TABLE_COMMENT
from proxyd.nft.objects import Element, Transaction
from proxyd.sync.nft import full
from proxyd.sync.order import StoppedError
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.sync.clusters import V4, V6, after_each_commit, cluster, generations, served
from tests.world import Object, World, even, normal

# The first start


def test_a_first_start_serves_every_service_evenly(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b", "c", endpoints=3), ruleset=ruleset)
    world.sync()
    assert all(served(world, number, 3) for number in (1, 2, 3))
    assert ruleset.tables[V4].comment == TABLE_COMMENT
    assert generations(world) == {1}
    assert world.reconciler.tally.services == 3
    assert world.reconciler.tally.total.endpoints == 9
    assert not world.reconciler.full_owed


def test_a_first_start_without_services_writes_the_fixed_chains(ruleset: FakeRuleset) -> None:
    world = World(ruleset=ruleset)
    world.sync()
    assert "nat-prerouting" in ruleset.contents(V4).chains
    assert not world.reconciler.full_owed


def test_the_other_family_serves_too(ruleset: FakeRuleset) -> None:
    world = World(
        build.service(ip="2001:db8:96::1"),
        build.endpoint_slice("web", "fd00:10:244:1::1", "fd00:10:244:1::2", family=V6),
        family=V6,
        ruleset=ruleset,
    )
    world.sync()
    assert world.reaches("2001:db8:96::1") == even("fd00:10:244:1::1", "fd00:10:244:1::2")


def test_each_commit_of_a_first_start_leaves_services_whole(
    ruleset: FakeRuleset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "CHUNK", 5)
    world = World(*cluster("a", "b", "c", "d"), ruleset=ruleset)
    steps = after_each_commit(world, lambda: [served(world, n) for n in (1, 2, 3, 4)])
    world.sync()
    assert len(steps) > 3
    assert [sum(step) for step in steps] == sorted(sum(step) for step in steps)
    assert all(steps[-1])


def test_the_api_server_and_dns_come_first(ruleset: FakeRuleset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full, "CHUNK", 1)
    world = World(
        *cluster("a", "b"),
        build.service("kubernetes", ip="10.96.0.3"),
        build.endpoint_slice("kubernetes", "10.244.3.1", "10.244.3.2"),
        build.service("kube-dns", namespace="kube-system", ip="10.96.0.4"),
        build.endpoint_slice("kube-dns", "10.244.4.1", "10.244.4.2", namespace="kube-system"),
        ruleset=ruleset,
    )
    steps = after_each_commit(world, lambda: [n for n in (1, 2, 3, 4) if served(world, n)])
    world.sync()
    # The chain that they share is there before the first of them.
    assert steps[:5] == [[], [], [3], [3, 4], [1, 3, 4]]


# A restart


def test_a_restart_serves_from_the_old_generation_until_the_switch(
    ruleset: FakeRuleset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "CHUNK", 5)
    world = World(*cluster("a", "b", "c"), ruleset=ruleset)
    world.sync()
    world.put(*cluster("a", "b", "c", "d", endpoints=4))
    world.remove(build.service("c"))
    world.restart()
    steps = after_each_commit(world, lambda: [(served(world, n, 2), served(world, n, 4)) for n in (1, 2)])
    world.settle()
    old, new = (True, False), (False, True)
    switch = steps.index([new, new])
    assert switch > 2
    assert steps == [[old, old]] * switch + [[new, new]] * (len(steps) - switch)
    assert world.reaches("10.96.0.3") == even("10.96.0.3")
    assert served(world, 4, 4)
    assert generations(world) == {2}


def test_a_restart_without_changes_ends_in_equal_rules(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b", external_ips=("198.51.100.1",)), ruleset=ruleset)
    world.sync()
    before = normal(ruleset, V4)
    world.restart()
    world.settle()
    assert normal(ruleset, V4) == before


def test_pins_outlive_a_restart(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", affinity_seconds=600), ruleset=ruleset)
    world.sync()
    (_, first), *_ = world.ask("10.96.0.1")
    (source, number) = first.pins[0]
    ruleset.commit(Transaction(V4, add_elements=(Element(AFFINITY, f"{source} . {number}"),)))
    world.restart()
    world.settle()
    assert ruleset.elements(V4)[AFFINITY] == {f"{source} . {number}": ""}
    assert world.reaches("10.96.0.1") == even(first.destination[0])


def test_counters_outlive_a_restart_and_everything_written_anew(ruleset: FakeRuleset) -> None:
    ruleset.commit(Transaction(V4, table=TABLE_COMMENT))
    ruleset.has_counted(V4, INVALID_DROPPED, 7)
    world = World(*cluster("a"), ruleset=ruleset)
    world.sync()
    world.restart()
    world.settle()
    world.reconciler.forget()
    world.settle()
    assert generations(world) == {3}
    assert ruleset.counters(V4) == dict.fromkeys(COUNTERS, 0) | {INVALID_DROPPED: 7}


def test_a_restart_after_a_stop_halfway_serves_all(ruleset: FakeRuleset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full, "CHUNK", 1)
    world = World(*cluster("a", "b", "c"), ruleset=ruleset)
    # The fixed chains, the chain for two endpoints, two Services.
    _stop_after(world, 4)
    with pytest.raises(StoppedError):
        world.sync()
    assert [served(world, n) for n in (1, 2, 3)] == [True, True, False]
    world.stopped = False
    ruleset.watchers.clear()
    world.restart()
    steps = after_each_commit(world, lambda: served(world, 1) and served(world, 2))
    world.settle()
    assert all(steps)
    assert served(world, 3)
    assert generations(world) == {2}


def test_a_stop_halfway_through_a_restart_leaves_the_old_generation_in_use(
    ruleset: FakeRuleset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "CHUNK", 1)
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.sync()
    world.put(*cluster("a", "b", endpoints=3))
    world.restart()
    _stop_after(world, 2)
    with pytest.raises(StoppedError):
        world.sync()
    assert served(world, 1, 2)
    assert served(world, 2, 2)


def _stop_after(world: World, commits: int) -> None:
    counted = count(1)

    def watch() -> None:
        world.stopped = next(counted) >= commits

    world.ruleset.watchers.append(watch)


# Incremental passes


@pytest.mark.parametrize(
    "change",
    [
        lambda: build.endpoint_slice("a", "10.244.1.1", "10.244.1.2", "10.244.1.3"),
        lambda: build.endpoint_slice("a", "10.244.1.2"),
        lambda: build.endpoint_slice("a"),
        lambda: build.service("a", external_ips=("198.51.100.1",)),
        lambda: build.service("a", affinity_seconds=60),
    ],
    ids=["more endpoints", "fewer endpoints", "no endpoints", "an external address", "affinity"],
)
def test_an_incremental_pass_is_three_transactions_at_most_and_does_not_grow_with_the_cluster(
    change: Callable[[], Object],
) -> None:
    sizes = set()
    for services in (1, 50):
        world = World(*cluster(*(["a"] + [f"b{i}" for i in range(services)])))
        world.sync()
        listed, done = world.ruleset.listings, len(world.ruleset.commits)
        world.put(change())
        world.sync()
        assert world.ruleset.listings == listed
        transactions = world.ruleset.commits[done:]
        assert len(transactions) <= 3
        assert world.reconciler.operations == sum(each.size for each in transactions)
        sizes.add(world.reconciler.operations)
    assert len(sizes) == 1


def test_no_element_leads_to_a_chain_that_is_as_new_as_itself(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b", external_ips=("198.51.100.1",)), ruleset=ruleset)
    world.sync()
    local = build.service("b", external_ips=("198.51.100.1",), external_local=True, affinity_seconds=60)
    for change in (build.endpoint_slice("a", "10.244.1.1"), local, build.service("a", affinity_seconds=60)):
        world.put(change)
        world.sync()
    for transaction in ruleset.commits[1:]:
        made = {chain.name for chain in transaction.chains}
        assert made.isdisjoint(element.value.removeprefix("goto ") for element in transaction.add_elements)


def test_what_is_refused_until_now_is_served_before_the_refusal_goes(ruleset: FakeRuleset) -> None:
    world = World(build.service("a", ip="10.96.0.1"), build.endpoint_slice("a"), ruleset=ruleset)
    world.sync()
    steps = after_each_commit(
        world, lambda: (served(world, 1, 1), "no-endpoints" in str(ruleset.commits[-1].delete_elements))
    )
    world.put(build.endpoint_slice("a", "10.244.1.1"))
    world.sync()
    assert steps == [(False, False), (True, False), (True, True)]


def test_one_endpoint_more_or_less_costs_a_few_operations(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", endpoints=50), ruleset=ruleset)
    world.sync()
    world.put(build.endpoint_slice("a", *(f"10.244.1.{i + 1}" for i in range(1, 50))))
    world.sync()
    # The chain for 49 (chain and two rules) before what leads to it; the verdict (delete, add), the last endpoint into the
    # hole (two deletions and one addition), the hairpin element.
    assert [each.size for each in ruleset.commits[-2:]] == [3, 2 + 3 + 1]
    assert world.reaches("10.96.0.1") == even(*(f"10.244.1.{i + 1}" for i in range(1, 50)))


def test_nothing_is_written_where_nothing_changed(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a"), ruleset=ruleset)
    world.sync()
    done = len(ruleset.commits)
    world.sync()
    world.sync({build.key("a"), build.key("unknown")})
    assert len(ruleset.commits) == done
    assert world.reconciler.operations == 0


def test_a_deleted_service_leaves_nothing_behind(ruleset: FakeRuleset) -> None:
    rich: dict[str, Any] = {
        "external_ips": ("198.51.100.1",),
        "ports": (build.port(node_port=30080),),
        "affinity_seconds": 60,
    }
    world = World(*cluster("a"), ruleset=ruleset)
    world.settle()
    before = normal(ruleset, V4)
    both = cluster("a", "b", **rich)
    world.put(*both[2:])
    world.settle()
    assert normal(ruleset, V4) != before
    world.remove(both[2])
    world.settle()
    assert normal(ruleset, V4) == before
