"""Passes in iptables mode when the kernel refuses, and when others change what is there."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.ipt import names
from proxyd.ipt.objects import Rule, Table, Transaction
from proxyd.ipt.ownership import OWN_MARK
from proxyd.model import Family
from tests import build
from tests.fakes.ipt_kernel import FakeKernel
from tests.ipt_world import IptWorld, normal
from tests.sync.clusters import cluster
from tests.sync.ipt_passes import after_each_call, drift, served, service_chains, touches
from tests.world import even

V4, V6 = Family.IPV4, Family.IPV6
NAT, FILTER = Table.NAT, Table.FILTER

# Refusals


def test_a_refused_call_is_followed_by_a_full_write_that_serves_all() -> None:
    world = IptWorld(*cluster("a", "b"))
    world.sync()
    world.kernel.refuse_next()
    world.put(*cluster("a", "b", "c", endpoints=3))
    steps = after_each_call(world, lambda: [world.reaches(f"10.96.0.{n}") != even(f"10.96.0.{n}") for n in (1, 2)])
    world.sync()
    assert all(map(all, steps))
    assert all(served(world, n, 3) for n in (1, 2, 3))
    assert world.reconciler.rewritten
    assert not world.quarantined()


@pytest.mark.parametrize("culprit", range(1, 8))
@pytest.mark.parametrize("batch", [1, 1000])
def test_only_the_culprit_is_quarantined_until_it_is_taken(culprit: int, batch: int) -> None:
    world = IptWorld(*cluster(*"abcdefg"), kernel=FakeKernel(batch=batch))
    world.kernel.refuse_if(touches(culprit))
    world.sync()
    assert world.quarantined() == {build.key("abcdefg"[culprit - 1])}
    assert [n for n in range(1, 8) if not served(world, n)] == [culprit]
    world.kernel.recover()
    world.retry_quarantined()
    assert served(world, culprit)
    assert not world.quarantined()


def test_a_culprit_among_running_services_costs_the_others_nothing() -> None:
    world = IptWorld(*cluster("a", "b", "c"))
    world.sync()
    world.kernel.refuse_if(touches(2))
    world.put(*cluster("a", "b", "c", endpoints=3))
    steps = after_each_call(world, lambda: [served(world, n, 2) or served(world, n, 3) for n in (1, 3)])
    world.sync()
    assert all(map(all, steps))
    assert world.quarantined() == {build.key("b")}
    assert served(world, 1, 3)
    assert served(world, 3, 3)


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_lock_that_somebody_holds_is_nobodys_fault(calls: int) -> None:
    world = IptWorld(*cluster(*"abcdefg"), kernel=FakeKernel(batch=1))
    world.kernel.lock_after(calls)
    assert not world.try_sync()
    assert world.reconciler.counts.locked == 1
    assert not world.quarantined()
    world.kernel.recover()
    world.sync()
    assert all(served(world, n) for n in range(1, 8))


def test_a_tool_that_is_ended_is_nobodys_fault() -> None:
    world = IptWorld(*cluster("a"))
    world.settle()
    world.restart()
    world.put(*cluster("a", endpoints=3))
    world.kernel.end_once(touches(1))
    assert not world.try_sync()
    assert served(world, 1)
    assert not world.quarantined()
    world.sync()
    assert served(world, 1, 3)


def test_a_tool_that_is_ended_has_less_to_do_next() -> None:
    world = IptWorld(*cluster(*"abcd"))
    world.kernel.end_once(touches(3))
    world.sync()
    assert all(served(world, n) for n in range(1, 5))


def test_rules_that_cannot_be_read_are_nobodys_fault() -> None:
    world = IptWorld(*cluster(*"ab"))
    world.settle()
    world.restart()
    world.put(*cluster("a", "b", endpoints=3))

    def ends(transaction: Transaction) -> bool:
        found = touches(1)(transaction)
        if found:
            # What was written then has to be read.
            world.kernel.unreadable_next()
        return found

    world.kernel.end_once(ends)
    assert not world.try_sync()
    assert not world.quarantined()
    world.sync()
    assert all(served(world, n, 3) for n in (1, 2))


def test_a_lock_that_somebody_holds_when_a_refused_service_changes_leaves_it_owed() -> None:
    world = IptWorld(*cluster("a", "b"))
    world.kernel.refuse_if(touches(2))
    world.sync()
    world.kernel.recover()
    world.kernel.lock_after(0)
    world.put(*cluster("a", "b", endpoints=3)[2:])
    assert not world.try_sync()
    world.kernel.recover()
    world.sync()
    assert served(world, 2, 3)
    assert not world.quarantined()


def test_a_refused_service_costs_the_others_nothing_however_often_it_changes() -> None:
    world = IptWorld(*cluster("a", "b", "c"))
    world.kernel.refuse_if(touches(2))
    world.settle()
    listings = world.kernel.listings
    for endpoints in (3, 1, 4):
        world.put(*cluster("a", "b", endpoints=endpoints))
        world.sync()
        assert not world.reconciler.rewritten
        assert world.reconciler.refusals == 1
        assert served(world, 1, endpoints)
        assert served(world, 3)
        assert world.quarantined() == {build.key("b")}
    assert world.kernel.listings == listings
    world.kernel.recover()
    world.retry_quarantined()
    assert served(world, 2, 4)


RANGED = [
    build.service("x", ip="10.96.0.50", ingress_ips=("203.0.113.10",), source_ranges=("192.0.2.0/24",)),
    build.endpoint_slice("x", "10.244.50.1"),
]


def lacking(table: Table, rule: Rule) -> bool:
    """Has a kernel refuse RANGED in the table filter, once it has taken its rules in the table nat."""
    return table is FILTER and (rule.destination or "").startswith("203.0.113.10")


@pytest.mark.parametrize("batch", [1, 1000])
@pytest.mark.parametrize("running", [True, False])
def test_a_service_refused_by_one_table_only_leaves_nothing_in_the_others(running: bool, batch: int) -> None:
    world = IptWorld(*cluster(*"abcdefg"), kernel=FakeKernel(batch=batch))
    world.settle()
    before = normal(world.kernel)
    if not running:
        world = IptWorld(*cluster(*"abcdefg"), kernel=FakeKernel(batch=batch))
    world.kernel.rules.lacking = lacking
    world.put(*RANGED)
    world.settle()
    assert world.quarantined() == {build.key("x")}
    assert normal(world.kernel) == before
    for _ in range(3):
        world.retry_quarantined()
        assert not world.reconciler.full_owed
        world.settle()
        assert normal(world.kernel) == before
        world.put(build.endpoint_slice("x", "10.244.50.2"))
        world.settle()
        assert normal(world.kernel) == before


def test_a_service_refused_by_one_table_only_is_gone_when_it_is_deleted() -> None:
    world = IptWorld(*cluster(*"abcdefg"))
    world.settle()
    before = normal(world.kernel)
    world.kernel.rules.lacking = lacking
    world.put(*RANGED)
    world.sync()
    for _ in range(3):
        world.retry_quarantined()
    world.remove(*RANGED)
    world.settle()
    assert normal(world.kernel) == before
    assert not world.quarantined()


def test_a_refused_service_of_which_only_the_first_calls_are_taken_leaves_nothing() -> None:
    world = IptWorld(*cluster("a"), kernel=FakeKernel(batch=1))
    world.settle()
    before = normal(world.kernel)
    world.kernel.refuse_if(lambda t: any(each.rule.destination == "10.96.0.2/32" for each in t.insert))
    for endpoints in (2, 3, 1):
        world.put(*cluster("a", "b", endpoints=endpoints)[2:])
        world.settle()
        world.retry_quarantined()
    world.remove(*cluster("a", "b")[2:])
    world.settle()
    assert normal(world.kernel) == before


def test_a_fault_of_ours_costs_one_service_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxyd.ipt.render import render_service as render  # noqa: PLC0415

    def faulty(forwarding: Any, *rest: Any) -> Any:
        if forwarding.key.name == "b":
            raise ZeroDivisionError
        return render(forwarding, *rest)

    monkeypatch.setattr("proxyd.sync.ipt.full.render_service", faulty)
    world = IptWorld(*cluster("a", "b", "c"))
    world.sync()
    assert served(world, 1)
    assert served(world, 3)
    assert [each.reason.value for each in world.reconciler.findings[build.key("b")]] == ["internal-error"]


@pytest.mark.parametrize("batch", [1, 1000])
def test_a_chain_that_is_in_use_again_is_not_left_over(batch: int) -> None:
    world = IptWorld(*cluster("a", endpoints=3), kernel=FakeKernel(batch=batch))
    world.sync()
    world.put(*cluster("a", endpoints=1))
    world.restart()
    world.sync()
    assert world.reconciler.cleanup_owed
    world.put(*cluster("a", endpoints=2))
    world.sync()
    steps = after_each_call(world, lambda: served(world, 1, 2))
    world.reconciler.cleanup()
    assert all(steps)
    assert served(world, 1, 2)
    assert len(service_chains(world.kernel)) == 3


# What others do


@pytest.mark.parametrize(
    ("table", "chain"),
    [
        (NAT, names.SERVICES),
        (NAT, names.NODE_PORTS),
        (NAT, names.POSTROUTING),
        (NAT, names.MARK_MASQ),
        (FILTER, names.SERVICES),
        (FILTER, names.FORWARD),
        (NAT, "PREROUTING"),
        (FILTER, "FORWARD"),
        (NAT, "KUBE-SVC-"),
        (NAT, "KUBE-SEP-"),
        (NAT, "KUBE-EXT-"),
    ],
)
def test_a_chain_that_somebody_emptied_is_mended(table: Table, chain: str) -> None:
    world = IptWorld(*cluster("a", "b", ports=(build.port(node_port=30080),)), build.service("none", ip="10.96.0.9"))
    world.settle()
    before = normal(world.kernel)
    (name,) = [each for each in sorted(world.kernel.rules.tables[table]) if each.startswith(chain)][:1]
    world.kernel.flush(table, name)
    assert normal(world.kernel) != before
    world.reconciler.mend(drift(f"{table} {name}"))
    world.sync()
    assert normal(world.kernel) == before
    assert not world.reconciler.rewritten


def test_the_mark_of_whose_chains_these_are_is_mended() -> None:
    world = IptWorld(*cluster("a"))
    world.settle()
    del world.kernel.rules.tables[NAT][OWN_MARK]
    world.reconciler.mend(drift(f"nat {OWN_MARK}"))
    world.sync()
    assert OWN_MARK in world.kernel.rules.tables[NAT]
    assert not world.reconciler.rewritten


def test_services_that_were_refused_for_what_somebody_did_are_served_once_that_is_mended() -> None:
    """Somebody flushes the table and deletes its chains in the middle of a full write."""
    world = IptWorld(*cluster("a", "b", "c", "d", "e"), kernel=FakeKernel(batch=3))
    lost: set[str] = set()

    def interfere() -> None:
        if not lost:
            before = set(world.kernel.rules.tables[NAT])
            world.kernel.flush(NAT)
            world.kernel.delete_empty(NAT)
            lost.update(before)

    world.kernel.watchers.append(interfere)
    world.sync()
    assert world.quarantined()
    world.reconciler.mend(drift(*(f"nat {name}" for name in sorted(lost))))
    world.sync()
    assert not world.quarantined()
    assert all(served(world, number) for number in range(1, 6))


@pytest.mark.parametrize("table", [NAT, FILTER])
@pytest.mark.parametrize("chains_too", [False, True])
@pytest.mark.parametrize("restart", [False, True])
def test_a_flushed_table_comes_back_with_everything(table: Table, chains_too: bool, restart: bool) -> None:
    """Flushed, or deleted with all its chains; noticed, or found by the next proxyd."""
    ranged = cluster("a", "b", ingress_ips=("203.0.113.10",), source_ranges=("192.0.2.0/24",))
    world = IptWorld(*ranged, build.service("none", ip="10.96.0.9"))
    world.settle()
    before = normal(world.kernel)
    world.kernel.flush(table)
    if chains_too:
        world.kernel.delete_empty(table)
    if restart:
        world.restart()
    else:
        world.reconciler.mend(drift(everything=True))
    world.settle()
    assert normal(world.kernel) == before
    assert world.reconciler.rewritten


def test_rules_are_counted_by_table() -> None:
    world = IptWorld(*cluster("a", "b", ports=(build.port(node_port=30080),)), build.service("none", ip="10.96.0.9"))
    world.sync()
    world.put(build.endpoint_slice("a", "10.244.1.1"))
    world.sync()
    counts = world.reconciler.counts
    for table in (NAT, FILTER):
        own = {name: rules for name, rules in world.kernel.rules.tables[table].items() if name.startswith("KUBE-")}
        assert counts.rules[table] == sum(map(len, own.values()))
    call = world.kernel.commits[-1]
    assert counts.written[NAT] == sum(len(chain.rules) for chain in call.chains) + len(call.insert)
