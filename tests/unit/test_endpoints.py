"""Endpoints: slices merged to candidates, and which of them a ServicePort may use on this node."""

import json
from collections.abc import Sequence
from itertools import combinations, permutations, product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st

from proxyd.desired.endpoints import Backend, Candidates, Choice, choose, merge
from proxyd.kube.decode import decode_endpoint_slice
from proxyd.model import Endpoint, EndpointSlice, Family, SlicePort
from tests.build import NODE, NOT_SERVING, SERVING_TERMINATING, endpoint, endpoint_slice

OTHER = "node2"
V4, V6 = Family.IPV4, Family.IPV6


def merged(*slices: EndpointSlice, name: str = "http", protocol: str = "tcp", family: Family = V4) -> Candidates:
    return merge(slices, family, name, protocol, NODE)


def chosen(
    *endpoints: Endpoint, zone: str = "za", node: str = NODE, cluster: bool = True, local: bool = True
) -> Choice:
    candidates = merged(endpoint_slice("web", *endpoints))
    return choose(candidates, node, zone, use_cluster=cluster, use_local=local)


def addresses(backends: tuple[Backend, ...]) -> set[str]:
    assert len(set(backends)) == len(backends)
    return {backend.address for backend in backends}


class TestMerge:
    def test_union_of_all_slices_of_the_family(self) -> None:
        found = merged(
            endpoint_slice("web", "10.244.1.1", name="a"),
            endpoint_slice("web", "10.244.1.2", name="b"),
            endpoint_slice("web", "fd00::1", name="c", family=V6),
        )
        assert set(found) == {Backend("10.244.1.1", 8080), Backend("10.244.1.2", 8080)}

    def test_overlapping_slices_give_each_address_and_port_once(self) -> None:
        found = merged(
            endpoint_slice("web", "10.244.1.1", "10.244.1.2", name="a"),
            endpoint_slice("web", "10.244.1.2", "10.244.1.3", name="b"),
        )
        assert [backend.address for backend in found] == ["10.244.1.1", "10.244.1.2", "10.244.1.3"]

    def test_one_address_with_two_ports_is_two_endpoints(self) -> None:
        found = merged(
            endpoint_slice("web", "192.0.2.11", name="a", ports=(SlicePort("http", "tcp", 8080),)),
            endpoint_slice("web", "192.0.2.11", name="b", ports=(SlicePort("http", "tcp", 8081),)),
        )
        assert set(found) == {Backend("192.0.2.11", 8080), Backend("192.0.2.11", 8081)}

    def test_the_name_of_the_port_decides_and_not_its_number(self) -> None:
        ports = (SlicePort("http", "tcp", 8080), SlicePort("admin", "tcp", 80))
        piece = endpoint_slice("web", "10.244.1.1", ports=ports)
        assert set(merged(piece, name="http")) == {Backend("10.244.1.1", 8080)}
        assert set(merged(piece, name="admin")) == {Backend("10.244.1.1", 80)}
        assert merged(piece, name="https") == {}
        assert merged(piece, name="") == {}

    def test_unnamed_ports_match_each_other(self) -> None:
        piece = endpoint_slice("web", "10.244.1.1", ports=(SlicePort("", "tcp", 8080),))
        assert set(merged(piece, name="")) == {Backend("10.244.1.1", 8080)}

    def test_numbers_may_differ_from_slice_to_slice(self) -> None:
        old = endpoint_slice("web", "10.244.1.1", name="a", ports=(SlicePort("http", "tcp", 80),))
        new = endpoint_slice("web", "10.244.1.2", name="b", ports=(SlicePort("http", "tcp", 8080),))
        assert set(merged(old, new)) == {Backend("10.244.1.1", 80), Backend("10.244.1.2", 8080)}

    def test_protocols_with_one_port_name_are_apart(self) -> None:
        ports = (SlicePort("dns", "udp", 53), SlicePort("dns", "tcp", 5353))
        piece = endpoint_slice("web", "10.244.1.1", ports=ports)
        assert set(merged(piece, name="dns", protocol="udp")) == {Backend("10.244.1.1", 53)}
        assert set(merged(piece, name="dns", protocol="tcp")) == {Backend("10.244.1.1", 5353)}
        assert merged(piece, name="dns", protocol="sctp") == {}

    def test_a_slice_without_ports_gives_nothing(self) -> None:
        assert merged(endpoint_slice("web", "10.244.1.1", ports=())) == {}

    @pytest.mark.parametrize("number", [-1, 65536, 10**12])
    def test_a_slice_port_that_cannot_be_is_refused_by_name_and_its_other_ports_serve(self, number: int) -> None:
        ports = [{"name": "http", "port": number}, {"name": "admin", "port": 8081}]
        meta = {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}}
        given = {"metadata": meta, "addressType": "IPv4", "endpoints": [{"addresses": ["10.244.1.1"]}], "ports": ports}
        piece = decode_endpoint_slice(json.dumps(given).encode()).value
        assert piece is not None
        assert piece.refused == (f"port {number}",)
        assert merged(piece) == {}
        assert set(merged(piece, name="admin")) == {Backend("10.244.1.1", 8081)}

    def test_a_slice_that_lists_one_port_name_twice_gives_both_numbers(self) -> None:
        ports = (SlicePort("http", "tcp", 80), SlicePort("http", "tcp", 81))
        assert {b.port for b in merged(endpoint_slice("web", "10.244.1.1", ports=ports))} == {80, 81}


