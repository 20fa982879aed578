"""The delta: from what the last commit left to what is wanted, in as little as possible, and known only once it is done."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyd.model import Family, ServiceKey
from proxyd.nft.delta import Holdings, Plan, reorder
from proxyd.nft.objects import Chain, Container, Drop, Element, Goto, KeyType, Reject, Transaction
from proxyd.nft.render import EndpointList, ServiceObjects
from tests.build import key
from tests.fakes.ruleset import FakeRuleset

V4 = Family.IPV4
WEB, API = key("web"), key("api")
HAIRPIN, CLUSTER_IP = Element("hairpin", "10.244.0.1"), Element("ips", "10.96.0.1")
members = st.lists(st.sampled_from([f"e{i}" for i in range(12)]), unique=True)


def verdict(address: str, chain: str = "lb-2") -> Element:
    return Element("verdicts", address, f"goto {chain}")


def listed(
    *backends: str, frontend: str = "10.96.0.1 . 80", base: int = 0, container: str = "endpoints"
) -> EndpointList:
    return EndpointList(container, frontend, base, backends)


def done(holdings: Holdings, changes: dict[ServiceKey, ServiceObjects | None]) -> Transaction:
    """Plans and confirms; gives the transaction."""
    plan = holdings.plan(changes)
    holdings.confirm(plan)
    return plan.transaction


# reorder


@given(members, members)
def test_reorder_gives_the_wanted_members_densely(old: list[str], wanted: list[str]) -> None:
    assert sorted(reorder(old, wanted)) == sorted(wanted)


@given(members, members)
def test_reorder_changes_as_few_places_as_possible(old: list[str], wanted: list[str]) -> None:
    new = reorder(old, wanted)
    places = sum(before != after for before, after in zip(old, new, strict=False)) + abs(len(old) - len(new))
    # Each place that a member leaves within the new length has to be filled, and the length has to be right.
    holes = sum(member not in wanted for member in old[: len(new)])
    assert places == holes + abs(len(old) - len(new))


@given(members)
def test_reorder_leaves_equal_members_alone(old: list[str]) -> None:
    assert reorder(old, reversed(old)) == tuple(old)


@pytest.mark.parametrize(
    ("old", "wanted", "new"),
    [
        ("abc", "bc", "cb"),
        ("abc", "ab", "ab"),
        ("abc", "abcd", "abcd"),
        ("abc", "dbc", "dbc"),
        ("abcd", "d", "d"),
        ("abcd", "dx", "xd"),
        ("", "ab", "ab"),
        ("ab", "", ""),
        ("abcde", "ce", "ec"),
    ],
)
def test_reorder_by_example(old: str, wanted: str, new: str) -> None:
    assert reorder(old, wanted) == tuple(new)


def test_reorder_takes_a_repeated_member_once() -> None:
    assert reorder("ab", "aabb") == ("a", "b")


# Elements


def test_a_new_service_is_added_whole_after_its_chains() -> None:
    chain = Chain("lb-2", ((Drop(),),))
    objects = ServiceObjects((verdict("10.96.0.1"),), (CLUSTER_IP,), (listed("a", "b"),), (chain,))
    plan = Holdings(V4).plan({WEB: objects})
    assert plan.before == Transaction(V4, chains=(chain,))
    assert plan.transaction == Transaction(
        V4,
        add_elements=(
            Element("endpoints", "10.96.0.1 . 80 . 0", "a"),
            Element("endpoints", "10.96.0.1 . 80 . 1", "b"),
            CLUSTER_IP,
            verdict("10.96.0.1"),
        ),
    )


def test_a_service_that_goes_is_deleted_whole_but_for_its_chains() -> None:
    holdings = Holdings(V4)
    objects = ServiceObjects(
        (verdict("10.96.0.1"),), (CLUSTER_IP,), (listed("a", "b"),), (Chain("lb-2", ((Drop(),),)),)
    )
    added = done(holdings, {WEB: objects})
    deleted = done(holdings, {WEB: None})
    assert set(deleted.delete_elements) == set(added.add_elements)
    assert (deleted.chains, deleted.add_elements, deleted.delete_chains) == ((), (), ())
    assert WEB not in holdings


def test_equal_objects_cost_nothing() -> None:
    holdings = Holdings(V4)
    objects = ServiceObjects(
        (verdict("10.96.0.1"),), (CLUSTER_IP,), (listed("a", "b"),), (Chain("lb-2", ((Drop(),),)),)
    )
    done(holdings, {WEB: objects})
    assert done(holdings, {WEB: objects}).size == 0
    assert done(holdings, {API: None}).size == 0


def test_another_order_of_endpoints_costs_nothing() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: ServiceObjects(lists=(listed("a", "b", "c"),))})
    assert done(holdings, {WEB: ServiceObjects(lists=(listed("c", "a", "b"),))}).size == 0


def test_the_last_endpoint_moves_into_the_hole() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: ServiceObjects(lists=(listed("a", "b", "c"),))})
    transaction = done(holdings, {WEB: ServiceObjects(lists=(listed("b", "c"),))})
    assert [(e.key[-1], e.value) for e in transaction.delete_elements] == [("0", "a"), ("2", "c")]
    assert [(e.key[-1], e.value) for e in transaction.add_elements] == [("0", "c")]
    # It is remembered where each endpoint is now.
    after = done(holdings, {WEB: ServiceObjects(lists=(listed("b"),))})
    assert [(e.key[-1], e.value) for e in after.delete_elements] == [("0", "c"), ("1", "b")]


def test_second_lists_are_counted_from_their_base() -> None:
    holdings = Holdings(V4)
    first, second = listed("a", "b"), listed("b", base=65536)
    transaction = done(holdings, {WEB: ServiceObjects(lists=(first, second))})
    assert [e.key.rpartition(" ")[2] for e in transaction.add_elements] == ["0", "1", "65536"]
    gone = done(holdings, {WEB: ServiceObjects(lists=(first,))})
    assert [e.key.rpartition(" ")[2] for e in gone.delete_elements] == ["65536"]


def test_an_element_is_shared_until_the_last_service_is_gone() -> None:
    holdings = Holdings(V4)
    objects = ServiceObjects(shared=(HAIRPIN,))
    assert done(holdings, {WEB: objects}).add_elements == (HAIRPIN,)
    assert done(holdings, {API: objects}).size == 0
    assert done(holdings, {WEB: None}).size == 0
    assert done(holdings, {API: None}).delete_elements == (HAIRPIN,)


@pytest.mark.parametrize("order", [(WEB, API), (API, WEB)])
def test_a_shared_element_that_passes_from_one_service_to_another_is_not_touched(
    order: tuple[ServiceKey, ServiceKey],
) -> None:
    holdings = Holdings(V4)
    objects = ServiceObjects(shared=(HAIRPIN,))
    done(holdings, {WEB: objects})
    changes: dict[ServiceKey, ServiceObjects | None] = {WEB: None, API: objects}
    assert done(holdings, {each: changes[each] for each in order}).size == 0
    assert done(holdings, {API: None}).delete_elements == (HAIRPIN,)


@pytest.mark.parametrize("order", [(WEB, API), (API, WEB)])
@pytest.mark.parametrize("backends", [("x", "y"), ("a", "b"), ("a",)])
def test_a_frontend_that_passes_from_one_service_to_another_is_deleted_before_it_is_added(
    order: tuple[ServiceKey, ServiceKey], backends: tuple[str, ...]
) -> None:
    holdings, kernel = Holdings(V4), _kernel()
    _commit(kernel, holdings, {WEB: ServiceObjects((verdict("10.96.0.1"),), (), (listed("1", "2"),))})
    new = ServiceObjects((verdict("10.96.0.1", "lb-3"),), (), (listed(*(str(ord(b)) for b in backends)),))
    changes: dict[ServiceKey, ServiceObjects | None] = {WEB: None, API: new}
    _commit(kernel, holdings, {each: changes[each] for each in order})
    elements = kernel.elements(V4)
    assert elements["verdicts"] == {"10.96.0.1": "goto lb-3"}
    assert sorted(elements["endpoints"].values()) == sorted(str(ord(b)) for b in backends)
    assert API in holdings
    assert holdings.keys() == {API}


def test_two_services_swap_frontends_in_one_plan() -> None:
    holdings, kernel = Holdings(V4), _kernel()
    one, two = ServiceObjects((verdict("10.96.0.1", "lb-2"),)), ServiceObjects((verdict("10.96.0.2", "lb-3"),))
    swapped: dict[ServiceKey, ServiceObjects | None] = {
        WEB: ServiceObjects((verdict("10.96.0.2", "lb-2"),)),
        API: ServiceObjects((verdict("10.96.0.1", "lb-3"),)),
    }
    _commit(kernel, holdings, {WEB: one, API: two})
    _commit(kernel, holdings, swapped)
    assert kernel.elements(V4)["verdicts"] == {"10.96.0.1": "goto lb-3", "10.96.0.2": "goto lb-2"}


def _kernel() -> FakeRuleset:
    kernel = FakeRuleset()
    containers = (
        Container("verdicts", (KeyType.ADDRESS,), ()),
        Container("endpoints", (KeyType.ADDRESS, KeyType.PORT, KeyType.NUMBER), (KeyType.PORT,)),
    )
    kernel.commit(Transaction(V4, table="test", containers=containers, chains=(Chain("lb-2", ()), Chain("lb-3", ()))))
    return kernel


def _commit(kernel: FakeRuleset, holdings: Holdings, changes: dict[ServiceKey, ServiceObjects | None]) -> None:
    plan = holdings.plan(changes)
    _carry_out(kernel, plan)
    holdings.confirm(plan)


def _carry_out(kernel: FakeRuleset, plan: Plan) -> None:
    for transaction in (plan.before, plan.transaction, plan.after):
        kernel.commit(transaction)


# Nothing is known before it is done


def test_a_plan_changes_nothing_until_it_is_confirmed() -> None:
    holdings = Holdings(V4)
    old = ServiceObjects((verdict("10.96.0.1"),), (HAIRPIN,), (listed("a", "b"),), (Chain("lb-2", ((Drop(),),)),))
    new = ServiceObjects((verdict("10.96.0.2"),), (CLUSTER_IP,), (listed("b", "c"),), (Chain("lb-3", ((Drop(),),)),))
    done(holdings, {WEB: old})
    first = holdings.plan({WEB: new, API: old})
    holdings.plan({WEB: None})
    assert holdings.plan({WEB: new, API: old}) == first
    assert holdings.plan_cleanup() is None
    assert holdings.keys() == {WEB}
    assert holdings.plan({WEB: old}).transaction.size == 0
    holdings.confirm(first)
    assert holdings.keys() == {WEB, API}
    assert holdings.plan({WEB: new, API: old}).transaction.size == 0


# Chains


def chained(*chains: Chain) -> ServiceObjects:
    return ServiceObjects(chains=chains)


TWO, THREE = Chain("g1/lb-2", ((Drop(),),)), Chain("g1/lb-3", ((Drop(),),))


def test_a_chain_is_written_once_for_all_services() -> None:
    holdings = Holdings(V4)
    first = holdings.plan({WEB: chained(TWO)})
    assert (first.before.chains, first.transaction.chains) == ((TWO,), ())
    holdings.confirm(first)
    second = holdings.plan({API: chained(TWO)})
    assert (second.before.chains, second.transaction.chains) == ((), ())


def test_an_unused_chain_that_is_to_have_other_rules_is_rewritten_before_it_is_used() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: chained(TWO)})
    done(holdings, {WEB: None})
    other = Chain(TWO.name, ((Reject(),),))
    plan = holdings.plan({WEB: chained(other)})
    assert (plan.before.chains, plan.transaction.chains) == ((other,), ())


def test_a_new_chain_that_was_written_and_whose_use_was_refused_is_kept_in_mind() -> None:
    holdings = Holdings(V4)
    holdings.confirm_before(holdings.plan({WEB: chained(TWO)}))
    assert holdings.plan_cleanup() == Transaction(V4, delete_chains=(TWO.name,))
    again = holdings.plan({WEB: chained(TWO)})
    assert (again.before.chains, again.transaction.chains) == ((), ())
    holdings.confirm(again)
    assert holdings.plan_cleanup() is None


def test_a_chain_with_other_rules_is_rewritten() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: chained(TWO)})
    other = Chain(TWO.name, ((Reject(),),))
    assert done(holdings, {WEB: chained(other)}).chains == (other,)
    assert holdings.plan_cleanup() is None


def test_a_chain_is_deleted_by_cleanup_once_nothing_uses_it() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: chained(TWO), API: chained(TWO)})
    done(holdings, {WEB: chained(THREE)})
    assert holdings.plan_cleanup() is None
    done(holdings, {API: None})
    cleanup = holdings.plan_cleanup()
    assert cleanup == Transaction(V4, delete_chains=(TWO.name,))
    # Until it has succeeded, it stays owed.
    assert holdings.plan_cleanup() == cleanup
    holdings.confirm_cleanup(cleanup)
    assert holdings.plan_cleanup() is None


def test_cleanup_can_leave_out_what_was_used_until_a_moment_ago() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: chained(TWO), API: chained(THREE)})
    holdings.confirm(holdings.plan({WEB: None}), at=10.0)
    holdings.confirm(holdings.plan({API: None}), at=20.0)
    assert holdings.plan_cleanup(before=9.0) is None
    assert holdings.plan_cleanup(before=10.0) == Transaction(V4, delete_chains=(TWO.name,))
    done(holdings, {API: chained(TWO)})
    holdings.confirm(holdings.plan({API: None}), at=30.0)
    assert holdings.plan_cleanup(before=20.0) == Transaction(V4, delete_chains=(THREE.name,))


def test_an_unused_chain_that_is_needed_again_stays_as_it_is() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: chained(TWO)})
    done(holdings, {WEB: chained(THREE)})
    assert holdings.plan({WEB: chained(TWO)}).before.chains == ()
    done(holdings, {WEB: chained(TWO)})
    assert holdings.plan_cleanup() == Transaction(V4, delete_chains=(THREE.name,))


def test_a_chain_that_was_deleted_is_written_again() -> None:
    holdings = Holdings(V4)
    done(holdings, {WEB: chained(TWO)})
    done(holdings, {WEB: None})
    cleanup = holdings.plan_cleanup()
    assert cleanup is not None
    holdings.confirm_cleanup(cleanup)
    assert holdings.plan({WEB: chained(TWO)}).before.chains == (TWO,)


def test_cleanup_deletes_callers_before_what_they_call() -> None:
    holdings = Holdings(V4)
    names = ["g1/affinity-x", "g1/external-affinity-x", "g1/external-lb-2", "g1/lb-2"]
    calls = {name: name.replace("external-", "") for name in names if "external-" in name}
    done(holdings, {WEB: chained(*(Chain(n, ((Goto(calls[n]),),) if n in calls else ()) for n in names))})
    done(holdings, {WEB: None})
    cleanup = holdings.plan_cleanup()
    assert cleanup is not None
    order = cleanup.delete_chains
    assert sorted(order) == sorted(names)
    assert all(order.index(caller) < order.index(called) for caller, called in calls.items())


# Any sequence


services = st.sampled_from([WEB, API, key("dns")])
objects = st.builds(
    lambda shared, counts: ServiceObjects(
        (), tuple(shared), (), tuple(Chain(f"g1/lb-{n}", ((Drop(),),)) for n in counts)
    ),
    st.lists(st.sampled_from([HAIRPIN, CLUSTER_IP]), unique=True),
    st.lists(st.integers(1, 3), unique=True),
)


@given(st.lists(st.tuples(st.dictionaries(services, st.none() | objects, max_size=3), st.booleans(), st.booleans())))
def test_shared_elements_and_chains_are_there_exactly_while_used(
    steps: Iterable[tuple[dict[ServiceKey, ServiceObjects | None], bool, bool]],
) -> None:
    holdings, kernel = Holdings(V4), FakeRuleset()
    sets = (Container("hairpin", (KeyType.ADDRESS,)), Container("ips", (KeyType.ADDRESS,)))
    kernel.commit(Transaction(V4, table="test", containers=sets))
    current: dict[ServiceKey, ServiceObjects] = {}
    for changes, refused, clean in steps:
        plan: Plan = holdings.plan(changes)
        if refused:
            continue
        _carry_out(kernel, plan)
        holdings.confirm(plan)
        current = {k: v for k, v in {**current, **changes}.items() if v is not None}
        if clean and (cleanup := holdings.plan_cleanup()) is not None:
            kernel.commit(cleanup)
            holdings.confirm_cleanup(cleanup)
        used = {e for each in current.values() for e in each.shared}
        assert {(c, k) for c, held in kernel.elements(V4).items() for k in held} == {(e.container, e.key) for e in used}
        needed = {chain.name for each in current.values() for chain in each.chains}
        present = kernel.contents(V4).chains
        assert needed == present if clean else needed <= present
