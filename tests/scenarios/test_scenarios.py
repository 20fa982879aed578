"""Every scenario file, in every order of arrival: the same table and the same rules follow, and packets obey them."""

from __future__ import annotations

from functools import cache

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.model import FAMILIES, Family
from tests.scenarios import story
from tests.scenarios.replay import ORDERS, WITH_PACKETS, Traffic, World, check_from_scratch, replay
from tests.scenarios.table import read
from tests.world import normal


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", story.names())
def test_every_order_of_arrival_ends_in_the_table_and_the_rules_that_the_objects_alone_give(
    name: str, order: str
) -> None:
    seen: set[tuple[Family, FrontendKey]] = set()
    for world, step in replay(story.load(name), order):
        assert sorted(map(str, world.table())) == sorted(map(str, step.table)), step.name
        assert sorted(world.findings()) == sorted(step.findings), step.name
        assert world.findings() == world.reported()
        assert world.ruleset.refused == []
        check_from_scratch(world)
        if order in WITH_PACKETS:
            seen |= {(line.family, line.key) for line in step.table}
            Traffic(world, step.table).check(seen)
        world.settle()
        if order == "as written":
            Traffic(world, step.table).check(seen)
        assert _rules(world) == _rules_of_a_fresh_node(name, step.number)
        assert world.ruleset.refused == []


@pytest.mark.parametrize("name", story.names())
def test_tables_read_as_they_are_printed_and_name_each_frontend_once(name: str) -> None:
    for step in story.load(name).steps:
        assert tuple(read("\n".join(map(str, step.table)))) == step.table
        assert len({(line.family, line.key) for line in step.table}) == len(step.table)


@cache
def _rules_of_a_fresh_node(name: str, number: int) -> list[dict[str, object]]:
    """Those of a node that starts with what there is after a step."""
    scenario = story.load(name)
    fresh = World(scenario.policy)
    fresh.list(scenario.steps[number].objects)
    fresh.sync()
    return _rules(fresh)


def _rules(world: World) -> list[dict[str, object]]:
    return [normal(world.ruleset, family) for family in FAMILIES]
