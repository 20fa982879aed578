"""Why an endpoint is not used: every one that is not has a reason, and without that reason it would be another story."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st
from msgspec.structs import replace

from proxyd.desired.endpoints import Backend, Beaten, Candidates, Choice, LeftOut, choose, merge, why_left_out
from proxyd.model import Endpoint, Family
from tests.build import NODE, NOT_SERVING, SERVING_TERMINATING, endpoint, endpoint_slice

OTHER = "node2"
FINE = Backend("10.244.1.1", 8080)
ASKED = Backend("10.244.1.2", 8080)


def candidates(*endpoints: Endpoint) -> Candidates:
    return merge([endpoint_slice("web", *endpoints)], Family.IPV4, "http", "tcp", NODE)


def chosen(all_of_them: Candidates, zone: str = "za") -> Choice:
    return choose(all_of_them, NODE, zone, use_cluster=True, use_local=True)


ZONES = {"zone_hints": ("zb",)}
NODES = {"node_hints": (OTHER,)}


@pytest.mark.parametrize(
    ("fine", "asked", "local", "reason"),
    [
        ({}, {"ready": False}, False, LeftOut.NOT_READY),
        ({}, NOT_SERVING, False, LeftOut.NOT_READY),
        ({}, {**NOT_SERVING, "terminating": True}, True, LeftOut.TERMINATED),
        ({}, SERVING_TERMINATING, False, LeftOut.TERMINATING),
        ({}, SERVING_TERMINATING, True, LeftOut.TERMINATING),
        ({}, {"node": OTHER}, True, LeftOut.OTHER_NODE),
        ({}, {"node": None}, True, LeftOut.OTHER_NODE),
        ({}, {"node": OTHER, **SERVING_TERMINATING}, True, LeftOut.OTHER_NODE),
        ({"zone_hints": ("za",)}, ZONES, False, LeftOut.ZONE_HINT),
        ({"node_hints": (NODE,)}, NODES, False, LeftOut.NODE_HINT),
        ({"zone_hints": ("za",), "node_hints": (NODE,)}, {**NODES, **ZONES}, False, LeftOut.NODE_HINT),
        ({"zone_hints": ("za",), "node_hints": (OTHER,)}, {**NODES, **ZONES}, False, LeftOut.ZONE_HINT),
    ],
)
def test_each_reason(fine: dict[str, object], asked: dict[str, object], local: bool, reason: LeftOut) -> None:
    found = candidates(
        endpoint(FINE.address, **fine),  # type: ignore[arg-type]
        endpoint(ASKED.address, **asked),  # type: ignore[arg-type]
    )
    choice = chosen(found)
    assert ASKED not in (choice.local if local else choice.cluster)
    assert why_left_out(found[ASKED], choice, NODE, local=local) is reason


ENDPOINTS = st.builds(
    Endpoint,
    st.sampled_from([f"10.244.1.{n}" for n in range(4)]),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
    node=st.sampled_from([NODE, OTHER, None]),
    zone_hints=st.sampled_from([(), ("za",), ("zb",)]),
    node_hints=st.sampled_from([(), (NODE,), (OTHER,)]),
)


def cured(found: Candidates, backend: Backend, reason: LeftOut, *, local: bool) -> Candidates:
    """The same endpoints without what the reason says."""
    it = found[backend]
    match reason:
        case LeftOut.NOT_READY | LeftOut.TERMINATED:
            return {**found, backend: replace(it, ready=True)}
        case LeftOut.OTHER_NODE:
            return {**found, backend: replace(it, node=NODE)}
        case LeftOut.NODE_HINT:
            return {**found, backend: replace(it, node_hints=(NODE,))}
        case LeftOut.ZONE_HINT:
            return {**found, backend: replace(it, zone_hints=("za",), node_hints=())}
    return {b: e for b, e in found.items() if not e.ready or (local and e.node != NODE)}


@patiently(deadline=None)
@given(st.lists(ENDPOINTS, max_size=4), st.booleans())
def test_without_the_reason_it_is_used_or_left_out_for_another_one(endpoints: list[Endpoint], local: bool) -> None:
    found = candidates(*endpoints)
    choice = chosen(found)
    used = choice.local if local else choice.cluster
    for backend in found.keys() - set(used):
        reason = why_left_out(found[backend], choice, NODE, local=local)
        now = cured(found, backend, reason, local=local)
        choice_now = chosen(now)
        if backend not in (choice_now.local if local else choice_now.cluster):
            assert why_left_out(now[backend], choice_now, NODE, local=local) is not reason


def test_duplicates_are_told_whichever_comes_first() -> None:
    good, bad = endpoint(ASKED.address), endpoint(ASKED.address, ready=False)
    for order in ((good, bad), (bad, good)):
        beaten: Beaten = []
        pieces = [endpoint_slice("web", each, name=str(number)) for number, each in enumerate(order)]
        assert merge(pieces, Family.IPV4, "http", "tcp", NODE, beaten) == {ASKED: good}
        assert beaten == [(ASKED, bad)]
