"""A plan is what is then written, and its summary is what a reader of the kernel finds different, in both modes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyd.desired.conflicts import FrontendKey
from proxyd.ipt.restore import restore_input
from proxyd.kernel.nft.recording import in_force
from proxyd.model import EndpointSlice, Family, Service
from proxyd.nft.layout import generation_of
from proxyd.nft.objects import Element, Jump
from proxyd.nft.script import script
from proxyd.plan import ipt_served, nft_served
from proxyd.plan.served import Serving, difference
from proxyd.sync.foresight import Foreseen, IptRecorder, NftRecorder, Recorder, Wanted, change, start
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.ipt_world import IptWorld
from tests.plan_world import forwarded
from tests.unit.test_convergence import SETTINGS, services, slices
from tests.world import World

V4 = Family.IPV4
Objects = list[Service | EndpointSlice]
AnyWorld = World | IptWorld
objects = st.lists(services | slices, max_size=7)
on_node = st.fixed_dictionaries(
    {"masquerade_all": st.booleans(), "node_port_addresses": st.sampled_from([("192.0.2.11",), None, ()])}
)


def recorder(world: AnyWorld) -> Recorder:
    """What a plan is made with, that knows of the kernel what is there now."""
    if isinstance(world, World):
        return NftRecorder(V4, world.ruleset.contents(V4), by_expressions=False)
    return IptRecorder(V4, world.kernel.contents(), world.kernel.batch, world.style)


def blank(world: AnyWorld) -> Recorder:
    """As the running daemon found the kernel."""
    if isinstance(world, World):
        return NftRecorder(V4, FakeRuleset().contents(V4), by_expressions=False)
    return IptRecorder(V4, IptWorld().kernel.contents(), world.kernel.batch, world.style)


def serving(world: AnyWorld) -> Serving:
    """What somebody reads who looks at the kernel."""
    if isinstance(world, IptWorld):
        return ipt_served.serving(world.kernel.contents())
    table = world.ruleset.tables.get(V4)
    if table is None:
        return {}
    jump = table.chains["nat-prerouting"].rules[0][0]
    assert isinstance(jump, Jump)
    elements = [
        Element(name, each.element.key, each.element.value, each.element.comment)
        for name, container in table.containers.items()
        for each in container.entries.values()
    ]
    return nft_served.serving(in_force(generation_of(jump.chain), elements, table.chains.values()))


def written(world: AnyWorld) -> tuple[list[str], int, list[str]]:
    """Brings the world up to date; gives what was written, the operations in it, and what was deleted afterwards."""
    taken(world)
    world.sync()
    first, operations = taken(world), world.reconciler.operations
    while world.reconciler.cleanup_owed:
        world.reconciler.cleanup()
    return first, operations, taken(world)


def taken(world: AnyWorld) -> list[str]:
    """The texts that the kernel was given since the last time."""
    if isinstance(world, World):
        commits, world.ruleset.commits = world.ruleset.commits, []
        return [script(each) for each in commits]
    calls, world.kernel.calls = world.kernel.calls, []
    return ["".join(restore_input(each)) for each in calls]


def put(world: AnyWorld, after: Objects) -> None:
    """Replaces all objects."""
    world.remove(*world.store.services.objects.values(), *world.store.slices.objects.values())
    world.put(*after)


def check(planned: Foreseen, before: Serving, world: AnyWorld) -> None:
    first, operations, later = written(world)
    assert list(planned.writes) == first
    assert list(planned.tidying) == later
    assert planned.operations == operations
    assert planned.serving == serving(world)
    assert difference(before, planned.serving) == difference(before, serving(world))
    assert sorted(map(str, planned.findings)) == sorted(
        str(each) for about in world.reconciler.findings.values() for each in about
    )


@pytest.mark.parametrize("kind", [World, IptWorld])
def test_a_plan_of_a_change_is_what_is_written(kind: type[AnyWorld]) -> None:
    @SETTINGS
    @given(objects, objects)
    def run(first: Objects, then: Objects) -> None:
        world = kind(*first)
        world.settle()
        there = serving(world)
        running = Wanted(build.store(*first), world.settings)
        wanted = Wanted(build.store(*then), world.settings)
        before, planned = change(blank(world), running, wanted)
        assert before == there
        put(world, then)
        check(planned, there, world)

    run()


@pytest.mark.parametrize("kind", [World, IptWorld])
def test_a_plan_of_a_start_is_what_is_written(kind: type[AnyWorld]) -> None:
    @SETTINGS
    @given(objects, objects, on_node)
    def run(first: Objects, then: Objects, settings: dict[str, Any]) -> None:
        world = kind(*first)
        world.settle()
        there = serving(world)
        world.settings = build.settings(V4, **settings)
        planned = start(recorder(world), Wanted(build.store(*then), world.settings))
        put(world, then)
        world.restart()
        check(planned, there, world)

    run()


@pytest.mark.parametrize("kind", [World, IptWorld])
def test_what_is_read_of_rules_is_what_is_to_be_forwarded(kind: type[AnyWorld]) -> None:
    @SETTINGS
    @given(objects)
    def run(made: Objects) -> None:
        world = kind(*made)
        world.settle()
        assert serving(world) == forwarded(world)

    run()


def test_a_switch_of_modes_changes_nothing_that_is_served() -> None:
    @SETTINGS
    @given(objects)
    def run(made: Objects) -> None:
        nft, ipt = World(*made), IptWorld(*made)
        for each in (nft, ipt):
            each.settle()
        found = difference(serving(nft), serving(ipt))
        # In iptables mode, who may use an address that leads nowhere is of no interest.
        changes = [change for each in found.services for change in each.frontends]
        assert all(each.before and each.after and not each.after.endpoints for each in changes), found

    run()


@pytest.mark.parametrize("kind", [World, IptWorld])
def test_both_lists_of_a_frontend_are_read(kind: type[AnyWorld]) -> None:
    # Explicitly, since random Services rarely have one endpoint here and others elsewhere under policy Local.
    web = build.service(
        ingress_ips=("203.0.113.1",),
        source_ranges=("198.51.100.0/24", "192.0.2.9/32"),
        external_local=True,
        ports=(build.port(node_port=30080),),
    )
    here, there = build.endpoint("10.244.1.1"), build.endpoint("10.244.2.1", node="node2")
    world = kind(web, build.endpoint_slice("web", here, there))
    world.settle()
    found = serving(world)
    assert found == forwarded(world)
    both, local = (("10.244.1.1", 8080), ("10.244.2.1", 8080)), (("10.244.1.1", 8080),)
    for key in (FrontendKey("203.0.113.1", "tcp", 80), FrontendKey("", "tcp", 30080)):
        assert (found[key].endpoints, found[key].local) == (both, local)
    assert found[FrontendKey("203.0.113.1", "tcp", 80)].sources == ("192.0.2.9", "198.51.100.0/24")
