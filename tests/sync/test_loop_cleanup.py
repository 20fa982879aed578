"""When the sync loop deletes what nothing uses any more, and what it does where that fails."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import pytest

from proxyd.nft.objects import Transaction
from proxyd.sync import family as family_module
from proxyd.sync.family import FamilySync
from tests import build
from tests.sync.looping import NEVER_QUIET, SERVED, SLICES, V4, WEB, Daemon, Recorder, edit_and_wait, running
from tests.world import World

pytestmark = pytest.mark.usefixtures("quick")

THREE = ("10.244.1.1", "10.244.1.2", "10.244.1.3")


def keep_changing(daemon: Daemon, until: Callable[[], bool]) -> None:
    """Has an endpoint replaced by another one, over and over, until something is so."""
    numbers = itertools.cycle(range(1, 250))

    def changed() -> bool:
        daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.2", f"10.244.4.{next(numbers)}"))
        return until()

    daemon.until(changed)


def test_unused_chains_are_deleted_when_it_is_quiet() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.put(build.endpoint_slice("web", *THREE))
        daemon.until(lambda: "g1/lb-tcp-2" not in daemon.ruleset.contents(V4).chains)
        assert daemon.serves("10.96.0.1", *THREE)
    assert daemon.observer.cleanups_failed == []


def test_a_failed_cleanup_is_counted_and_tried_again_and_costs_no_traffic() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.ruleset.refuse_if(lambda transaction: bool(transaction.delete_chains))
        daemon.put(build.endpoint_slice("web", *THREE))
        daemon.until(lambda: len(daemon.observer.cleanups_failed) >= 2)
        assert daemon.status().last_error == ""
        assert daemon.serves("10.96.0.1", *THREE)
        daemon.ruleset.recover()
        daemon.until(lambda: "g1/lb-tcp-2" not in daemon.ruleset.contents(V4).chains)
    assert set(daemon.observer.cleanups_failed) == {V4}


def test_an_unforeseen_error_in_cleanup_does_not_end_the_loop() -> None:
    def fails(transaction: Transaction) -> bool:
        if transaction.delete_chains:
            raise RuntimeError("no such thing was foreseen")
        return False

    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.ruleset.refuse_if(fails)
        daemon.put(build.endpoint_slice("web", *THREE))
        daemon.until(lambda: bool(daemon.observer.cleanups_failed))
        daemon.ruleset.recover()
        daemon.put(build.endpoint_slice("web", "10.244.1.1"))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.1"))


@pytest.mark.parametrize("failures", [0, 1])
def test_unused_objects_go_even_if_it_is_never_quiet(failures: int) -> None:
    with running(WEB, *SLICES, timing=NEVER_QUIET, grace=0.0) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        failing = iter(range(failures))
        daemon.ruleset.refuse_if(lambda t: bool(t.delete_chains) and next(failing, None) is not None)
        daemon.put(build.endpoint_slice("web", *THREE))
        keep_changing(daemon, lambda: "g1/lb-tcp-2" not in daemon.ruleset.contents(V4).chains)
        assert len(daemon.observer.cleanups_failed) == failures


def test_under_constant_change_a_kernel_is_not_asked_for_what_it_still_holds_on_to() -> None:
    used: dict[str, float] = {}
    with running(WEB, *SLICES, timing=NEVER_QUIET, grace=0.1) as daemon:

        def note_targets() -> None:
            for value in daemon.ruleset.elements(V4).get("g1/service-ips", {}).values():
                used[value.removeprefix("goto ")] = time.monotonic()

        def held(transaction: Transaction) -> bool:
            return any(time.monotonic() - used.get(name, 0.0) < 0.05 for name in transaction.delete_chains)

        daemon.ruleset.watchers.append(note_targets)
        daemon.ruleset.refuse_if(held)
        sizes = itertools.cycle(range(1, 20))

        def often_deleted() -> bool:
            daemon.put(build.endpoint_slice("web", *(f"10.244.1.{each + 1}" for each in range(next(sizes)))))
            return sum(bool(each.delete_chains) for each in daemon.ruleset.commits) >= 5

        daemon.until(often_deleted)
        assert daemon.observer.cleanups_failed == []


def test_generations_do_not_pile_up_if_everything_is_written_anew_all_the_time() -> None:
    with running(WEB, *SLICES, timing=NEVER_QUIET, grace=0.1) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        # A change is refused, and everything written anew.
        daemon.ruleset.refuse_if(lambda t: t.family is V4 and t.table is None and bool(t.delete_elements))
        keep_changing(daemon, lambda: {"g1/services", "g2/services"}.isdisjoint(daemon.ruleset.contents(V4).chains))


def test_an_edit_that_wakes_the_loop_does_not_have_unused_objects_deleted_sooner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first edit has to wait already.
    monkeypatch.setattr(family_module, "PATIENT_REPAIRS", 0)
    monkeypatch.setattr(family_module, "RETRY_FIRST", 7200.0)
    monkeypatch.setattr(family_module, "RETRY_LONGEST", 7200.0)
    with running(WEB, *SLICES, timing=NEVER_QUIET._replace(sync_period=7200.0), grace=0.0) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.put(build.endpoint_slice("web", *THREE))
        daemon.until(lambda: len(daemon.observer.passes) == 4)
        edit_and_wait(daemon)
        assert "g1/lb-tcp-2" in daemon.ruleset.contents(V4).chains
        assert daemon.observer.repairs == []


def test_what_is_used_again_is_not_taken_for_unused_since_long_ago() -> None:
    other = [build.service("other", ip="10.96.0.7"), build.endpoint_slice("other", *THREE)]
    world = World(build.service("web"), build.endpoint_slice("web", *THREE[:2]), *other)
    family = FamilySync(world.reconciler, lambda *_: world.settings, Recorder(), sync_period=30.0, cleanup_after=1.0)

    def endpoints(*addresses: str) -> None:
        world.put(build.endpoint_slice("web", *addresses))
        family.owe(world.store.take().services, 0.0, ())
        family.sync(world.store.keys, None)

    endpoints(*THREE[:2])
    assert family.unused.delete_at is None
    endpoints(*THREE)
    first, overdue = family.unused.delete_at, family.unused.overdue_at
    assert first is not None
    assert overdue is not None
    endpoints(*THREE[:2])
    assert (family.unused.delete_at, family.unused.overdue_at) == (None, None)
    endpoints(*THREE)
    assert family.unused.delete_at is not None
    assert family.unused.delete_at > first
    assert family.unused.overdue_at is not None
    assert family.unused.overdue_at > overdue
