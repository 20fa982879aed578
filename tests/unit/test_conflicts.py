"""Conflicts: who serves a frontend that several Services claim, whatever the order in which they came."""

from collections.abc import Mapping
from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st

from proxyd.desired.conflicts import Claim, Claims, FrontendKey, Kind, claim
from proxyd.model import ServiceKey
from tests.build import key

ADDRESS = FrontendKey("203.0.113.10", "tcp", 80)
OTHER = FrontendKey("203.0.113.10", "tcp", 443)
OLD, NEW = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"
X, Y, Z = key("x"), key("y"), key("z")


def claimed(name: ServiceKey, kind: Kind = Kind.EXTERNAL_IP, created: str = OLD) -> Claim:
    return claim(kind, created, name)


def standing(*claims: Claim, frontend: FrontendKey = ADDRESS) -> Claims:
    out = Claims()
    for each in claims:
        out.update(each.key, {frontend: each})
    return out


def winner(claims: Claims, *keys: ServiceKey, frontend: FrontendKey = ADDRESS) -> ServiceKey:
    [found] = [each for each in keys if frontend not in claims.lost(each)]
    assert {claims.lost(each)[frontend] for each in keys if each != found} <= {found}
    return found


# In each pair the first one wins.
RANKS = [
    claimed(Z, Kind.CLUSTER_IP, ""),
    claimed(Z, Kind.NODE_PORT, NEW),
    claimed(Z, Kind.LOAD_BALANCER, ""),
    claimed(Y, Kind.EXTERNAL_IP, OLD),
    claimed(key("a", "other"), Kind.EXTERNAL_IP, OLD),
    claimed(X, Kind.EXTERNAL_IP, NEW),
    claimed(key("w"), Kind.EXTERNAL_IP, ""),
    claimed(key("w", "kube-system"), Kind.EXTERNAL_IP, ""),
]


@pytest.mark.parametrize(
    ("first", "second"), [pair for pair in combinations(RANKS, 2) if pair[0].key != pair[1].key], ids=str
)
def test_kind_then_age_then_name_decide_and_undated_is_last(first: Claim, second: Claim) -> None:
    for order in ((first, second), (second, first)):
        assert winner(standing(*order), first.key, second.key) == first.key


def test_one_service_alone_loses_nothing() -> None:
    assert standing(claimed(X)).lost(X) == {}
    assert Claims().lost(X) == {}


def test_other_ports_protocols_and_addresses_are_no_conflict() -> None:
    claims = Claims()
    for name, frontend in (
        (X, ADDRESS),
        (Y, OTHER),
        (Z, ADDRESS._replace(protocol="udp")),
        (key("w"), ADDRESS._replace(address="203.0.113.11")),
    ):
        assert claims.update(name, {frontend: claimed(name)}) == set()
        assert claims.lost(name) == {}


def test_the_loser_takes_over_when_the_winner_goes() -> None:
    claims = standing(claimed(X, created=OLD), claimed(Y, created=NEW))
    assert claims.lost(Y) == {ADDRESS: X}
    assert claims.update(X, {}) == {Y}
    assert claims.lost(Y) == claims.lost(X) == {}


def test_the_winner_is_back_when_it_is_added_again() -> None:
    claims = standing(claimed(X, created=OLD), claimed(Y, created=NEW))
    claims.update(X, {})
    assert claims.update(X, {ADDRESS: claimed(X)}) == {Y}
    assert (claims.lost(X), claims.lost(Y)) == ({}, {ADDRESS: X})


def test_a_service_loses_one_frontend_and_keeps_its_others() -> None:
    claims = standing(claimed(X, created=OLD))
    claims.update(Y, {ADDRESS: claimed(Y, created=NEW), OTHER: claimed(Y, created=NEW)})
    assert claims.lost(Y) == {ADDRESS: X}


def test_of_three_only_one_has_it_and_the_others_know_which() -> None:
    claims = standing(claimed(X), claimed(Y), claimed(Z))
    assert [claims.lost(each) for each in (X, Y, Z)] == [{}, {ADDRESS: X}, {ADDRESS: X}]
    assert claims.update(Y, {}) == {X, Z}
    assert claims.lost(Z) == {ADDRESS: X}


