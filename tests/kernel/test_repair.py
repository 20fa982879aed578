"""What others do to single places of our table is undone there, on the in-memory and on the real kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyd.model import FAMILIES, EndpointSlice, Family, Service
from proxyd.nft.drift import PLACES_AT_MOST, Drift
from proxyd.nft.keys import frontend_of
from proxyd.nft.layout import LASTING, declared, generation_of
from proxyd.nft.objects import Chain, Container, Drop, Element, Field, Jump, KeyType, Match, Transaction
from proxyd.sync.nft.reconcile import NftReconciler
from tests import build
from tests.fakes.others import FakeOthers, Others, RealOthers, Table
from tests.netns import why_not

V4, V6 = FAMILIES
PORTS = (build.port(80, node_port=30080), build.port(53, "dns", "udp", 30053))
RANGES = {V4: ("198.51.100.0/25", "192.0.2.7/32"), V6: ("2001:db8:51::/48", "2001:db8:52::7/128")}
A_KEY = {
    V4: {KeyType.ADDRESS: "198.51.100.77", KeyType.PROTOCOL: "tcp", KeyType.PORT: "777", KeyType.NUMBER: "70000"},
    V6: {KeyType.ADDRESS: "2001:db8::77", KeyType.PROTOCOL: "udp", KeyType.PORT: "777", KeyType.NUMBER: "4000000000"},
}


def objects(family: Family, more: int = 0) -> list[Service | EndpointSlice]:
    """Services that use every container; ``more`` plain ones beside."""
    v4 = family is V4

    def address(kind: int, number: int) -> str:
        return f"10.{kind}.{number // 250}.{number % 250 + 1}" if v4 else f"fd00:{kind}::{number + 1:x}"

    built: list[Service | EndpointSlice] = []

    def add(name: str, endpoints: int, node: str = build.NODE, **fields: object) -> None:
        number = len(built)
        built.append(build.service(name, ip=address(96, number), **fields))
        listed = (build.endpoint(address(244, number * 10 + i), node) for i in range(endpoints))
        ports = tuple(build.SlicePort(p.name, p.protocol, 8000 + p.port) for p in PORTS)
        built.append(build.endpoint_slice(name, *listed, family=family, ports=ports))

    add("web", 3)
    add("shop", 2, ports=PORTS, external_local=True, ingress_ips=(address(97, 1),), source_ranges=RANGES[family])
    add(
        "far", 2, "node2", ports=(build.port(81, node_port=30081),), external_local=True, external_ips=(address(97, 2),)
    )
    add("pinned", 2, affinity_seconds=60)
    add("empty", 0, ports=(build.port(82, node_port=30082),))
    for number in range(more):
        add(f"more-{number}", 2)
    return built


class Node:
    """One family of a node, in whose table somebody else edits."""

    def __init__(self, others: Others, family: Family = V4, more: int = 0) -> None:
        self.others, self.family = others, family
        self.store = build.store(*objects(family, more))
        self.reconciler = NftReconciler(family, others.ruleset, self.store.service)
        self.sync()
        self.reconciler.cleanup()

    def sync(self) -> None:
        with_localhost = build.settings(self.family, localhost_node_ports=True)
        self.reconciler.sync(self.store.take().services, self.store.keys, with_localhost)

    def table(self) -> Table:
        return self.others.table(self.family)

    def edit(self, **parts: object) -> Drift:
        return self.others.edit(self.change(**parts))

    def change(self, **parts: object) -> Transaction:
        return Transaction(self.family, **parts)  # type: ignore[arg-type]

    def mend(self, drift: Drift) -> int:
        """Undoes it; gives how many operations that took, -1 where everything was written."""
        self.reconciler.mend(drift)
        self.sync()
        return -1 if self.reconciler.rewritten else self.reconciler.operations

    def places(self) -> list[Element]:
        """All elements of our generation."""
        elements, _ = self.table()
        return [
            Element(container, key, value)
            for container, held in elements.items()
            for key, value in held.items()
            if generation_of(container)
        ]


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kernel)])
def others(request: pytest.FixtureRequest) -> Iterator[Others]:
    if request.param == "real" and (reason := why_not()):
        pytest.skip(reason)
    made = FakeOthers() if request.param == "fake" else RealOthers()
    yield made
    made.close()


@pytest.fixture(params=FAMILIES)
def node(request: pytest.FixtureRequest, others: Others) -> Node:
    return Node(others, request.param)


def another(container: Container, family: Family) -> Element:
    """An element that is not ours."""
    words = A_KEY[family]
    key = " . ".join(words[kind] for kind in container.key)
    if not container.value:
        return Element(container.name, key, "drop" if container.is_map else "")
    return Element(container.name, key, f"{words[KeyType.ADDRESS]} . 7")


def in_turn(node: Node, edits: Iterator[Transaction], at_most: int) -> int:
    """Makes each edit and has it undone; gives how many there were."""
    before = node.table()
    done = 0
    for edit in edits:
        drift = node.others.edit(edit)
        assert 0 <= node.mend(drift) <= at_most, edit
        assert node.table() == before, edit
        done += 1
    return done


def test_all_containers_are_in_play(node: Node) -> None:
    # What the other tests here are worth: each set and map of the layout has elements.
    used = {each.container for each in node.places()}
    declarations = {name for name in node.table()[0] if declared(name)}
    assert declarations - used == {*LASTING, "g1/endpoints-sctp", "g1/nodeport-endpoints-sctp"}


def test_any_element_that_is_deleted_comes_back(node: Node) -> None:
    assert in_turn(node, (node.change(delete_elements=(each,)) for each in node.places()), 1) > 40


def test_an_element_that_is_added_goes(node: Node) -> None:
    containers = [d for name in node.table()[0] if name not in LASTING and (d := declared(name))]
    named = [(f"g1/{each.name.partition('/')[2]}", each) for each in containers]
    edits = (node.change(add_elements=(another(each, node.family)._replace(container=name),)) for name, each in named)
    assert in_turn(node, edits, 1) > 15


def test_a_value_that_is_changed_is_put_right(node: Node) -> None:
    def edits() -> Iterator[Transaction]:
        for each in node.places():
            container = declared(each.container)
            if container is not None and container.is_map and each.value != "drop":
                wrong = each._replace(value=another(container, node.family).value)
                yield node.change(delete_elements=(each,), add_elements=(wrong,))

    assert in_turn(node, edits(), 2) > 20


def rules_of(node: Node) -> dict[str, Chain]:
    layout, holdings = node.reconciler._held  # type: ignore[misc]
    from proxyd.nft.fixed import base_chains  # noqa: PLC0415

    chains = {chain.name: chain for chain in base_chains(layout)}
    return chains | {name: chain for name in node.table()[1] if (chain := holdings.chain(name)) is not None}


@pytest.mark.parametrize(
    "edited",
    [lambda rules: rules[1:], lambda rules: ((Match(Field.L4PROTO, "tcp"), Drop()), *rules), lambda _: ()],
    ids=["a rule deleted", "a rule added", "flushed"],
)
def test_any_chain_that_is_edited_is_put_right(
    node: Node, edited: Callable[[tuple[object, ...]], tuple[object, ...]]
) -> None:
    chains = rules_of(node)
    assert {"nat-prerouting", "g1/services", "g1/lb-tcp-3"} <= chains.keys()
    assert any("/affinity-" in name for name in chains)
    edits = (node.change(chains=(Chain(name, edited(each.rules)),)) for name, each in chains.items())  # type: ignore[arg-type]
    assert in_turn(node, edits, 1 + max(len(each.rules) for each in chains.values())) > 20


def names(table: Table) -> list[str]:
    """What sets, maps and chains there are, whichever generation they are of."""
    return sorted(re.sub(r"^g\d+/", "", each) for part in table for each in part)


def foreign_chain(node: Node) -> Transaction:
    rule = (Match(Field.L4PROTO, "tcp"), Jump("theirs"))
    return node.change(chains=(Chain("theirs", ((Drop(),),)), Chain("nat-output", (rule,))))


WHOLE: dict[str, Callable[[Node], Transaction]] = {
    "a chain of theirs, and a rule that leads there": foreign_chain,
    "a set of theirs": lambda node: node.change(containers=(Container("theirs", (KeyType.ADDRESS,)),)),
    "a base chain deleted": lambda node: node.change(delete_chains=("nat-prerouting",)),
    "the table deleted": lambda node: node.change(delete_table=True),
    "more than is worth mending": lambda node: node.change(
        add_elements=tuple(Element("g1/cluster-ips", _address(node.family, i)) for i in range(PLACES_AT_MOST + 1))
    ),
}


def _address(family: Family, number: int) -> str:
    return f"198.18.{number // 250}.{number % 250}" if family is V4 else f"2001:db8:18::{number:x}"


@pytest.mark.parametrize("edit", WHOLE)
def test_what_is_more_than_single_places_is_written_anew(node: Node, edit: str) -> None:
    before = node.table()
    drift = node.others.edit(WHOLE[edit](node))
    assert drift.everything
    assert node.mend(drift) == -1
    node.reconciler.cleanup()
    assert names(node.table()) == names(before)


def test_as_many_edits_as_are_mended_one_by_one(node: Node) -> None:
    before = node.table()
    added = tuple(Element("g1/cluster-ips", _address(node.family, i)) for i in range(PLACES_AT_MOST))
    assert node.mend(node.edit(add_elements=added)) == PLACES_AT_MOST
    assert node.table() == before


def test_what_others_undo_themselves_needs_no_writing_anew(node: Node) -> None:
    before = node.table()
    element = node.places()[0]
    added = another(declared("g1/service-ips"), node.family)._replace(container="g1/service-ips")  # type: ignore[arg-type]
    drift = node.others.edit(
        node.change(delete_elements=(element,), add_elements=(added,)),
        node.change(delete_elements=(added,), add_elements=(element,)),
    )
    assert node.mend(drift) == 2
    assert node.table() == before


def test_news_that_are_out_of_date_end_in_the_right_rules(node: Node) -> None:
    before = node.table()
    added = Element("g1/cluster-ips", A_KEY[node.family][KeyType.ADDRESS])
    early = node.edit(add_elements=(added,))
    node.edit(delete_elements=(added,))
    # The kernel refuses to delete it: what then follows is right whatever is there.
    assert node.mend(early) == -1
    node.reconciler.cleanup()
    assert names(node.table()) == names(before)
    assert node.reconciler.refusals == 1


@pytest.mark.parametrize("name", sorted(LASTING))
def test_sets_that_packets_fill_are_nobodys_edit(node: Node, name: str) -> None:
    container = declared(name)
    assert container is not None
    member = Element(name, " . ".join(A_KEY[node.family][kind] for kind in container.key))
    if node.family is V4:
        assert node.others.silent(node.change(add_elements=(member,)))
    assert node.mend(Drift(node.family, "added element in g1/cluster-ips", elements={})) == 0


def test_the_cost_of_a_repair_does_not_grow_with_the_cluster(others: Others) -> None:
    costs = []
    for more in (1, 200):
        node = Node(others, V4, more)
        written = node.reconciler.operations
        element = next(each for each in node.places() if "endpoints-tcp" in each.container)
        costs.append((node.mend(node.edit(delete_elements=(element,))), written > 1000))
        node.edit(delete_table=True)
    assert costs == [(1, False), (1, True)]


def test_changes_go_on_after_a_repair(node: Node) -> None:
    element = next(each for each in node.places() if each.container == "g1/service-ips")
    assert node.mend(node.edit(delete_elements=(element,))) == 1
    node.store.services.remove(("default", "shop"))
    node.store.services.remove(("default", "web"))
    node.sync()
    assert not node.reconciler.refusals
    names = {frontend_of(d, each.key) for each in node.places() if (d := declared(each.container))}
    assert not any(" . 53" in name for name in names)


def test_another_generation_needs_no_repair(node: Node) -> None:
    node.reconciler.forget()
    node.sync()
    before = node.table()
    added = another(declared("g1/service-ips"), node.family)._replace(container="g1/service-ips")  # type: ignore[arg-type]
    drift = node.edit(add_elements=(added,))
    # The old generation may be gone before the news of an edit of it has been seen to.
    node.reconciler.cleanup()
    assert node.mend(drift) == 0
    assert not node.reconciler.refusals
    assert {each for each in before[0] if not each.startswith("g1/")} == node.table()[0].keys()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_edits_of_elements_are_undone_together(data: st.DataObject) -> None:
    node = Node(FakeOthers())
    before = node.table()
    drift: Drift | None = None
    for _ in range(data.draw(st.integers(1, 6))):
        held = [each for each in node.places() if "firewall" not in each.container]
        gone = data.draw(st.lists(st.sampled_from(held), max_size=4, unique=True))
        again = [
            each._replace(value="drop") for each in gone if each.value.startswith("goto") and data.draw(st.booleans())
        ]
        told = node.edit(delete_elements=tuple(gone), add_elements=tuple(again)) if gone else None
        if told is not None:
            drift = told if drift is None else drift.then(told)
    if drift is not None:
        assert node.mend(drift) >= 0
    assert node.table() == before
