"""Notifications of the real kernel: what others do to our tables is told, what we do is not."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from proxyd.kernel.nft.notifications import Notifications
from proxyd.model import Family
from proxyd.nft.drift import Drift
from proxyd.sync.nft.reconcile import NftReconciler
from tests import build
from tests.netns import RealRuleset, why_not

pytestmark = pytest.mark.kernel
V4, V6 = Family.IPV4, Family.IPV6
SOON = 20.0


def everything(what: str, family: Family = V4) -> Drift:
    return Drift(family, what, everything=True)


class Watched:
    """Our table in a namespace, somebody else there, and what the kernel told."""

    def __init__(self, listening: bool = True) -> None:
        self.told: queue.Queue[Drift] = queue.Queue()
        self.ruleset = RealRuleset(also=self._watch)
        if listening:
            self.notifications.start()
        store = build.store(build.service(affinity_seconds=60), build.endpoint_slice("web", "10.244.1.2", "10.244.1.3"))
        self.reconciler = NftReconciler(V4, self.ruleset, store.service)
        self.store = store
        self.sync()

    def _watch(self, ruleset: RealRuleset) -> None:
        self.notifications = Notifications(lambda: ruleset.library.port, self.told.put)

    def sync(self) -> None:
        self.reconciler.sync(self.store.take().services, self.store.keys, build.settings(V4))

    def next(self) -> Drift:
        return self.told.get(timeout=SOON)


@pytest.fixture
def watched() -> Iterator[Watched]:
    if reason := why_not():
        pytest.skip(reason)
    watched = Watched()
    yield watched
    watched.notifications.stop()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("delete table ip proxyd", "deleted table proxyd"),
        ("add element ip proxyd g1/cluster-ips { 10.96.9.9 }", "added element in g1/cluster-ips"),
        ("delete element ip proxyd g1/cluster-ips { 10.96.0.1 }", "deleted element in g1/cluster-ips"),
        ("insert rule ip proxyd g1/services accept", "added rule in g1/services"),
        ("flush chain ip proxyd nat-prerouting", "deleted rule in nat-prerouting"),
        ("add chain ip proxyd mine", "added chain mine"),
        ("add counter ip proxyd mine", "added object mine"),
        ("reset counters table ip proxyd\nadd counter ip proxyd mine", "added object mine"),
        ("add set ip proxyd mine { type ipv4_addr; }", "added set mine"),
    ],
)
def test_a_foreign_change_of_our_table_is_told_with_what_was_changed(watched: Watched, text: str, what: str) -> None:
    watched.ruleset.other(text)
    drift = watched.next()
    assert drift.family is V4
    assert drift.what.startswith(what)


def test_own_changes_and_those_of_other_tables_are_not_told(watched: Watched) -> None:
    watched.store.services.put(build.decoded(build.service("two", ip="10.96.0.2")))
    watched.sync()
    watched.reconciler.forget()
    watched.sync()
    watched.reconciler.cleanup()
    watched.ruleset.other(
        "add table ip other\nadd set ip other g1/cluster-ips { type ipv4_addr; }\nadd table ip6 proxyd2"
    )
    watched.ruleset.other("add chain ip proxyd marker")
    assert watched.next() == everything("added chain marker")
    assert watched.told.empty()


def test_one_transaction_is_told_once_for_each_family(watched: Watched) -> None:
    watched.ruleset.other("add table ip6 proxyd\nadd chain ip6 proxyd a\nadd chain ip proxyd b\nadd chain ip proxyd c")
    assert watched.next() == everything("added chain b, added chain c")
    assert watched.next() == everything("added table proxyd, added chain a", V6)
    assert watched.told.empty()


def test_notifications_that_were_lost_may_have_been_of_any_family_and_later_ones_are_told() -> None:
    if reason := why_not():
        pytest.skip(reason)
    watched = Watched(listening=False)
    # Far more than a socket holds while nobody reads it, and not even about our tables.
    watched.ruleset.other("add table ip other\nadd set ip other s { type ipv4_addr; }")
    for third in range(40):
        elements = ", ".join(f"192.{third}.{n // 250}.{n % 250}" for n in range(2000))
        watched.ruleset.other(f"add element ip other s {{ {elements} }}")
    watched.notifications.start()
    try:
        lost = [watched.next(), watched.next()]
        assert {(each.what, each.family) for each in lost if each.everything} == {
            ("notifications were lost", each) for each in (V4, V6)
        }
        watched.ruleset.other("add chain ip proxyd marker")
        assert watched.next() == everything("added chain marker")
    finally:
        watched.notifications.stop()