def test_only_the_services_that_share_what_changed_are_concerned() -> None:
    claims = Claims()
    claims.update(X, {ADDRESS: claimed(X), OTHER: claimed(X)})
    claims.update(Y, {ADDRESS: claimed(Y)})
    assert claims.update(Z, {OTHER: claimed(Z)}) == {X}
    assert claims.update(Z, {OTHER: claimed(Z)}) == set()
    assert claims.update(Z, {OTHER: claimed(Z, created=NEW)}) == {X}
    assert claims.update(X, {ADDRESS: claimed(X)}) == {Z}


def test_a_claim_of_a_stronger_kind_takes_the_frontend_over() -> None:
    claims = standing(claimed(X, Kind.EXTERNAL_IP, OLD), claimed(Y, Kind.EXTERNAL_IP, NEW))
    assert claims.update(Y, {ADDRESS: claimed(Y, Kind.LOAD_BALANCER, NEW)}) == {X}
    assert (claims.lost(X), claims.lost(Y)) == ({ADDRESS: Y}, {})


def test_clear_forgets_everything() -> None:
    claims = standing(claimed(X), claimed(Y))
    claims.clear()
    assert claims.lost(Y) == {}
    assert claims.update(Y, {ADDRESS: claimed(Y)}) == set()


@pytest.mark.parametrize(
    ("frontend", "text"),
    [
        (FrontendKey("10.96.0.1", "tcp", 80), "10.96.0.1:80/tcp"),
        (FrontendKey("fd00::1", "udp", 53), "[fd00::1]:53/udp"),
        (FrontendKey("", "sctp", 30080), "node port 30080/sctp"),
    ],
)
def test_a_frontend_as_text(frontend: FrontendKey, text: str) -> None:
    assert str(frontend) == text


FRONTENDS = [FrontendKey("203.0.113.10", "tcp", number) for number in (80, 81, 82)]
SERVICES = [key(name, namespace) for namespace in ("a", "b") for name in ("x", "y")]
WANTED = st.dictionaries(
    st.sampled_from(FRONTENDS), st.tuples(st.sampled_from(Kind), st.sampled_from(["", OLD, NEW])), max_size=3
)
UPDATES = st.lists(st.tuples(st.sampled_from(SERVICES), WANTED), max_size=12)
Wanted = Mapping[FrontendKey, tuple[Kind, str]]


def claims_for(name: ServiceKey, wanted: Wanted) -> dict[FrontendKey, Claim]:
    return {frontend: claim(kind, created, name) for frontend, (kind, created) in wanted.items()}


@patiently(deadline=None)
@given(UPDATES, st.randoms(use_true_random=False))
def test_any_order_of_updates_gives_the_same_winners(updates: list[tuple[ServiceKey, Wanted]], random: Random) -> None:
    claims = Claims()
    final: dict[ServiceKey, Wanted] = {}
    known: dict[ServiceKey, dict[FrontendKey, ServiceKey]] = {name: {} for name in SERVICES}
    for name, wanted in updates:
        final[name] = wanted
        concerned = claims.update(name, claims_for(name, wanted)) | {name}
        for each in SERVICES:
            # Whoever is not concerned need not be looked at again.
            assert each in concerned or claims.lost(each) == known[each]
            known[each] = claims.lost(each)
    anew = Claims()
    for name in random.sample(sorted(final), len(final)):
        anew.update(name, claims_for(name, final[name]))
    assert all(anew.lost(name) == claims.lost(name) for name in SERVICES)
    for frontend in FRONTENDS:
        claimants = [claims_for(name, wanted)[frontend] for name, wanted in final.items() if frontend in wanted]
        losers = [each for each in claimants if frontend in claims.lost(each.key)]
        assert len(losers) == max(0, len(claimants) - 1)
        if losers:
            assert min(claimants).key not in {each.key for each in losers}
