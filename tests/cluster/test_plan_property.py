"""What a plan foresees is what is read of this kernel after the change: random Services, in every mode."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxyd.ipt.saved import Contents as IptContents
from proxyd.ipt.style import Style
from proxyd.kernel.nft.ruleset import Contents as NftContents
from proxyd.kernel.present import present
from proxyd.model import EndpointSlice, Service
from proxyd.plan.served import Serving
from proxyd.sync.foresight import IptRecorder, NftRecorder, Recorder, Wanted, change
from tests import build
from tests.cluster.modes import EVERY_MODE, Mode
from tests.cluster.namespaces import inside
from tests.cluster.rules import Rules
from tests.topology import V4, Topology
from tests.unit.test_convergence import services, slices

SETTINGS = settings(
    max_examples=int(os.environ.get("PROXYD_EXAMPLES", "8")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[*HealthCheck],
)
objects = st.lists(services | slices, max_size=6)


def recorder(mode: Mode) -> Recorder:
    if mode is Mode.NFTABLES:
        return NftRecorder(V4, NftContents(), by_expressions=False)
    return IptRecorder(V4, IptContents(), 100, Style())


def last(made: list[Service | EndpointSlice]) -> dict[object, Service | EndpointSlice]:
    """Of several with the same name the last, as a store has them."""
    return {(type(each), build.decoded(each).key): each for each in made}


@EVERY_MODE
@SETTINGS
@given(first=objects, then=objects)
def test_the_kernel_has_what_was_foreseen(
    world: Topology, rules: Rules, first: list[Service | EndpointSlice], then: list[Service | EndpointSlice]
) -> None:
    def there() -> Serving:
        return inside(world.node, lambda: present(V4)).serving

    node = build.settings(V4)
    before, foreseen = change(recorder(rules.mode), Wanted(build.store(*first), node), Wanted(build.store(*then), node))
    rules.serve(*first)
    assert there() == before
    had, wanted = last(first), last(then)
    rules.change(*wanted.values(), gone=[each for name, each in had.items() if name not in wanted])
    assert there() == foreseen.serving
