"""What a kernel accepts and refuses: the same claims, tried on the in-memory kernel of the tests and on the real one."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import PortForwarding
from proxyd.kernel.nft.ruleset import Contents
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import FAMILIES, Family
from proxyd.nft.fixed import base_chains, generation_chains, node_port_elements
from proxyd.nft.layout import AFFINITY, COUNTERS, TABLE_COMMENT, Layout
from proxyd.nft.objects import (
    Container,
    Count,
    Drop,
    Element,
    Field,
    InSet,
    Random,
    Transaction,
    UpdateSet,
)
from proxyd.nft.render import _affinity_chain
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.kernel.conftest import EitherRuleset
from tests.kernel.transactions import (
    ACCEPTED,
    BASE,
    ENDPOINT,
    REFUSED,
    V4,
    V6,
    A,
    N,
    chain,
    change,
    sources,
)
from tests.netns import RealRuleset, why_not


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
    [
        {},
        {"node_port_addresses": None},
        {"local": None},
        {"local": build.by_prefix("v" * 14)},
        {"local": build.by_prefix("v" * 15)},
        {"masquerade_all": True},
        {"drop_invalid": False},
    ],
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
