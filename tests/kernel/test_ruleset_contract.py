"""What a kernel accepts and refuses: the same claims, tried on the in-memory kernel of the tests and on the real one."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import PortForwarding
from proxyd.kernel.ruleset import Contents, KernelRefusedError
from proxyd.model import FAMILIES, Family
from proxyd.nft.fixed import base_chains, generation_chains, node_port_elements
from proxyd.nft.layout import ADDRESS_KEY, AFFINITY, COUNTERS, NODE_PORT_KEY, TABLE_COMMENT, Layout
from proxyd.nft.objects import (
    Chain,
    Chance,
    Container,
    Count,
    Dnat,
    DnatMap,
    Drop,
    Element,
    Field,
    Goto,
    Hook,
    InSet,
    Jump,
    KeyType,
    Masquerade,
    Match,
    Random,
    Reject,
    SetMark,
    Statement,
    Transaction,
    UpdateSet,
    VerdictMap,
)
from proxyd.nft.render import _affinity_chain
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.kernel.conftest import EitherRuleset
from tests.netns import RealRuleset, why_not

V4, V6 = FAMILIES
A, P, N, PORT = KeyType.ADDRESS, KeyType.PROTOCOL, KeyType.NUMBER, KeyType.PORT
INPUT = Hook("filter", "input", 0)
NAT = Hook("nat", "prerouting", -100)
POSTROUTING = Hook("nat", "postrouting", 100)
ENDPOINT_KEY = (Field.DADDR, Field.DPORT, Random(2))


def change(family: Family = V4, **parts: Any) -> Transaction:
    return Transaction(family, **parts)


def chain(name: str, *rules: tuple[Statement, ...], **fields: Any) -> Chain:
    return Chain(name, rules, **fields)


def rule(*statements: Statement) -> Transaction:
    """One chain ``x`` with one rule."""
    return change(chains=(chain("x", statements),))


def add(container: str, *keys: str, value: str = "") -> Transaction:
    return change(add_elements=tuple(Element(container, key, value) for key in keys))


def delete(container: str, *keys: str) -> Transaction:
    return change(delete_elements=tuple(Element(container, key) for key in keys))


def sources(*ranges: str, instead_of: tuple[str, ...] = (), address: str = "192.0.2.1") -> Transaction:
    """Adds ranges of one frontend to the interval set, after deleting others."""
    return change(
        add_elements=tuple(Element("sources", f"{address} . tcp . 80 . {each}") for each in ranges),
        delete_elements=tuple(Element("sources", f"{address} . tcp . 80 . {each}") for each in instead_of),
    )


def deep(chains: int) -> Transaction:
    """A base chain and below it this many chains, each jumping to the next."""
    links = (chain(f"d{i}", (Jump(f"d{i + 1}"),)) for i in range(chains - 1))
    return change(chains=(*links, chain(f"d{chains - 1}"), chain("base", (Jump("d0"),), hook=INPUT)))


VERDICT = Element("verdicts", "192.0.2.1 . tcp . 80", "goto a", "shop/web:http")
ENDPOINT = Element("endpoints", "192.0.2.1 . 80 . 0", "10.244.0.1 . 8080")
BASE = change(
    table="test",
    containers=(
        Container("ips", (A,)),
        Container("two", (A,), size=2),
        Container("verdicts", (A, P, PORT), (), counter=True),
        Container("nodeports", (P, PORT), ()),
        Container("endpoints", (A, PORT, N), (A, PORT), protocol="tcp", counter=True),
        Container("sources", (A, P, PORT, A), interval=True),
        Container("pins", (A, N), timeout=True, size=100),
    ),
    counters=("dropped",),
    chains=(chain("a"), chain("b"), chain("refuse", (Reject(),))),
    add_elements=(Element("ips", "192.0.2.1"), VERDICT, ENDPOINT),
)
VERDICT_KEY, ENDPOINT_TEXT = VERDICT.key, ENDPOINT.key

# Each is a sequence after BASE; all are accepted.
ACCEPTED: dict[str, list[Transaction]] = {
    "element that is there": [add("ips", "192.0.2.1")],
    "element with the value that it has": [add("endpoints", ENDPOINT_TEXT, value=ENDPOINT.value)],
    "verdict that it has": [add("verdicts", VERDICT_KEY, value="goto a")],
    "element with another comment": [change(add_elements=(VERDICT._replace(comment="other"),))],
    "element twice in one": [add("endpoints", *["192.0.2.1 . 80 . 1"] * 2, value=ENDPOINT.value)],
    "deletion before addition of the same key": [
        change(delete_elements=(ENDPOINT,), add_elements=(ENDPOINT._replace(value="10.244.0.2 . 8080"),))
    ],
    "deletion does not look at the value": [
        change(delete_elements=(ENDPOINT._replace(value="10.244.0.9 . 1"),)),
        add("endpoints", ENDPOINT_TEXT, value="10.244.0.3 . 80"),
    ],
    "verdicts without a chain": [
        add("verdicts", f"192.0.2.9 . {protocol} . 80", value=verdict)
        for protocol, verdict in (("tcp", "drop"), ("udp", "accept"), ("sctp", "return"))
    ],
    "a port of zero": [add("verdicts", "192.0.2.9 . udp . 0", value="drop")],
    "the highest index": [add("endpoints", "192.0.2.1 . 80 . 4294967295", value="10.244.0.1 . 65535")],
    "a rule that goes to a later chain": [change(chains=(chain("x", (Goto("y"),)), chain("y")))],
    "a map that an earlier command declared": [
        rule(DnatMap("tcp", ENDPOINT_KEY, "endpoints")),
        change(chains=(chain("y", (VerdictMap(ADDRESS_KEY, "verdicts"),)),)),
        change(chains=(chain("z", (VerdictMap(NODE_PORT_KEY, "nodeports"),)),)),
    ],
    "a map used as a set": [rule(InSet(ADDRESS_KEY, "verdicts"))],
    "an update of a dynamic set": [rule(UpdateSet("pins", (Field.SADDR, Random(1, 7)), 10800))],
    "a counter that is there": [change(counters=("dropped",))],
    "a rule that counts": [rule(Count("dropped"), Drop())],
    "a counter that the same declares": [change(counters=("new",), chains=(chain("x", (Count("new"),)),))],
    "a chance of one in one": [rule(Chance(1))],
    "the highest constant": [rule(InSet((Field.SADDR, Random(1, 2**32 - 1)), "pins"))],
    "a chain that nothing refers to goes": [change(delete_chains=("b",))],
    "a chain with rules goes": [change(delete_chains=("refuse",))],
    "a base chain goes": [change(chains=(chain("x", hook=INPUT),)), change(delete_chains=("x",))],
    "a chain and the element that led to it": [change(delete_elements=(VERDICT,), delete_chains=("a",))],
    "a chain and the map that led to it": [change(delete_containers=(("verdicts", True),), delete_chains=("a",))],
    "a chain and the rule that led to it": [
        rule(Jump("b")),
        change(chains=(chain("x"),), delete_chains=("b",)),
    ],
    "callers are deleted before the called": [rule(Jump("b")), change(delete_chains=("x", "b"))],
    "a map with elements goes": [change(delete_containers=(("endpoints", True),))],
    "a set and the rule that read it": [
        rule(InSet((Field.DADDR,), "ips")),
        change(chains=(chain("x"),), delete_containers=(("ips", False),)),
    ],
    "the same container again": [change(containers=BASE.containers)],
    "the same container with another size": [change(containers=(Container("pins", (A, N), timeout=True, size=200),))],
    "the same table with another comment": [change(table="other")],
    "the same hook again": [
        change(chains=(chain("x", hook=INPUT),)),
        change(chains=(chain("x", (Drop(),), hook=INPUT),)),
    ],
    "a base chain without mention of its hook": [change(chains=(chain("x", hook=INPUT),)), rule(Drop())],
    "a chain with another comment": [
        change(chains=(chain("x", comment="a"),)),
        change(chains=(chain("x", comment="b"),)),
    ],
    "comments of 128 characters": [
        change(chains=(chain("x", comment="c" * 128),), add_elements=(Element("ips", "192.0.2.2", "", "c" * 128),))
    ],
    "names of 255 characters": [change(chains=(chain("x" * 255),))],
    "the table goes with all that is in it": [rule(VerdictMap(ADDRESS_KEY, "verdicts")), change(delete_table=True)],
    "the table comes back": [change(delete_table=True), BASE],
    "a set is filled up": [add("two", "192.0.2.1", "192.0.2.2", "192.0.2.2"), add("two", "192.0.2.1")],
    "a full set changes": [
        add("two", "192.0.2.1", "192.0.2.2"),
        change(delete_elements=(Element("two", "192.0.2.1"),), add_elements=(Element("two", "192.0.2.3"),)),
    ],
    "dnat below a nat chain": [
        change(chains=(chain("x", (Dnat("tcp", "10.0.0.3", 80),)), chain("base", (Jump("x"),), hook=NAT)))
    ],
    "masquerade in postrouting": [change(chains=(chain("base", (Masquerade(),), hook=POSTROUTING),))],
    "reject in forward": [change(chains=(chain("base", (Goto("refuse"),), hook=Hook("filter", "forward", 0)),))],
    "a loop that no base chain reaches": [change(chains=(chain("x", (Jump("y"),)), chain("y", (Jump("x"),))))],
    "15 chains deep": [deep(15)],
    "a statement after a verdict map": [rule(VerdictMap(ADDRESS_KEY, "verdicts"), Drop())],
    "an interface prefix": [rule(Match(Field.IIFNAME, "veth*"))],
    "a bit of the mark": [rule(SetMark(1 << 31))],
    "the same range again": [sources("10.0.0.0/8"), sources("10.0.0.0/8")],
    "the same range twice in one": [sources("10.0.0.0/8", "10.0.0.0/8")],
    "ranges beside each other": [sources("10.0.0.0/9"), sources("10.128.0.0/9")],
    "the same range of another frontend": [sources("10.0.0.0/8"), sources("10.1.0.0/16", address="192.0.2.2")],
    "everything as a range": [sources("0.0.0.0/0")],
    "a host as a range": [sources("10.0.0.1"), sources("10.0.0.1/32")],
    "a part instead of the whole": [sources("10.0.0.0/8"), sources("10.1.0.0/16", instead_of=("10.0.0.0/8",))],
    "the whole instead of parts": [
        sources("10.1.0.0/16", "10.7.0.1"),
        sources("10.0.0.0/8", instead_of=("10.1.0.0/16", "10.7.0.1")),
    ],
    # Surprises of the real kernel: neither may be relied on, both are why ranges are collapsed and deleted as added.
    "SURPRISE: a range around one that is there": [sources("10.1.0.0/16"), sources("10.0.0.0/8")],
    "SURPRISE: deleting a part deletes the whole": [
        sources("10.0.0.0/8"),
        sources(instead_of=("10.1.0.0/16",)),
        sources("10.0.0.0/9"),
    ],
}

# Each is a sequence after BASE, of which the last is refused.
REFUSED: dict[str, list[Transaction]] = {
    "another value": [add("endpoints", ENDPOINT_TEXT, value="10.244.0.2 . 8080")],
    "another verdict": [add("verdicts", VERDICT_KEY, value="goto b")],
    "jump instead of goto": [add("verdicts", VERDICT_KEY, value="jump a")],
    "two values in one": [
        change(add_elements=tuple(Element("endpoints", "192.0.2.1 . 80 . 1", f"10.244.0.{i} . 80") for i in (1, 2)))
    ],
    "deletion of what is not there": [delete("ips", "192.0.2.9")],
    "deletion twice": [delete("ips", "192.0.2.1", "192.0.2.1")],
    "element of an unknown set": [add("nothing", "192.0.2.9")],
    "deletion from an unknown set": [delete("nothing", "192.0.2.9")],
    "a value in a set": [add("ips", "192.0.2.9", value="goto a")],
    "no value in a map": [add("verdicts", "192.0.2.9 . tcp . 80")],
    "a verdict in a map of addresses": [add("endpoints", "192.0.2.1 . 80 . 1", value="goto a")],
    "an address in a verdict map": [add("verdicts", "192.0.2.9 . tcp . 80", value="10.244.0.1 . 80")],
    "an unknown verdict": [add("verdicts", "192.0.2.9 . tcp . 80", value="reject")],
    "a verdict to an unknown chain": [add("verdicts", "192.0.2.9 . tcp . 80", value="goto nothing")],
    "a verdict to a base chain": [
        change(chains=(chain("x", hook=INPUT),)),
        add("verdicts", "192.0.2.9 . tcp . 80", value="goto x"),
    ],
    "a jump to a base chain": [change(chains=(chain("x", hook=INPUT), chain("y", (Jump("x"),))))],
    "a part of the key missing": [add("verdicts", "192.0.2.9 . tcp", value="goto a")],
    "a part of the key too much": [add("ips", "192.0.2.9 . 80")],
    "a part of the value missing": [add("endpoints", "192.0.2.1 . 80 . 1", value="10.244.0.1")],
    "no key": [add("ips", "")],
    "not an address": [add("ips", "192.0.2.300")],
    "an address of the other family": [add("ips", "2001:db8::1")],
    "a range where there are no intervals": [add("ips", "192.0.2.0/24")],
    "a port beyond 65535": [add("verdicts", "192.0.2.9 . tcp . 65536", value="goto a")],
    "a negative port": [add("verdicts", "192.0.2.9 . tcp . -1", value="goto a")],
    "an endpoint's port beyond 65535": [add("endpoints", "192.0.2.1 . 80 . 1", value="10.244.0.1 . 65536")],
    "an index beyond 32 bits": [add("endpoints", "192.0.2.1 . 80 . 4294967296", value="10.244.0.1 . 80")],
    "an unknown protocol": [add("verdicts", "192.0.2.9 . quux . 80", value="goto a")],
    "a jump to an unknown chain": [rule(Jump("nothing"))],
    "an unknown verdict map": [rule(VerdictMap(ADDRESS_KEY, "nothing"))],
    "an unknown set": [rule(InSet((Field.DADDR,), "nothing"))],
    "an unknown map of endpoints": [rule(DnatMap("tcp", ENDPOINT_KEY, "nothing"))],
    "an unknown counter": [rule(Count("nothing"), Drop())],
    "a name that no counter can have": [change(counters=("a b",))],
    "no table, a counter": [change(V6, counters=("dropped",))],
    "an unknown set to update": [rule(UpdateSet("nothing", (Field.SADDR, Random(1, 7)), 10))],
    "endpoints from a verdict map": [rule(DnatMap("tcp", ADDRESS_KEY, "verdicts"))],
    "verdicts from a set": [rule(VerdictMap((Field.DADDR,), "ips"))],
    "verdicts from a map of addresses": [rule(VerdictMap(ENDPOINT_KEY, "endpoints"))],
    "a shorter key than the map's": [rule(VerdictMap(NODE_PORT_KEY, "verdicts"))],
    "a key of another type": [rule(InSet((Field.DPORT,), "ips"))],
    "an update of a set that is not dynamic": [rule(UpdateSet("ips", (Field.SADDR,), 30))],
    "a modulus of zero": [rule(Chance(0))],
    "a constant beyond 32 bits": [rule(InSet((Field.SADDR, Random(2, 2**32 - 1)), "pins"))],
    "a rule without statements": [rule()],
    "a statement after a jump": [rule(Jump("a"), Drop())],
    "a statement after dnat": [rule(Dnat("tcp", "10.0.0.1", 80), Drop())],
    "a chain that is not there goes": [change(delete_chains=("nothing",))],
    "a chain that an element leads to goes": [change(delete_chains=("a",))],
    "a chain that a rule leads to goes": [rule(Jump("b")), change(delete_chains=("b",))],
    "the called are deleted before callers": [rule(Jump("b")), change(delete_chains=("b", "x"))],
    "a set that is not there goes": [change(delete_containers=(("nothing", False),))],
    "a set that a rule reads goes": [rule(InSet((Field.DADDR,), "ips")), change(delete_containers=(("ips", False),))],
    "a map that a rule reads goes": [
        rule(DnatMap("tcp", ENDPOINT_KEY, "endpoints")),
        change(delete_containers=(("endpoints", True),)),
    ],
    "a set that a rule writes goes": [
        rule(UpdateSet("pins", (Field.SADDR, Random(1, 7)), 30)),
        change(delete_containers=(("pins", False),)),
    ],
    "a set goes before the chain that reads it": [
        rule(InSet((Field.DADDR,), "ips")),
        change(delete_containers=(("ips", False),), delete_chains=("x",)),
    ],
    "a set with another key": [change(containers=(Container("ips", (PORT,)),))],
    "a set as a map": [change(containers=(Container("ips", (A,), ()),))],
    "a map as a set": [change(containers=(Container("verdicts", (A, P, PORT)),))],
    "a map without its counters": [change(containers=(Container("verdicts", (A, P, PORT), ()),))],
    "a set with intervals now": [change(containers=(Container("ips", (A,), interval=True),))],
    "another priority": [
        change(chains=(chain("x", hook=INPUT),)),
        change(chains=(chain("x", hook=Hook("filter", "input", 1)),)),
    ],
    "another hook": [
        change(chains=(chain("x", hook=INPUT),)),
        change(chains=(chain("x", hook=Hook("filter", "forward", 0)),)),
    ],
    "another type": [
        change(chains=(chain("x", hook=NAT),)),
        change(chains=(chain("x", hook=Hook("filter", "prerouting", -100)),)),
    ],
    "a hook for a chain that has none": [change(chains=(chain("a", hook=INPUT),))],
    "an unknown hook": [change(chains=(chain("x", hook=Hook("filter", "nothing", 0)),))],
    "an unknown type of chain": [change(chains=(chain("x", hook=Hook("nothing", "input", 0)),))],
    "nat in forward": [change(chains=(chain("x", hook=Hook("nat", "forward", 0)),))],
    "nat before connection tracking": [change(chains=(chain("x", hook=Hook("nat", "prerouting", -300)),))],
    "a space in a name": [change(chains=(chain("a b"),))],
    "a digit first in a name": [change(chains=(chain("1a"),))],
    "a quote in a name": [change(chains=(chain('a"b'),))],
    "names of 256 characters": [change(chains=(chain("x" * 256),))],
    "comments of 129 characters": [change(chains=(chain("x", comment="c" * 129),))],
    "element comments of 129 characters": [change(add_elements=(Element("ips", "192.0.2.2", "", "c" * 129),))],
    "a quote in a comment": [change(add_elements=(Element("ips", "192.0.2.2", "", 'c"'),))],
    "no table, an element": [change(V6, add_elements=(Element("ips", "2001:db8::1"),))],
    "no table, a chain": [change(V6, chains=(chain("x"),))],
    "no table, its deletion": [change(V6, delete_table=True)],
    "too long a prefix": [rule(Match(Field.SADDR, "10.0.0.0/33"))],
    "a range of the other family": [rule(Match(Field.SADDR, "fd00::/8"))],
    "an interface name too long": [rule(Match(Field.IIFNAME, "a" * 16))],
    "no interface name": [rule(Match(Field.IIFNAME, ""))],
    "any interface": [rule(Match(Field.IIFNAME, "*"))],
    "dnat to what is not an address": [rule(Dnat("tcp", "10.0.0.300", 80))],
    "dnat to the other family": [rule(Dnat("tcp", "2001:db8::1", 80))],
    "dnat to a port beyond 65535": [rule(Dnat("tcp", "10.0.0.3", 80000))],
    "a bit beyond the mark": [rule(SetMark(1 << 32))],
    "dnat below a filter chain": [
        change(chains=(chain("x", (Dnat("tcp", "10.0.0.3", 80),)), chain("base", (Jump("x"),), hook=INPUT)))
    ],
    "dnat below a filter chain, by a map": [
        change(chains=(chain("base", (VerdictMap(ADDRESS_KEY, "verdicts"),), hook=INPUT),)),
        change(chains=(chain("a", (DnatMap("tcp", ENDPOINT_KEY, "endpoints"),)),)),
    ],
    "dnat in postrouting": [change(chains=(chain("base", (Dnat("tcp", "10.0.0.3", 80),), hook=POSTROUTING),))],
    "masquerade in prerouting": [change(chains=(chain("base", (Masquerade(),), hook=NAT),))],
    "masquerade in a filter chain": [change(chains=(chain("base", (Masquerade(),), hook=INPUT),))],
    "reject in postrouting": [change(chains=(chain("base", (Reject(),), hook=Hook("filter", "postrouting", 0)),))],
    "a loop": [
        change(chains=(chain("x", (Jump("y"),)), chain("y", (Jump("x"),)), chain("base", (Jump("x"),), hook=INPUT)))
    ],
    "a loop by a map": [
        change(chains=(chain("a", (VerdictMap(ADDRESS_KEY, "verdicts"),)), chain("base", (Jump("a"),), hook=INPUT)))
    ],
    "16 chains deep": [deep(16)],
    "more elements than the size": [add("two", "192.0.2.1", "192.0.2.2", "192.0.2.3")],
    "one more in a full set": [add("two", "192.0.2.1", "192.0.2.2"), add("two", "192.0.2.3")],
    "a range within one that is there": [sources("10.0.0.0/8"), sources("10.1.0.0/16")],
    "a host within a range that is there": [sources("10.0.0.0/9"), sources("10.0.0.1")],
    "a range that begins where another does": [sources("10.0.0.0/16"), sources("10.0.0.0/8")],
    "a range within another, in one": [sources("10.0.0.0/8", "10.1.0.0/16")],
    "anything beside everything": [sources("0.0.0.0/0"), sources("10.0.0.0/8")],
    "deletion of a range that begins outside": [sources("10.1.0.0/16"), sources(instead_of=("10.0.0.0/8",))],
    "a range of the other family in the set": [sources("fd00::/8")],
    "a range with too long a prefix": [sources("10.0.0.0/33")],
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepts(ruleset: EitherRuleset, case: str) -> None:
    ruleset.commit(BASE)
    for step in ACCEPTED[case]:
        ruleset.commit(step)


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_and_leaves_everything_as_it_was(ruleset: EitherRuleset, case: str) -> None:
    ruleset.commit(BASE)
    *before, last = REFUSED[case]
    for step in before:
        ruleset.commit(step)
    known = _all(ruleset)
    with pytest.raises(KernelRefusedError):
        ruleset.commit(last)
    assert _all(ruleset) == known


@pytest.mark.kernel
@pytest.mark.parametrize("case", ACCEPTED)
def test_both_kernels_hold_the_same_elements(real: RealRuleset, case: str) -> None:
    fake = FakeRuleset()
    for step in (BASE, *ACCEPTED[case]):
        fake.commit(step)
        real.commit(step)
        assert _all(fake) == _all(real)


def _all(ruleset: EitherRuleset) -> list[tuple[Contents, dict[str, dict[str, str]], dict[str, int]]]:
    return [(ruleset.contents(family), ruleset.elements(family), ruleset.counters(family)) for family in FAMILIES]


def test_a_counter_keeps_its_count_when_it_is_declared_again_and_begins_anew_with_the_table(
    ruleset: EitherRuleset,
) -> None:
    ruleset.commit(change(table="test"))
    ruleset.has_counted(V4, "dropped", 3)
    ruleset.commit(BASE)
    ruleset.commit(change(counters=("dropped", "other"), chains=(chain("x", (Count("dropped"),)),)))
    assert ruleset.counters(V4) == {"dropped": 3, "other": 0}
    ruleset.commit(change(delete_table=True))
    ruleset.commit(BASE)
    assert ruleset.counters(V4) == {"dropped": 0}


def test_a_refused_part_undoes_all_that_came_before_it(ruleset: EitherRuleset) -> None:
    ruleset.commit(BASE)
    known = _all(ruleset)
    with pytest.raises(KernelRefusedError):
        ruleset.commit(
            change(
                table="other",
                containers=(Container("new", (A,)),),
                chains=(chain("new", (Drop(),)), chain("refuse")),
                delete_elements=(ENDPOINT,),
                add_elements=(Element("new", "192.0.2.7"),),
                delete_chains=("b", "nothing"),
            )
        )
    assert _all(ruleset) == known


def test_a_transaction_without_anything_is_accepted_even_without_a_table(ruleset: EitherRuleset) -> None:
    ruleset.commit(change(V6))
    assert ruleset.contents(V6) == Contents()


def test_contents_names_chains_and_containers_of_one_family(ruleset: EitherRuleset) -> None:
    assert ruleset.contents(V4) == Contents()
    ruleset.commit(BASE)
    ruleset.commit(change(V6, table="test", containers=(Container("six", (A,)),), chains=(chain("sixth"),)))
    contents = ruleset.contents(V4)
    assert contents.chains == {"a", "b", "refuse"}
    assert contents.containers == {
        "ips": False,
        "two": False,
        "verdicts": True,
        "nodeports": True,
        "endpoints": True,
        "sources": False,
        "pins": False,
    }
    assert ruleset.contents(V6) == Contents(frozenset({"sixth"}), {"six": False})


def test_contents_is_empty_once_the_table_is_gone(ruleset: EitherRuleset) -> None:
    ruleset.commit(BASE)
    ruleset.commit(change(delete_table=True))
    assert ruleset.contents(V4) == Contents()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "fields",
    [{}, {"node_port_addresses": None}, {"local": None}, {"masquerade_all": True}, {"drop_invalid": False}],
    ids=str,
)
def test_the_whole_layout_is_accepted(ruleset: EitherRuleset, family: Family, fields: dict[str, Any]) -> None:
    settings_ = build.settings(family, **fields)
    layout = Layout(family, 7, 0x4000, settings_.drop_invalid)
    ruleset.commit(
        Transaction(
            family,
            table=TABLE_COMMENT,
            containers=layout.containers(),
            counters=COUNTERS,
            chains=generation_chains(layout, settings_) + base_chains(layout),
            add_elements=node_port_elements(layout, settings_),
        )
    )
    contents = ruleset.contents(family)
    assert contents.containers == {each.name: each.is_map for each in layout.containers()}
    assert contents.chains == {each.name for each in generation_chains(layout, settings_) + base_chains(layout)}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
@pytest.mark.parametrize("node_port", [False, True])
def test_balancers_refer_to_maps_of_an_earlier_command(
    ruleset: EitherRuleset, family: Family, protocol: str, node_port: bool
) -> None:
    """nft 1.0.6 cannot read back a map that was declared with "th dport", and refuses rules about it then."""
    layout = Layout(family, 1, 0x4000)
    ruleset.commit(Transaction(family, table=TABLE_COMMENT, containers=layout.containers()))
    for count in (1, 2, 1000):
        balancer = layout.balancer(protocol, count, node_port=node_port)
        local = layout.balancer(protocol, count, node_port=node_port, local=True)
        ruleset.commit(Transaction(family, chains=(balancer, layout.masquerading(balancer), local)))


@pytest.mark.kernel
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("protocol", ["udp", "sctp"])
def test_chains_of_one_protocol_carry_no_condition_of_another(real: RealRuleset, family: Family, protocol: str) -> None:
    """From "tcp dport" in a map's declaration nft must not make a rule that matches TCP only."""
    layout = Layout(family, 1, 0x4000)
    port = PortForwarding("shop/web", protocol, (), affinity_seconds=60)
    host = "10.244.0.1" if family is Family.IPV4 else "fd00::1"
    affinity = _affinity_chain(port, layout, (Backend(host, 80),), local=False)
    balancers = tuple(layout.balancer(protocol, 3, node_port=each) for each in (False, True))
    real.commit(Transaction(family, table=TABLE_COMMENT, containers=layout.containers()))
    real.commit(Transaction(family, chains=(*balancers, affinity)))
    _, text, _ = real.library._nft.cmd("list ruleset")
    rules = [line for line in text.split(f"chain {balancers[0].name}", 1)[1].splitlines() if "dnat" in line]
    assert len(rules) == 2 * 2 + 3
    # nft lists "meta l4proto udp" with "th dport" as "udp dport".
    assert all(f"l4proto {protocol}" in line or f"{protocol} dport" in line for line in rules), rules
    assert not any("tcp" in line for line in rules), rules


