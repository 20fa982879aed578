"""What others did: the last word about a place counts, and no number of edits makes it large."""

from __future__ import annotations

from proxyd.model import Family
from proxyd.nft.drift import PLACES_AT_MOST, Drift, Edits

V4 = Family.IPV4
PLACE = ("g1/service-ips", "10.96.0.1 . tcp . 80")


def told(*keys: tuple[str, bool]) -> Edits:
    edits = Edits(V4)
    for key, there in keys:
        edits.told("added element in g1/cluster-ips" if there else "deleted element in g1/cluster-ips")
        edits.element("g1/cluster-ips", key, there=there)
    return edits


def test_nothing_told_is_no_drift() -> None:
    assert Edits(V4).drift() is None


def test_the_last_word_about_a_place_counts() -> None:
    drift = told(("a", True), ("b", False), ("a", False), ("b", True)).drift()
    assert drift is not None
    assert drift.elements == {("g1/cluster-ips", "a"): False, ("g1/cluster-ips", "b"): True}
    assert drift.what == "2 x added element in g1/cluster-ips, 2 x deleted element in g1/cluster-ips"


def test_the_later_of_two_drifts_counts_and_both_are_counted() -> None:
    first = Drift(V4, "first", elements={PLACE: True}, chains=frozenset({"a"}))
    later = Drift(V4, "later", 2, elements={PLACE: False}, chains=frozenset({"b"}))
    assert first.then(later) == Drift(V4, "first", 3, {PLACE: False}, frozenset({"a", "b"}))


def test_everything_swallows_places() -> None:
    places, everything = Drift(V4, "x", elements={PLACE: True}), Drift(V4, "y", everything=True)
    assert places.then(everything) == Drift(V4, "x", 2, everything=True)
    assert everything.then(places) == Drift(V4, "y", 2, everything=True)


def test_more_places_than_are_worth_it_are_everything() -> None:
    some = [(str(n), True) for n in range(PLACES_AT_MOST)]
    drift = told(*some).drift()
    assert drift is not None
    assert not drift.everything
    assert drift.then(Drift(V4, "one more", elements={PLACE: True})).everything
    drift = told(*some, ("one more", True), ("another", True)).drift()
    assert drift is not None
    assert drift.everything
    assert not drift.elements


def test_chains_count_as_places() -> None:
    edits = Edits(V4)
    for number in range(PLACES_AT_MOST + 1):
        edits.told("added rule")
        edits.rules(f"chain-{number}")
    drift = edits.drift()
    assert drift is not None
    assert drift.everything
    assert not drift.chains


def test_words_for_people_are_bounded() -> None:
    edits = Edits(V4)
    for number in range(2 * PLACES_AT_MOST):
        edits.told(f"added chain {number}")
    edits.told("deleted table proxyd")
    drift = edits.drift()
    assert drift is not None
    assert len(drift.what) < 200