BEST_FIRST = (
    {"node": NODE},
    {"node": "another"},  # sorts before this node's name
    {"node": OTHER},
    {"node": None},
    {"node": NODE, "terminating": True},
    {"node": NODE, "ready": False},
    {"node": OTHER, "ready": False},
    {"node": NODE, **SERVING_TERMINATING},
    {"node": OTHER, **SERVING_TERMINATING},
    {"node": None, **SERVING_TERMINATING},
    {"node": NODE, **NOT_SERVING},
    {"node": OTHER, **NOT_SERVING},
    {"node": NODE, **NOT_SERVING, "terminating": True},
)


class TestDuplicates:
    """Slices that disagree about one endpoint: ready before serving before neither, then local before not."""

    @pytest.mark.parametrize(("better", "worse"), list(combinations(BEST_FIRST, 2)), ids=str)
    def test_the_better_one_counts_whatever_the_order(self, better: dict[str, Any], worse: dict[str, Any]) -> None:
        one = endpoint("10.244.1.1", **better)
        two = endpoint("10.244.1.1", **worse)
        for endpoints in permutations([one, two]):
            inside = merged(endpoint_slice("web", *endpoints))
            apart = merged(*(endpoint_slice("web", each, name=str(i)) for i, each in enumerate(endpoints)))
            assert inside == apart == {Backend("10.244.1.1", 8080): one}

    def test_hints_that_disagree_count_the_same_whatever_the_order(self) -> None:
        slices = [
            endpoint_slice("web", endpoint("10.244.1.1", zone_hints=zones, node_hints=nodes), name=f"{i}")
            for i, (zones, nodes) in enumerate(product([(), ("za",), ("zb",)], [(), (NODE,)]))
        ]
        assert all(merged(*order) == merged(*slices) for order in permutations(slices))


