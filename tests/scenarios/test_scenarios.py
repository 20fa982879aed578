"""Every scenario file, in every order of arrival: the same table and the same rules follow, and packets obey them."""

from __future__ import annotations

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.model import FAMILIES, Family
from tests.scenarios import story
from tests.scenarios.replay import ORDERS, WITH_PACKETS, Traffic, World, check_from_scratch, replay
from tests.world import normal


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", story.names())
def test_scenario(name: str, order: str) -> None:
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
        if order in WITH_PACKETS:
            Traffic(world, step.table).check(seen)
        assert _rules(world) == _rules(_fresh(world, step))
        assert world.ruleset.refused == []


def _fresh(world: World, step: story.Step) -> World:
    """A node that starts with what there is after a step."""
    fresh = World(world.policy)
    fresh.list(step.objects)
    fresh.sync()
    return fresh


def _rules(world: World) -> list[dict[str, object]]:
    return [normal(world.ruleset, family) for family in FAMILIES]