@pytest.mark.parametrize("offset", [0, 1, 0x7FFFFFFF, 0x80000000, 2**32 - 1])
def test_constants_of_32_bits_get_into_keys(ruleset: EitherRuleset, offset: int) -> None:
    key = (Field.SADDR, Random(1, offset))
    ruleset.commit(
        change(
            table="test",
            containers=(Container(AFFINITY, (A, N), timeout=True, size=1 << 20),),
            chains=(chain("x", (InSet(key, AFFINITY), UpdateSet(AFFINITY, key, 10800), Drop())),),
        )
    )
    ruleset.commit(change(add_elements=(Element(AFFINITY, f"192.0.2.1 . {offset}"),)))
    assert ruleset.elements(V4)[AFFINITY] == {f"192.0.2.1 . {offset}": ""}


RANGES = [
    "10.0.0.0/8",
    "10.0.0.0/9",
    "10.128.0.0/9",
    "10.1.0.0/16",
    "10.1.0.1",
    "10.0.0.0/16",
    "0.0.0.0/0",
    "11.0.0.0/8",
]


@pytest.mark.kernel
@pytest.mark.skipif(bool(why_not()), reason=why_not())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["192.0.2.1", "192.0.2.2"]),
            st.lists(st.sampled_from(RANGES), max_size=2),
            st.lists(st.sampled_from(RANGES), max_size=3),
        ),
        max_size=6,
    )
)
def test_both_kernels_agree_about_any_ranges(steps: list[tuple[str, list[str], list[str]]]) -> None:
    real, fake = RealRuleset(), FakeRuleset()
    real.commit(BASE)
    fake.commit(BASE)
    for address, gone, new in steps:
        step = sources(*new, instead_of=tuple(gone), address=address)
        assert _accepts(real, step) == _accepts(fake, step), step
        assert real.elements(V4)["sources"] == fake.elements(V4)["sources"], step


def _accepts(ruleset: EitherRuleset, transaction: Transaction) -> bool:
    try:
        ruleset.commit(transaction)
    except KernelRefusedError:
        return False
    return True


@pytest.mark.kernel
def test_the_namespace_of_the_tests_is_not_touched() -> None:
    if reason := why_not():
        pytest.skip(reason)
    before = _own_tables()
    real = RealRuleset()
    real.commit(BASE)
    assert real.contents(V4).chains
    assert _own_tables() == before


def _own_tables() -> str:
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