ENDPOINTS = st.builds(
    Endpoint,
    st.sampled_from(["10.244.1.1", "10.244.1.2", "10.244.2.1"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([NODE, OTHER, "another", None]),
    st.sampled_from([(), ("za",), ("zb",), ("za", "zb")]),
    st.sampled_from([(), (NODE,), (OTHER,)]),
)
SLICES = st.lists(
    st.tuples(st.lists(ENDPOINTS, max_size=4), st.lists(st.sampled_from([8080, 8081]), unique=True)), max_size=4
).map(
    lambda each: [
        endpoint_slice("web", *endpoints, name=str(i), ports=tuple(SlicePort("http", "tcp", n) for n in numbers))
        for i, (endpoints, numbers) in enumerate(each)
    ]
)


def as_sets(choice: Choice) -> tuple[object, ...]:
    assert all(len(set(each)) == len(each) for each in choice[:3])
    return (*(frozenset(each) for each in choice[:3]), choice.exists)


@patiently(deadline=None)
@given(SLICES, st.randoms(use_true_random=False), st.booleans(), st.booleans(), st.sampled_from(["", "za", "zc"]))
def test_the_order_of_slices_and_endpoints_never_matters(
    slices: list[EndpointSlice], random: Random, cluster: bool, local: bool, zone: str
) -> None:
    shuffled = [
        EndpointSlice(s.namespace, s.name, s.service, s.family, tuple(_shuffled(s.endpoints, random)), s.ports)
        for s in _shuffled(slices, random)
    ]
    assert merged(*shuffled) == merged(*slices)
    one, two = (choose(merged(*each), NODE, zone, use_cluster=cluster, use_local=local) for each in (slices, shuffled))
    assert as_sets(one) == as_sets(two)


def _shuffled(items: Sequence[Any], random: Random) -> list[Any]:
    out = list(items)
    random.shuffle(out)
    return out


@patiently(deadline=None)
@given(SLICES, st.booleans(), st.booleans(), st.sampled_from(["", "za", "zc"]))
def test_what_holds_for_every_choice(slices: list[EndpointSlice], cluster: bool, local: bool, zone: str) -> None:
    candidates = merged(*slices)
    choice = choose(candidates, NODE, zone, use_cluster=cluster, use_local=local)
    usable = {b for b, e in candidates.items() if e.ready or (e.serving and e.terminating)}
    assert choice.exists == bool(usable)
    assert {*choice.cluster, *choice.local} <= usable
    assert bool(choice.cluster) == (cluster and choice.exists)
    assert all(candidates[b].node == NODE for b in choice.local)
    assert bool(choice.local) == (local and any(candidates[b].node == NODE for b in usable))
    # Never one that is not ready beside one that is.
    assert all(len({candidates[b].ready for b in each}) <= 1 for each in (choice.cluster, choice.local))
    assert set(choice.beside) == {b for b in (*choice.cluster, *choice.local) if candidates[b].node in (None, NODE)}


# -- conditions ----------------------------------------------------------------------------------------------------------

FLAGS = list(product([True, False], repeat=3))
USABLE_AS = {
    # ready, serving, terminating: used first, used when nothing is ready, or never
    (True, True, False): "first",
    (True, True, True): "first",
    (True, False, False): "first",
    (True, False, True): "first",
    (False, True, True): "fallback",
    (False, True, False): "never",
    (False, False, True): "never",
    (False, False, False): "never",
}


@pytest.mark.parametrize("place", [NODE, OTHER, None], ids=["local", "remote", "unknown"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_an_endpoint_alone_in_all_conditions(flags: tuple[bool, bool, bool], place: str | None) -> None:
    choice = chosen(Endpoint("10.244.1.1", *flags, node=place))
    usable = USABLE_AS[flags] != "never"
    assert bool(choice.cluster) is usable
    assert bool(choice.local) is (usable and place == NODE)
    assert choice.exists is usable


@pytest.mark.parametrize(("here", "there"), list(product(FLAGS, FLAGS)), ids=str)
def test_a_local_and_a_remote_endpoint_in_all_conditions(
    here: tuple[bool, bool, bool], there: tuple[bool, bool, bool]
) -> None:
    choice = chosen(Endpoint("10.244.1.1", *here, node=NODE), Endpoint("10.244.2.1", *there, node=OTHER))
    states = {"10.244.1.1": USABLE_AS[here], "10.244.2.1": USABLE_AS[there]}
    first = {address for address, state in states.items() if state == "first"}
    fallback = {address for address, state in states.items() if state == "fallback"}
    assert addresses(choice.cluster) == (first or fallback)
    assert addresses(choice.local) == ({"10.244.1.1"} if USABLE_AS[here] != "never" else set())
    assert choice.exists == bool(first or fallback)


class TestTerminating:
    def test_ready_ones_anywhere_keep_terminating_ones_unused(self) -> None:
        choice = chosen(endpoint("10.244.1.1"), endpoint("10.244.1.2", **SERVING_TERMINATING))
        assert addresses(choice.cluster) == addresses(choice.local) == {"10.244.1.1"}

    def test_the_local_list_falls_back_though_a_remote_pod_is_ready(self) -> None:
        choice = chosen(endpoint("10.244.1.1", **SERVING_TERMINATING), endpoint("10.244.2.1", OTHER))
        assert addresses(choice.cluster) == {"10.244.2.1"}
        assert addresses(choice.local) == {"10.244.1.1"}

    def test_the_last_one_of_the_cluster_is_used(self) -> None:
        choice = chosen(endpoint("10.244.2.1", OTHER, **SERVING_TERMINATING))
        assert (addresses(choice.cluster), choice.local, choice.exists) == ({"10.244.2.1"}, (), True)

    def test_those_that_no_longer_serve_do_not_exist(self) -> None:
        gone = endpoint("10.244.1.1", ready=False, serving=False, terminating=True)
        assert chosen(gone) == Choice((), (), (), exists=False)

    def test_hints_are_ignored_when_falling_back(self) -> None:
        choice = chosen(
            endpoint("10.244.1.1", zone_hints=("za",), **SERVING_TERMINATING),
            endpoint("10.244.2.1", OTHER, zone_hints=("zb",), **SERVING_TERMINATING),
        )
        assert addresses(choice.cluster) == {"10.244.1.1", "10.244.2.1"}

    def test_not_ready_but_serving_is_never_used(self) -> None:
        assert not chosen(endpoint("10.244.1.1", ready=False)).exists


class TestPolicies:
    HERE, THERE, NOWHERE = endpoint("10.244.1.1"), endpoint("10.244.2.1", OTHER), endpoint("10.244.3.1", None)

    def test_only_the_lists_that_are_asked_for(self) -> None:
        both = (self.HERE, self.THERE)
        assert chosen(*both, local=False).local == ()
        assert chosen(*both, cluster=False).cluster == ()
        assert chosen(*both, cluster=False, local=False) == Choice((), (), (), exists=True)

    def test_an_endpoint_without_a_node_is_not_local(self) -> None:
        choice = chosen(self.NOWHERE)
        assert (addresses(choice.cluster), choice.local, choice.exists) == ({"10.244.3.1"}, (), True)

    def test_endpoints_elsewhere_exist_for_a_local_list(self) -> None:
        assert chosen(self.THERE, cluster=False) == Choice((), (), (), exists=True)

    def test_no_endpoints_at_all(self) -> None:
        assert chosen() == Choice((), (), (), exists=False)

    def test_beside_are_those_that_may_run_on_this_node(self) -> None:
        assert addresses(chosen(self.HERE, self.THERE, self.NOWHERE).beside) == {"10.244.1.1", "10.244.3.1"}

    def test_without_a_node_name_nothing_is_local(self) -> None:
        assert chosen(self.HERE, self.NOWHERE, node="").local == ()


def hinted(address: str, *zones: str, nodes: tuple[str, ...] = (), **fields: Any) -> Endpoint:
    return endpoint(address, OTHER, zone_hints=zones, node_hints=nodes, **fields)


class TestHints:
    A, B, C = "10.244.2.1", "10.244.2.2", "10.244.2.3"

    def test_for_this_zone(self) -> None:
        assert addresses(chosen(hinted(self.A, "za"), hinted(self.B, "zb")).cluster) == {self.A}

    def test_for_other_zones_only_all_are_used(self) -> None:
        assert addresses(chosen(hinted(self.A, "zb"), hinted(self.B, "zc")).cluster) == {self.A, self.B}

    def test_one_endpoint_without_a_hint_turns_them_off(self) -> None:
        choice = chosen(hinted(self.A, "za"), hinted(self.B, "zb"), hinted(self.C))
        assert addresses(choice.cluster) == {self.A, self.B, self.C}

    def test_one_unready_endpoint_without_a_hint_does_not(self) -> None:
        choice = chosen(hinted(self.A, "za"), hinted(self.B, "zb"), hinted(self.C, ready=False))
        assert addresses(choice.cluster) == {self.A}

    def test_only_unready_endpoints_in_this_zone_all_are_used(self) -> None:
        choice = chosen(hinted(self.A, "za", ready=False), hinted(self.B, "zb"), hinted(self.C, "zb"))
        assert addresses(choice.cluster) == {self.B, self.C}

    def test_of_one_endpoint_for_several_zones(self) -> None:
        choice = chosen(hinted(self.A, "zb", "za"), hinted(self.B, "zb"), hinted(self.C, "za", "zc"))
        assert addresses(choice.cluster) == {self.A, self.C}

    def test_a_node_without_a_zone_uses_all(self) -> None:
        assert addresses(chosen(hinted(self.A, "za"), hinted(self.B, "zb"), zone="").cluster) == {self.A, self.B}

    def test_an_empty_zone_name_matches_no_node_without_a_zone(self) -> None:
        assert addresses(chosen(hinted(self.A, ""), hinted(self.B, "zb"), zone="").cluster) == {self.A, self.B}

    def test_never_change_the_local_list(self) -> None:
        here = endpoint("10.244.1.1", zone_hints=("zb",))
        choice = chosen(here, hinted(self.A, "za"))
        assert (addresses(choice.cluster), addresses(choice.local)) == ({self.A}, {"10.244.1.1"})

    def test_for_this_node(self) -> None:
        choice = chosen(hinted(self.A, nodes=(NODE,)), hinted(self.B, nodes=(OTHER,)))
        assert addresses(choice.cluster) == {self.A}

    def test_for_this_node_come_before_those_for_its_zone(self) -> None:
        choice = chosen(hinted(self.A, "zb", nodes=(NODE,)), hinted(self.B, "za", nodes=(OTHER,)))
        assert addresses(choice.cluster) == {self.A}

    def test_for_other_nodes_only_leave_the_zone_to_decide(self) -> None:
        choice = chosen(hinted(self.A, "zb", nodes=("node3",)), hinted(self.B, "za", nodes=(OTHER,)))
        assert addresses(choice.cluster) == {self.B}

    def test_for_nodes_missing_on_one_endpoint_leave_the_zone_to_decide(self) -> None:
        choice = chosen(hinted(self.A, "zb", nodes=(NODE,)), hinted(self.B, "za"))
        assert addresses(choice.cluster) == {self.B}

    def test_for_nodes_and_zones_missing_all_are_used(self) -> None:
        choice = chosen(hinted(self.A, nodes=(NODE,)), hinted(self.B))
        assert addresses(choice.cluster) == {self.A, self.B}

    def test_for_nodes_of_which_none_is_this_one_and_no_zones_all_are_used(self) -> None:
        choice = chosen(hinted(self.A, nodes=(OTHER,)), hinted(self.B, nodes=(OTHER,)))
        assert addresses(choice.cluster) == {self.A, self.B}

    def test_hold_vacuously_without_ready_endpoints_and_choose_nothing(self) -> None:
        assert chosen(hinted(self.A, "za", ready=False)).cluster == ()
        assert chosen().cluster == ()
