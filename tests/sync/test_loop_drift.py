"""The sync loop and foreign edits: undone at once, or later if they go on."""

from __future__ import annotations

import pytest

from proxyd.model import Cause
from proxyd.nft.drift import Drift
from proxyd.nft.objects import Element
from proxyd.sync import family as family_module
from tests import build
from tests.sync.looping import SERVED, SLICES, TIMING, V4, V6, WEB, Daemon, both_families, running

pytestmark = pytest.mark.usefixtures("quick")


def test_a_table_that_somebody_deleted_comes_back_although_nothing_changes() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        del daemon.ruleset.tables[V4]
        daemon.loop.drifted(Drift(V4, "deleted table proxyd", everything=True))
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.until(lambda: bool(daemon.observer.repairs))
    assert daemon.observer.repairs == [(V4, "rewritten", 1)]
    assert [(family, cause) for family, cause, _ in daemon.observer.written_after] == [(V4, Cause.DRIFT)]
    assert [each.family for each in daemon.observer.passes if each.full] == [V4, V6, V4]


def test_a_comparison_by_the_clock_writes_what_is_missing_and_is_no_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    # Were it one, the later ones would have to wait this long.
    monkeypatch.setattr(family_module, "RETRY_FIRST", 7200.0)
    monkeypatch.setattr(family_module, "RETRY_LONGEST", 7200.0)
    with running(WEB, *SLICES, timing=TIMING._replace(sync_period=7200.0)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        for _ in range(3 * family_module.PATIENT_REPAIRS):
            passes = len(daemon.observer.passes)
            daemon.loop.drifted(Drift(V4, "compared by the clock", edits=0, everything=True))
            daemon.until(lambda passes=passes: len(daemon.observer.passes) > passes)
        del daemon.ruleset.tables[V4]
        daemon.loop.drifted(Drift(V4, "compared by the clock", edits=0, everything=True))
        daemon.until(lambda: daemon.serves(*SERVED))
    assert daemon.observer.repairs == []
    assert daemon.observer.written_after == []


def test_drift_is_owed_until_it_is_repaired() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        del daemon.ruleset.tables[V4]
        daemon.ruleset.refuse_family(V4)
        daemon.loop.drifted(Drift(V4, "deleted table proxyd", everything=True))
        daemon.until(lambda: bool(daemon.status().last_error))
        assert daemon.observer.repairs == []
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.observer.repairs == [(V4, "rewritten", 1)])
        assert daemon.serves(*SERVED)


ENDPOINT = ("g1/endpoints-tcp", "10.96.0.1 . 80 . 1")


def lose_an_endpoint(daemon: Daemon) -> None:
    """Somebody deletes the element of an endpoint."""
    daemon.ruleset.tables[V4].container(ENDPOINT[0]).delete(Element(*ENDPOINT), V4)
    daemon.loop.drifted(Drift(V4, "deleted element in g1/endpoints-tcp", elements={ENDPOINT: False}))


def test_a_single_edit_is_mended_and_nothing_else_is_written() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        commits = len(daemon.ruleset.commits)
        lose_an_endpoint(daemon)
        daemon.until(lambda: daemon.observer.repairs == [(V4, "mended", 1)])
        assert daemon.serves(*SERVED)
        (repair,) = daemon.ruleset.commits[commits:]
        assert repair.size == 1
    assert [each.family for each in daemon.observer.passes if each.full] == [V4, V6]


def test_a_repair_that_the_kernel_refuses_is_followed_by_a_full_write() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_next()
        lose_an_endpoint(daemon)
        daemon.until(lambda: daemon.observer.repairs == [(V4, "rewritten", 1)])
        assert daemon.serves(*SERVED)


def test_a_few_edits_are_mended_without_delay_and_more_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_module, "RETRY_FIRST", 7200.0)
    monkeypatch.setattr(family_module, "RETRY_LONGEST", 7200.0)
    with running(WEB, *SLICES, timing=TIMING._replace(sync_period=7200.0)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        for number in range(1, family_module.PATIENT_REPAIRS + 1):
            lose_an_endpoint(daemon)
            daemon.until(lambda number=number: len(daemon.observer.repairs) == number)
            assert daemon.serves(*SERVED)
        lose_an_endpoint(daemon)
        # Changes are written meanwhile; one that meets the damage has everything written, and the repair with it.
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: daemon.serves("10.96.0.2", "10.244.2.1", "10.244.2.2"))
        assert len(daemon.observer.repairs) == family_module.PATIENT_REPAIRS
        daemon.put(build.endpoint_slice("web", "10.244.1.1"))
        daemon.until(lambda: daemon.observer.repairs[family_module.PATIENT_REPAIRS :] == [(V4, "rewritten", 1)])
        assert daemon.serves("10.96.0.1", "10.244.1.1")


@pytest.mark.parametrize("everything", [True, False])
def test_edits_without_end_are_repaired_ever_more_rarely_and_do_not_hold_up_changes(everything: bool) -> None:
    edit = Drift(V4, "somebody edits", elements={} if everything else {ENDPOINT: False}, everything=everything)
    with running(WEB, *SLICES, timing=TIMING._replace(sync_period=3600.0)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        for number in range(200):
            daemon.loop.drifted(edit)
            daemon.put(build.endpoint_slice("web", f"10.244.3.{number + 1}"))
            daemon.until(lambda number=number: daemon.serves("10.96.0.1", f"10.244.3.{number + 1}"))
    full = [each for each in daemon.observer.passes if each.full and each.family is V4]
    assert len(full) < 40
    assert len(daemon.observer.repairs) < 40
    assert everything == (len(full) > 1)


def test_edits_of_both_families_are_each_undone() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        lose_an_endpoint(daemon)
        del daemon.ruleset.tables[V6]
        daemon.loop.drifted(Drift(V6, "deleted table proxyd", everything=True))
        daemon.until(lambda: len(daemon.observer.repairs) == 2)
        assert daemon.serves(*SERVED)
        assert daemon.serves("2001:db8:96::1", "fd00:10:244:1::1", "fd00:10:244:1::2")
    assert sorted(daemon.observer.repairs) == [(V4, "mended", 1), (V6, "rewritten", 1)]
