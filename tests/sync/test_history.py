"""What the loop remembers of its passes: what asked for them, which Services, what was written, where the time went."""

from __future__ import annotations

import pytest

from proxyd.model import Action, Event, Origin
from proxyd.nft.drift import Drift
from proxyd.sync.history import Entry
from tests import build
from tests.sync.looping import SERVED, SLICES, TIMING, V4, V6, WEB, Daemon, both_families, running

pytestmark = pytest.mark.usefixtures("quick")


def entries(daemon: Daemon) -> tuple[Entry, ...]:
    return daemon.loop.history.since(0).entries


def until_entries(daemon: Daemon, number: int) -> tuple[Entry, ...]:
    daemon.until(lambda: len(entries(daemon)) >= number)
    return entries(daemon)


def test_the_start_is_the_first_entry_and_its_objects_are_no_events() -> None:
    with running(WEB, *SLICES) as daemon:
        (start,) = until_entries(daemon, 1)
    # The Node comes after the lists of the others here, and so it is one.
    assert start.events == (Event(Origin.START), Event(Origin.NODE, build.NODE, Action.ADDED))
    assert (start.sequence, start.events_more) == (1, 0)
    assert start.services == ("default/web",)
    assert [(each.family, each.full, each.error) for each in start.families] == [(V4, True, ""), (V6, True, "")]
    assert all(each.operations for each in start.families)


def test_a_change_says_what_asked_for_it_and_what_was_written() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.put(build.endpoint_slice("web", "10.244.1.1", "10.244.1.9"))
        change = until_entries(daemon, 2)[1]
    assert change.events == (Event(Origin.ENDPOINTS, f"default/{SLICES[0].name}", Action.MODIFIED),)  # type: ignore[union-attr]
    assert change.services == ("default/web",)
    v4, v6 = change.families
    assert v4.operations > 0
    assert not v4.full
    assert v6.operations == 0
    assert change.oldest <= change.at


def test_the_stages_add_up_to_the_time_from_the_event_to_the_kernel() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.observer.written_after.clear()
        daemon.put(build.endpoint_slice("web", "10.244.1.9"))
        change = until_entries(daemon, 2)[1]
    ((_, _, seconds),) = daemon.observer.written_after
    v4 = change.families[0]
    # The metric begins with its own event, and this with the oldest: a few instructions before.
    assert seconds <= v4.seconds < seconds + 1
    assert v4.kernel_seconds > 0
    assert v4.work_seconds > 0
    assert v4.waited_seconds >= 0
    assert v4.work_seconds + v4.kernel_seconds == pytest.approx(daemon.observer.passes[2].seconds)


def test_added_and_deleted_services_are_told() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.put(build.service("new", cluster_ips=("10.96.0.9",)))
        until_entries(daemon, 2)
        daemon.store.services.remove(("default", "new"))
        found = until_entries(daemon, 3)
    assert [each.events for each in found[1:]] == [
        (Event(Origin.SERVICE, "default/new", Action.ADDED),),
        (Event(Origin.SERVICE, "default/new", Action.DELETED),),
    ]
    assert [each.services for each in found[1:]] == [("default/new",)] * 2


def test_node_host_and_configuration_are_events_too() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.put(build.node(zone="other"))
        until_entries(daemon, 2)
        daemon.store.host_changed()
        until_entries(daemon, 3)
        daemon.store.note()
        found = until_entries(daemon, 4)
    assert [each.events for each in found[1:]] == [
        (Event(Origin.NODE, build.NODE, Action.MODIFIED),),
        (Event(Origin.HOST),),
        (Event(Origin.CONFIGURATION),),
    ]
    assert found[1].services == ("default/web",)  # worked out anew, for another zone


def test_a_service_that_yields_its_address_is_named_beside_the_one_that_takes_it() -> None:
    older = build.service("older", cluster_ips=("10.96.0.7",), created="2020-01-01T00:00:00Z")
    newer = build.service("newer", cluster_ips=("10.96.0.7",), created="2021-01-01T00:00:00Z")
    with running(newer, build.endpoint_slice("newer", "10.244.1.1")) as daemon:
        until_entries(daemon, 1)
        daemon.put(older)
        change = until_entries(daemon, 2)[1]
    assert change.services == ("default/newer", "default/older")


def test_a_failure_is_told_and_its_retry_names_what_is_owed() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.ruleset.refuse_family(V4)
        daemon.put(build.endpoint_slice("web", "10.244.1.9"))
        daemon.until(lambda: bool(daemon.status().last_error))
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.9"))
        daemon.until(lambda: not daemon.status().last_error)
        found = entries(daemon)
    failed = found[1]
    assert failed.families[0].error
    assert failed.families[0].refusals > 0
    retried = next(each for each in found[2:] if each.families and not each.families[0].error)
    assert Event(Origin.RETRY, "IPv4") in retried.events
    assert retried.services == ("default/web",)
    assert retried.oldest == pytest.approx(failed.oldest, abs=0.5)


def test_foreign_edits_are_told_with_how_they_were_undone() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.loop.drifted(Drift(V4, "table deleted\nby somebody", everything=True))
        edit = until_entries(daemon, 2)[1]
    assert edit.events == (Event(Origin.EDIT, "IPv4"),)
    undone = edit.families[0].undone
    assert undone is not None
    assert (undone.edits, undone.how) == (1, "rewritten")
    assert edit.families[1].undone is None


def test_a_comparison_that_finds_nothing_is_no_entry() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.loop.drifted(Drift(V4, "compared", 0))
        daemon.until(lambda: len(daemon.observer.passes) >= 4)
        daemon.put(build.endpoint_slice("web", "10.244.1.9"))
        found = until_entries(daemon, 2)
    assert [each.sequence for each in found] == [1, 2]
    assert found[1].events[0].origin is Origin.ENDPOINTS


def test_events_that_come_together_are_one_entry_with_some_of_them_named() -> None:
    with running(WEB, *SLICES, timing=TIMING._replace(min_sync_period=0.2)) as daemon:
        until_entries(daemon, 1)
        with daemon.store.lock:
            for number in range(2, 60):
                daemon.put(*both_families(f"s{number}", number)[:1])
        change = until_entries(daemon, 2)[1]
    assert len(change.events) + change.events_more == 58
    assert len(change.services) + change.services_more == 58
    assert change.events[0] == Event(Origin.SERVICE, "default/s2", Action.ADDED)


def test_an_object_that_cannot_be_read_is_an_event() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.store.services.put(build.decoded(WEB)._replace(value=None, refused="no ports"))
        change = until_entries(daemon, 2)[1]
    assert change.events == (Event(Origin.SERVICE, "default/web", Action.UNREADABLE),)


def test_the_families_that_wait_for_a_retry_are_left_out() -> None:
    with running(WEB, *SLICES) as daemon:
        until_entries(daemon, 1)
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.trouble[V6] = RuntimeError("trouble")
        daemon.put(WEB, build.endpoint_slice("web", "10.244.1.9"))
        failed = until_entries(daemon, 2)[1]
        del daemon.trouble[V6]
    assert [bool(each.error) for each in failed.families] == [False, True]
