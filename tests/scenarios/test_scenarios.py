"""Every scenario file, in every order of arrival: the same table and the same rules follow, and packets obey them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.model import FAMILIES, Family
from tests.scenarios import story
from tests.scenarios.replay import ORDERS, ORDERS_OF_IPTABLES, WITH_PACKETS, Traffic, World, check_from_scratch, replay
from tests.scenarios.table import read

EVERY_ORDER = [("nftables", order) for order in ORDERS] + [("iptables", order) for order in ORDERS_OF_IPTABLES]


@pytest.mark.parametrize(("mode", "order"), EVERY_ORDER)
@pytest.mark.parametrize("name", story.names())
def test_every_order_of_arrival_ends_in_the_table_and_the_rules_that_the_objects_alone_give(
    name: str, mode: str, order: str
) -> None:
    seen: set[tuple[Family, FrontendKey]] = set()
    for world, step in replay(story.load(name), order, mode):
        assert sorted(map(str, world.table())) == sorted(map(str, step.table)), step.name
        assert sorted(world.findings()) == sorted(step.findings), step.name
        assert world.findings() == world.reported()
        assert world.kernel.refused() == []
        check_from_scratch(world)
        if order in WITH_PACKETS:
            seen |= {(line.family, line.key) for line in step.table}
            Traffic(world, step.table).check(seen)
        world.settle()
        if order == "as written":
            Traffic(world, step.table).check(seen)
        assert _rules(world) == _rules_of_a_fresh_node(name, step.number, mode)
        assert world.kernel.refused() == []


@pytest.mark.parametrize("name", story.names())
def test_tables_read_as_they_are_printed_and_name_each_frontend_once(name: str) -> None:
    for step in story.load(name).steps:
        assert tuple(read("\n".join(map(str, step.table)))) == step.table
        assert len({(line.family, line.key) for line in step.table}) == len(step.table)


@cache
def _rules_of_a_fresh_node(name: str, number: int, mode: str) -> list[Any]:
    """Those of a node that starts with what there is after a step."""
    scenario = story.load(name)
    fresh = World(scenario.policy, mode)
    fresh.list(scenario.steps[number].objects)
    fresh.sync()
    return _rules(fresh)


def _rules(world: World) -> list[Any]:
    return [world.kernel.normal(family) for family in FAMILIES]
