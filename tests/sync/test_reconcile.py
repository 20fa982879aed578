"""One family's passes: what is served after each commit, what a pass costs, and what becomes of refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from proxyd.kernel.ruleset import KernelRefusedError
from proxyd.model import FAMILIES, EndpointSlice, Family, LocalDetector, Reason, Service, ServicePort
from proxyd.nft.layout import AFFINITY, COUNTERS, INVALID_DROPPED, TABLE_COMMENT, generation_of
from proxyd.nft.objects import Element, Transaction
from proxyd.sync import full
from proxyd.sync.full import StoppedError
from proxyd.sync.reconcile import Reconciler
from tests import build
from tests.fakes.packets import Host
from tests.fakes.ruleset import FakeRuleset
from tests.world import Object, World, even, normal

V4, V6 = FAMILIES


def cluster(*names: str, endpoints: int = 2, **fields: Any) -> list[Object]:
    """Services 10.96.0.1, .2, ... with these names, each with endpoints 10.244.<its number>.1, .2, ..."""
    built: list[Object] = []
    for number, name in enumerate(names, 1):
        built.append(build.service(name, ip=f"10.96.0.{number}", **fields))
        built.append(build.endpoint_slice(name, *(f"10.244.{number}.{i + 1}" for i in range(endpoints))))
    return built


def served(world: World, number: int, endpoints: int = 2) -> bool:
    """Whether the Service with this number of ``cluster`` leads evenly to all of its endpoints."""
    return world.reaches(f"10.96.0.{number}") == even(*(f"10.244.{number}.{i + 1}" for i in range(endpoints)))


def touches(address: str) -> Callable[[Transaction], bool]:
    """Tells transactions that add anything for a destination."""
    return lambda transaction: any(each.key.startswith(f"{address} ") for each in transaction.add_elements)


def after_each_commit(world: World, note: Callable[[], object]) -> list[Any]:
    """Collects what ``note`` gives after each commit from now on."""
    noted: list[Any] = []
    world.ruleset.watchers.append(lambda: noted.append(note()))
    return noted


def generations(world: World) -> set[int]:
    contents = world.ruleset.contents(world.family)
    found = {generation_of(name) for name in (*contents.chains, *contents.containers)}
    return {each for each in found if each is not None}


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
    assert steps[:4] == [[], [3], [3, 4], [1, 3, 4]]


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
    _stop_after(world, 3)
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
def test_an_incremental_pass_is_one_transaction_that_does_not_grow_with_the_cluster(
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
        (transaction,) = world.ruleset.commits[done:]
        assert world.reconciler.operations == transaction.size
        sizes.add(transaction.size)
    assert len(sizes) == 1


def test_one_endpoint_more_or_less_costs_a_few_operations(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", endpoints=50), ruleset=ruleset)
    world.sync()
    world.put(build.endpoint_slice("a", *(f"10.244.1.{i + 1}" for i in range(1, 50))))
    world.sync()
    # The verdict (delete, add), the chain for 49 (chain and two rules), the last endpoint into the hole (two deletions and
    # one addition), the hairpin element.
    assert ruleset.commits[-1].size == 2 + 3 + 3 + 1
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


# Refusals


def test_a_refused_transaction_is_followed_by_a_full_sync_that_serves_all(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.sync()
    ruleset.refuse_next()
    world.put(*cluster("a", "b", "c", endpoints=3))
    steps = after_each_commit(world, lambda: [world.reaches(f"10.96.0.{n}") != even(f"10.96.0.{n}") for n in (1, 2)])
    world.sync()
    assert all(map(all, steps))
    assert all(served(world, n, 3) for n in (1, 2, 3))
    assert not world.quarantined()
    assert ruleset.listings > 1


def test_rules_changed_by_a_stranger_are_written_anew(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.sync()
    ruleset.commit(Transaction(V4, delete_elements=(Element("g1/service-ips", "10.96.0.1 . tcp . 80"),)))
    assert not served(world, 1)
    world.put(build.endpoint_slice("a"))
    world.sync()
    assert world.reaches("10.96.0.1") == even("reject")
    assert served(world, 2)


def test_a_table_deleted_by_a_stranger_comes_back(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.sync()
    ruleset.commit(Transaction(V4, delete_table=True))
    world.put(build.endpoint_slice("a", "10.244.1.1", "10.244.1.2", "10.244.1.3"))
    world.sync()
    assert served(world, 1, 3)
    assert served(world, 2)
    assert ruleset.counters(V4) == dict.fromkeys(COUNTERS, 0)


@pytest.mark.parametrize("culprit", range(1, 8))
def test_only_the_culprit_is_quarantined(ruleset: FakeRuleset, culprit: int) -> None:
    world = World(*cluster(*"abcdefg"), ruleset=ruleset)
    ruleset.refuse_if(touches(f"10.96.0.{culprit}"))
    world.sync()
    assert world.quarantined() == {build.key("abcdefg"[culprit - 1])}
    assert [n for n in range(1, 8) if not served(world, n)] == [culprit]
    assert world.reconciler.tally.services == 6
    assert not world.reconciler.full_owed


def test_a_service_refused_while_running_is_quarantined_and_others_go_on(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.sync()
    ruleset.refuse_if(touches("10.96.0.3"))
    world.put(*cluster("a", "b", "c"))
    world.settle()
    assert world.quarantined() == {build.key("c")}
    world.put(*cluster("a", "b", endpoints=3))
    world.sync()
    assert served(world, 1, 3)
    assert served(world, 2, 3)
    assert world.quarantined() == {build.key("c")}


def test_a_quarantined_service_is_tried_again_when_it_changes(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    ruleset.refuse_if(touches("10.96.0.2"))
    world.sync()
    ruleset.recover()
    world.put(build.endpoint_slice("b", "10.244.2.1", "10.244.2.2", "10.244.2.3"))
    world.sync()
    assert served(world, 2, 3)
    assert not world.quarantined()


def test_a_quarantined_service_that_is_deleted_is_forgotten(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    ruleset.refuse_if(touches("10.96.0.2"))
    world.sync()
    world.remove(build.service("b"))
    world.sync()
    assert not world.quarantined()
    assert world.reconciler.findings == {}


def test_too_many_culprits_are_an_error_and_not_a_quarantine(ruleset: FakeRuleset) -> None:
    names = [f"s{i}" for i in range(1, 40)]
    world = World(*cluster(*names), ruleset=ruleset)
    ruleset.refuse_if(lambda t: any("service-ips" in each.container for each in t.add_elements))
    with pytest.raises(KernelRefusedError):
        world.sync()
    assert world.reconciler.full_owed
    ruleset.recover()
    world.sync()
    assert all(served(world, n + 1) for n in range(len(names)))
    assert not world.quarantined()


def test_while_everything_is_refused_all_work_stays_owed(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b", "c"), ruleset=ruleset)
    world.sync()
    ruleset.refuse_family(V4)
    world.put(*cluster("a", endpoints=3))
    with pytest.raises(KernelRefusedError):
        world.sync()
    world.remove(build.service("b"))
    with pytest.raises(KernelRefusedError):
        world.sync()
    assert served(world, 1, 2)
    ruleset.recover()
    world.sync()
    assert served(world, 1, 3)
    assert world.reaches("10.96.0.2") == even("10.96.0.2")
    assert served(world, 3)


def test_a_commit_that_wrongly_says_refused_costs_a_full_sync_and_nothing_else(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.sync()
    first = iter([True])
    ruleset.unclear_if(lambda _: next(first, False))
    world.put(*cluster("a", "b", endpoints=3))
    world.settle()
    assert served(world, 1, 3)
    assert served(world, 2, 3)
    assert generations(world) == {2}


@pytest.mark.parametrize("commit", range(5))
def test_a_full_sync_gets_over_an_unclear_commit_anywhere(ruleset: FakeRuleset, commit: int) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.settle()
    world.restart()
    counted = count()
    ruleset.unclear_if(lambda _: next(counted) == commit)
    steps = after_each_commit(world, lambda: served(world, 1) and served(world, 2))
    world.settle()
    assert all(steps)
    assert len(generations(world)) == 1


def test_failed_full_syncs_do_not_pile_up_in_the_kernel(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.settle()
    world.restart()
    ruleset.refuse_if(lambda t: any(chain.name == "nat-prerouting" for chain in t.chains))
    for _ in range(5):
        assert not world.try_sync()
        assert len(generations(world)) <= 2
    ruleset.recover()
    world.settle()
    assert len(generations(world)) == 1


def test_a_first_start_that_fails_does_not_pile_up_either(ruleset: FakeRuleset) -> None:
    world = World(*cluster(*(f"s{i}" for i in range(20))), ruleset=ruleset)
    ruleset.refuse_if(lambda t: any("service-ips" in each.container for each in t.add_elements))
    for _ in range(5):
        assert not world.try_sync()
        assert len(generations(world)) <= 2
    ruleset.recover()
    world.settle()
    assert len(generations(world)) == 1


def test_findings_stay_while_full_syncs_fail(ruleset: FakeRuleset) -> None:
    world = World(build.service("bad", ip="not an address"), *cluster("a"), ruleset=ruleset)
    world.sync()
    before = world.reconciler.findings
    assert [each.reason for each in before[build.key("bad")]] == [Reason.INVALID_ADDRESS]
    world.put(*cluster(*(f"a{i}" for i in range(20))))
    ruleset.refuse_if(lambda t: any("service-ips" in each.container for each in t.add_elements))
    world.put(*cluster("a", endpoints=3))
    assert not world.try_sync()
    assert before.items() <= world.reconciler.findings.items()


# Cleanup


def test_cleanup_deletes_chains_that_nothing_uses(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", endpoints=2), ruleset=ruleset)
    world.settle()
    world.put(*cluster("a", endpoints=3))
    world.sync()
    assert world.reconciler.cleanup_owed
    assert "g1/lb-tcp-2" in ruleset.contents(V4).chains
    world.reconciler.cleanup()
    assert "g1/lb-tcp-2" not in ruleset.contents(V4).chains
    assert not world.reconciler.cleanup_owed
    assert served(world, 1, 3)


def test_a_chain_that_is_used_again_is_not_deleted(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", endpoints=2), ruleset=ruleset)
    world.settle()
    for endpoints in (3, 2):
        world.put(*cluster("a", endpoints=endpoints))
        world.sync()
    world.reconciler.cleanup()
    contents = ruleset.contents(V4)
    assert "g1/lb-tcp-2" in contents.chains
    assert "g1/lb-tcp-3" not in contents.chains


def test_cleanup_deletes_external_chains_with_those_they_go_to(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", external_ips=("198.51.100.1",), affinity_seconds=30), ruleset=ruleset)
    world.settle()
    world.remove(build.service("a"))
    world.settle()
    assert not [name for name in ruleset.contents(V4).chains if "external-affinity" in name or "/affinity" in name]


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_refused_cleanup_is_owed_and_done_later(ruleset: FakeRuleset, refusals: int) -> None:
    world = World(*cluster("a"), ruleset=ruleset)
    world.settle()
    world.restart()
    world.sync()
    ruleset.refuse_next(refusals)
    for _ in range(refusals):
        with pytest.raises(KernelRefusedError):
            world.reconciler.cleanup()
        assert world.reconciler.cleanup_owed
    world.reconciler.cleanup()
    assert not world.reconciler.cleanup_owed
    assert generations(world) == {2}


def test_a_cleanup_refused_between_its_two_commits_is_finished_later(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a"), ruleset=ruleset)
    world.settle()
    world.restart()
    world.sync()
    ruleset.refuse_if(lambda t: bool(t.delete_chains))
    with pytest.raises(KernelRefusedError):
        world.reconciler.cleanup()
    ruleset.recover()
    world.reconciler.cleanup()
    assert generations(world) == {2}


def test_an_old_generation_that_a_stranger_took_apart_is_still_deleted(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a"), ruleset=ruleset)
    world.settle()
    world.restart()
    world.sync()
    ruleset.commit(
        Transaction(
            V4,
            chains=(_emptied(ruleset, "g1/masquerading"),),
            delete_containers=(("g1/hairpin", False),),
            delete_chains=("g1/masquerading",),
        )
    )
    with pytest.raises(KernelRefusedError):
        world.reconciler.cleanup()
    world.reconciler.cleanup()
    assert generations(world) == {2}


def _emptied(ruleset: FakeRuleset, name: str) -> Any:
    chain = ruleset.tables[V4].chains[name]
    return type(chain)(name, ())


# Keys that move between Services


def with_node_port(name: str, node_port: int, ip: str) -> Service:
    return build.service(name, ip=ip, ports=(build.port(node_port=node_port),))


def slices(*names: str) -> list[EndpointSlice]:
    return [build.endpoint_slice(name, f"10.244.{n}.1") for n, name in enumerate(names, 1)]


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


# Faults of ours


def poisoned_service(name: str = "bad") -> Service:
    """A Service as no decoder makes it, so that deciding about it fails."""
    return build.service(name, ip="10.96.0.9", ports=(ServicePort("http", "tcp", None),))  # type: ignore[arg-type]


def poisoned_slice(name: str = "bad") -> EndpointSlice:
    return EndpointSlice("default", f"{name}-1", build.key(name), V4, (None,), build.endpoint_slice().ports)  # type: ignore[arg-type]


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize(
    "poison", [[poisoned_service()], [build.service("bad", ip="10.96.0.9"), poisoned_slice()]], ids=["service", "slice"]
)
def test_an_internal_error_about_one_service_harms_no_other(
    ruleset: FakeRuleset, poison: list[Object], running: bool
) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    if running:
        world.sync()
    world.put(*cluster("a", "b", endpoints=3), *poison)
    world.sync()
    assert served(world, 1, 3)
    assert served(world, 2, 3)
    assert [each.reason for each in world.reconciler.findings[build.key("bad")]] == [Reason.INTERNAL_ERROR]


def test_a_service_gone_while_a_pass_failed_no_longer_holds_its_address(ruleset: FakeRuleset) -> None:
    winner = build.service("a", ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020-01-01T00:00:00Z")
    world = World(winner, build.service("b", ip="10.96.0.2", external_ips=("198.51.100.1",)), *slices("a", "b"))
    world.sync()
    world.remove(winner)
    # What was taken from the store is lost with the pass that failed, so nothing may build on what was known.
    world.store.take()
    world.reconciler.forget()
    world.sync()
    assert world.reaches("198.51.100.1") == even("10.244.2.1")
    assert world.reconciler.findings == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_progress_is_told_up_to_the_end(family: Family) -> None:
    told: list[tuple[Family, int, int]] = []
    world = World(*cluster("a", "b"), family=family)
    world.reconciler = Reconciler(family, world.ruleset, world.store.service, progress=lambda *each: told.append(each))
    world.sync()
    assert told[-1] == (family, 2, 2)
