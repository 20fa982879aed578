"""What nothing in the kernel uses any more: deleted later, also after refusals."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from proxyd.kernel.refused import KernelRefusedError
from proxyd.nft.objects import Transaction
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.sync.clusters import V4, cluster, generations, served
from tests.world import World


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


@pytest.mark.parametrize("done", [True, False], ids=["carried-out", "refused"])
def test_a_cleanup_whose_outcome_was_unclear_is_finished_later(ruleset: FakeRuleset, done: bool) -> None:
    world = World(*cluster("a", endpoints=2), ruleset=ruleset)
    world.settle()
    world.put(*cluster("a", endpoints=3))
    world.sync()
    (ruleset.unclear_if if done else ruleset.refuse_if)(lambda t: bool(t.delete_chains))
    with pytest.raises(KernelRefusedError):
        world.reconciler.cleanup()
    ruleset.recover()
    assert world.reconciler.cleanup_owed is not done
    world.reconciler.cleanup()
    assert not world.reconciler.cleanup_owed
    assert "g1/lb-tcp-2" not in ruleset.contents(V4).chains
    # What is known of the kernel is right again.
    world.put(*cluster("a", endpoints=2))
    world.sync()
    assert not world.reconciler.rewritten
    assert served(world, 1, 2)


@pytest.mark.parametrize("restart", [False, True], ids=["chain", "generation"])
def test_what_was_in_use_just_now_is_not_deleted(ruleset: FakeRuleset, restart: bool) -> None:
    world = World(*cluster("a", endpoints=2), ruleset=ruleset, grace=3600.0)
    world.sync()
    before = ruleset.contents(V4).chains
    if restart:
        world.restart()
    world.put(*cluster("a", endpoints=3))
    world.sync()
    world.reconciler.cleanup()
    assert world.reconciler.cleanup_owed
    assert before <= ruleset.contents(V4).chains
    assert not any(t.delete_containers or t.delete_chains for t in ruleset.commits)


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


def test_an_old_generation_is_not_forgotten_where_a_new_one_is_refused(ruleset: FakeRuleset) -> None:
    """A kernel short of room would have it no more if what takes the room stayed."""
    world = World(*cluster("a"), ruleset=ruleset)
    for _ in range(2):
        world.reconciler.forget()
        world.sync()
    assert generations(world) == {1, 2}
    ruleset.refuse_if(lambda transaction: bool(transaction.containers))
    world.reconciler.forget()
    assert not world.try_sync()
    world.reconciler.cleanup()
    assert generations(world) == {2}


def test_a_generation_in_use_is_not_taken_for_an_old_one_of_its_number(ruleset: FakeRuleset) -> None:
    """Somebody deletes the table while an old generation is left over, and the number of that is used again."""
    names = [f"s{number:02}" for number in range(24)]  # more than may be refused one by one
    world = World(*cluster(*names), ruleset=ruleset)
    for _ in range(2):
        world.reconciler.forget()
        world.sync()
    ruleset.commit(Transaction(V4, delete_table=True))
    world.reconciler.forget()
    first = "10.96.0.1 "
    ruleset.refuse_if(
        lambda transaction: any(
            e.container == "g1/service-ips" and not e.key.startswith(first) for e in transaction.add_elements
        )
    )
    assert not world.try_sync()
    assert served(world, 1)
    with suppress(KernelRefusedError):
        world.reconciler.cleanup()
    assert served(world, 1)
    ruleset.recover()
    world.settle()
    assert all(served(world, number) for number in (1, 24))
