"""Which chains of a saved rule set are not as they were written."""

from __future__ import annotations

import pytest

from proxyd.ipt import names
from proxyd.ipt.audit import audit
from proxyd.ipt.objects import Placed, Rule, Table, Transaction
from proxyd.model import Family
from tests.ipt_world import IptWorld
from tests.sync.clusters import cluster

NAT, FILTER = Table.NAT, Table.FILTER


@pytest.fixture
def world() -> IptWorld:
    made = IptWorld(*cluster("a", "b"))
    made.settle()
    return made


def found(world: IptWorld) -> frozenset[str] | None:
    return audit(world.kernel.saved(), world.reconciler.expected)


def test_what_was_written_is_right(world: IptWorld) -> None:
    assert found(world) == frozenset()


@pytest.mark.parametrize(
    ("table", "chain"),
    [(NAT, names.SERVICES), (NAT, names.POSTROUTING), (FILTER, names.FORWARD), (FILTER, names.FIREWALL)],
)
def test_a_chain_that_lacks_rules_is_named(world: IptWorld, table: Table, chain: str) -> None:
    world.kernel.flush(table, chain)
    assert found(world) == {f"{table} {chain}"}


def test_a_jump_that_is_gone_is_named_by_where_it_was(world: IptWorld) -> None:
    world.kernel.flush(NAT, "PREROUTING")
    assert found(world) == {"nat PREROUTING"}


def test_a_rule_too_many_is_named_and_others_rules_are_not(world: IptWorld) -> None:
    for table, chain in ((NAT, names.SERVICES), (NAT, "PREROUTING"), (FILTER, names.FIREWALL)):
        world.kernel.commit([Transaction(Family.IPV4, insert=(Placed(table, chain, Rule("ACCEPT")),))])
    assert found(world) == {f"nat {names.SERVICES}"}


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_rule_without_match_and_target_is_counted(world: IptWorld, end: str) -> None:
    for table, chain in ((NAT, names.MARK_MASQ), (FILTER, "INPUT")):
        world.kernel.commit([Transaction(Family.IPV4, insert=(Placed(table, chain, Rule()),))])
    saved = {table: [line + end for line in lines] for table, lines in world.kernel.saved().items()}
    assert audit(saved, world.reconciler.expected) == {f"nat {names.MARK_MASQ}"}


def test_a_canary_that_is_gone_is_named(world: IptWorld) -> None:
    del world.kernel.rules.tables[Table.MANGLE][names.CANARY]
    assert found(world) == {f"mangle {names.CANARY}"}


def test_chains_of_services_are_in_doubt_all_together(world: IptWorld) -> None:
    chain = next(name for name in world.kernel.rules.tables[NAT] if name.startswith(names.ENDPOINT))
    world.kernel.flush(NAT, chain)
    assert found(world) is None
