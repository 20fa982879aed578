"""What becomes of refusals, whoever is at fault: full passes, quarantine, work that stays owed."""

from __future__ import annotations

from itertools import count

import pytest

from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import FAMILIES, EndpointSlice, Family, Reason, Service, ServicePort
from proxyd.nft.layout import COUNTERS
from proxyd.nft.objects import Element, Transaction
from proxyd.sync.nft.reconcile import NftReconciler
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.sync.clusters import V4, after_each_commit, cluster, generations, served, slices, touches
from tests.world import Object, World, even

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


def test_where_only_what_goes_last_is_refused_everything_is_written_anew(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b", endpoints=0), ruleset=ruleset)
    world.sync()
    ruleset.refuse_if(lambda each: each.delete_elements != () and each.add_elements == ())
    world.put(*cluster("a"))
    world.sync()
    assert served(world, 1)
    assert generations(world) == {1, 2}
    assert not world.quarantined()
    ruleset.recover()
    world.settle()
    world.put(build.endpoint_slice("a"))
    world.sync()
    assert (world.reaches("10.96.0.1"), world.reaches("10.96.0.2")) == (even("reject"), even("reject"))


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


def test_a_refused_service_costs_the_others_nothing_however_often_it_changes(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b", "c"), ruleset=ruleset)
    ruleset.refuse_if(touches("10.96.0.2"))
    world.settle()
    for endpoints in (3, 1, 4):
        world.put(*cluster("a", "b", endpoints=endpoints))
        world.sync()
        assert not world.reconciler.rewritten
        assert world.reconciler.refusals == 1
        assert served(world, 1, endpoints)
        assert served(world, 3)
        assert world.quarantined() == {build.key("b")}
    world.settle()
    ruleset.recover()
    world.retry_quarantined()
    assert served(world, 2, 4)
    assert not world.quarantined()


def test_settings_of_the_node_change_beside_a_refused_service(ruleset: FakeRuleset) -> None:
    ports = (build.port(node_port=30080),)
    world = World(*cluster("a", ports=ports), build.service("b", ip="10.96.0.2"), *slices("b"), ruleset=ruleset)
    ruleset.refuse_if(touches("10.96.0.2"))
    world.settle()
    world.settings = build.settings(V4, node_port_addresses=("203.0.113.9",))
    world.put(*slices("b"))
    world.sync()
    assert not world.reconciler.rewritten
    assert world.reconciler.settings == world.settings
    assert world.quarantined() == {build.key("b")}
    assert world.reaches("203.0.113.9", 30080) == world.reaches("10.96.0.1")
    assert world.reaches(build.NODE_IP[V4], 30080) == even(build.NODE_IP[V4])


def test_a_refused_service_whose_retry_was_carried_out_after_all_goes_when_it_is_deleted(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    ruleset.refuse_if(touches("10.96.0.2"))
    world.sync()
    ruleset.recover()
    ruleset.unclear_if(touches("10.96.0.2"))
    world.retry_quarantined()
    assert served(world, 2)
    world.remove(*cluster("a", "b")[2:])
    world.settle()
    assert world.reaches("10.96.0.2") == even("10.96.0.2")
    assert served(world, 1)
    assert not world.quarantined()


@pytest.mark.parametrize("names", ["a", "ab"])
def test_a_service_whose_part_of_a_full_sync_was_carried_out_after_all_goes_when_it_is_deleted(
    ruleset: FakeRuleset, names: str
) -> None:
    world = World(*cluster(*names), ruleset=ruleset)
    ruleset.unclear_if(touches("10.96.0.1"))
    world.sync()
    assert world.quarantined() == {build.key("a")}
    assert served(world, 1)
    world.remove(*cluster("a"))
    world.settle()
    assert world.reaches("10.96.0.1") == even("10.96.0.1")
    assert len(names) == 1 or served(world, 2)
    assert not world.quarantined()


def test_a_commit_with_an_unclear_outcome_in_a_full_sync_is_made_up_for(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    ruleset.unclear_if(touches("10.96.0.1"))
    world.sync()
    ruleset.recover()
    world.sync()
    assert served(world, 1)
    assert not world.quarantined()
    assert not world.reconciler.full_owed


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


def test_full_syncs_that_end_with_a_fault_do_not_pile_up_either(ruleset: FakeRuleset) -> None:
    world = World(*cluster("a", "b"), ruleset=ruleset)
    world.settle()
    world.restart()

    def break_off() -> None:
        if touches("10.96.0.2")(ruleset.commits[-1]):
            raise ZeroDivisionError

    ruleset.watchers.append(break_off)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            world.sync()
        assert generations(world) == {1}
        assert served(world, 1)
        assert served(world, 2)
    ruleset.watchers.clear()
    world.settle()
    assert generations(world) == {2}


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


# Faults of ours


def poisoned_service(name: str = "bad") -> Service:
    """A Service as no decoder makes it, so that deciding about it fails."""
    return build.service(name, ip="10.96.0.9", ports=(ServicePort("http", "tcp", None),))  # type: ignore[arg-type]


def poisoned_slice(name: str = "bad") -> EndpointSlice:
    return EndpointSlice("default", f"{name}-1", build.key(name), V4, (build.endpoint(),), None)  # type: ignore[arg-type]


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
    world.reconciler = NftReconciler(
        family, world.ruleset, world.store.service, progress=lambda *each: told.append(each)
    )
    world.sync()
    assert told[-1] == (family, 2, 2)
