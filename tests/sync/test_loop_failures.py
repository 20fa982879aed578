"""The sync loop after failures: what it owes, keeps and tries again."""

from __future__ import annotations

import time

import pytest

from proxyd.model import Family, Reason, Service
from proxyd.sync import family as family_module
from proxyd.sync.family import FamilySync
from proxyd.sync.splitting import QUARANTINED_AT_MOST
from tests import build
from tests.sync.looping import SERVED, SLICES, TIMING, V4, V6, WEB, Recorder, both_families, edit_and_wait, running
from tests.world import Object, World

pytestmark = pytest.mark.usefixtures("quick")


# Failures


def test_a_failure_keeps_everything_owed_and_is_tried_again_without_a_change() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED))
        daemon.until(lambda: daemon.status().last_success is not None)
        success = daemon.status().last_success
        daemon.ruleset.refuse_family(V4)
        daemon.put(build.endpoint_slice("web", "10.244.1.3", trigger=time.time()))
        daemon.until(lambda: bool(daemon.status().last_error))
        owed_since = daemon.status().owed_since
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: sum(bool(each.error) for each in daemon.observer.passes) >= 3)
        assert daemon.status().owed_since == owed_since is not None
        assert daemon.status().last_success == success
        assert daemon.serves(*SERVED)
        assert daemon.observer.latencies == []
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.status().last_error == "")
        assert daemon.serves("10.96.0.1", "10.244.1.3")
        assert daemon.serves("10.96.0.2", "10.244.2.1", "10.244.2.2")
        assert [family for family, _ in daemon.observer.latencies] == [V4]
        assert daemon.status().owed_since is None


def test_localhost_ports_are_those_of_the_last_write_that_succeeded() -> None:
    def ported(number: int) -> Service:
        return build.service(ports=(build.port(node_port=number),))

    with running(ported(30080), build.endpoint_slice("web", "10.244.1.1")) as daemon:
        daemon.until(lambda: [each.port for each in daemon.status().localhost_ports] == [30080])
        before = daemon.status().localhost_ports
        # The change itself is refused, and of what follows (everything anew) only the last step.
        daemon.ruleset.refuse_if(lambda t: t.family is V4 and t.table is None and any(each.hook for each in t.chains))
        daemon.ruleset.refuse_next()
        daemon.put(ported(30081))
        daemon.until(lambda: bool(daemon.status().last_error))
        assert daemon.status().localhost_ports is before
        daemon.ruleset.recover()
        daemon.until(lambda: [each.port for each in daemon.status().localhost_ports] == [30081])


def test_what_a_pass_that_failed_halfway_did_not_come_to_is_still_counted_and_answered_for() -> None:
    def balanced(number: int) -> list[Object]:
        name, external = f"s{number}", f"203.0.113.{number}"
        service = build.service(
            name,
            ip=f"10.96.1.{number}",
            ingress_ips=(external,),
            external_local=True,
            health_check_node_port=31000 + number,
        )
        return [service, build.endpoint_slice(name, f"10.244.3.{number}")]

    many = [each for number in range(1, QUARANTINED_AT_MOST + 3) for each in balanced(number)]
    with running(*many) as daemon:
        daemon.until(lambda: daemon.status().last_success is not None)
        before = daemon.status()
        assert (before.services, len(before.health_checks)) == (len(many) // 2, len(many) // 2)
        daemon.ruleset.refuse_if(lambda t: t.family is V4 and any(" . tcp . " in each.key for each in t.add_elements))
        daemon.put(build.endpoint_slice("s1", "10.244.3.99"))
        daemon.until(lambda: bool(daemon.status().last_error))
        after = daemon.status()
        assert after.health_checks == before.health_checks
        assert (after.services, after.endpoints) == (before.services, before.endpoints)
        assert after.owed_since is not None
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.serves("10.96.1.1", "10.244.3.99"))


@pytest.mark.parametrize(("down", "up"), [(V4, V6), (V6, V4)])
def test_a_family_that_fails_does_not_keep_the_other_from_its_changes(down: Family, up: Family) -> None:
    served = {
        V4: ("10.96.0.2", "10.244.2.1", "10.244.2.2"),
        V6: ("2001:db8:96::2", "fd00:10:244:2::1", "fd00:10:244:2::2"),
    }
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_family(down)
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: daemon.serves(*served[up]) and bool(daemon.status(down).last_error))
        daemon.until(lambda: daemon.status(up).owed_since is None)
        assert daemon.status(up).last_error == ""
        assert not daemon.serves(*served[down])
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.serves(*served[down]))


def test_an_unforeseen_error_of_one_family_is_its_own_and_does_not_last() -> None:
    winner = build.service("a", ip="10.96.0.1", external_ips=("198.51.100.1",), created="2020-01-01T00:00:00Z")
    loser = build.service("b", ip="10.96.0.2", external_ips=("198.51.100.1",))
    slices = [build.endpoint_slice("a", "10.244.1.1"), build.endpoint_slice("b", "10.244.2.1")]
    with running(winner, loser, *slices) as daemon:
        daemon.until(lambda: daemon.serves("198.51.100.1", "10.244.1.1") and len(daemon.observer.passes) == 2)
        daemon.trouble[V4] = RuntimeError("no such interface")
        daemon.store.services.remove(("default", "a"))
        daemon.until(lambda: "no such interface" in daemon.status().last_error)
        assert daemon.status(V6).last_error == ""
        daemon.trouble.clear()
        daemon.until(lambda: daemon.status().last_error == "")
        assert daemon.serves("198.51.100.1", "10.244.2.1")
        assert daemon.serves("10.96.0.1", "10.96.0.1")


def test_an_internal_error_about_one_service_is_a_finding_and_no_failure() -> None:
    poison = build.service("bad", ip="10.96.0.9", ports=(build.port(None),))  # type: ignore[arg-type]
    with running(poison, WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED) and len(daemon.observer.passes) == 2)
        daemon.until(lambda: bool(daemon.loop.status.findings))
        assert daemon.status().last_error == ""
    assert {(each.object, each.reason) for each in daemon.observer.findings} == {("default/bad", Reason.INTERNAL_ERROR)}


# Retries


def test_an_edit_during_a_retry_does_not_keep_the_loop_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_module, "RETRY_FIRST", 7200.0)
    monkeypatch.setattr(family_module, "RETRY_LONGEST", 7200.0)
    with running(WEB, *SLICES, timing=TIMING._replace(sync_period=7200.0)) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_family(V4)
        daemon.put(build.endpoint_slice("web", "10.244.1.3"))
        daemon.until(lambda: bool(daemon.status().last_error))
        assert all(timeout is not None and timeout > 0 for timeout in edit_and_wait(daemon))


def test_a_family_that_waits_for_its_retry_has_nothing_else_to_do() -> None:
    world = World(build.service("web"), build.endpoint_slice("web", "10.244.1.1"))
    family = FamilySync(world.reconciler, lambda *_: world.settings, Recorder(), sync_period=0.0, cleanup_after=1.0)

    def one_pass() -> None:
        family.owe(world.store.take().services, 0.0, ())
        family.sync(world.store.keys, None)

    world.ruleset.refuse_if(lambda t: any("10.96.0.2 " in each.key for each in t.add_elements))
    world.put(build.service("two", ip="10.96.0.2"), build.endpoint_slice("two", "10.244.2.1"))
    one_pass()
    quarantine_ends = family.due_at
    assert family.status.quarantined == (build.key("two"),)
    world.ruleset.refuse_family(V4)
    world.put(build.endpoint_slice("web", "10.244.1.2"))
    one_pass()
    assert quarantine_ends is not None
    assert family.retry_at is not None
    assert quarantine_ends < family.retry_at == family.due_at


# Quarantine


def test_a_service_that_the_kernel_refused_once_is_tried_again_by_itself() -> None:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: len(daemon.observer.passes) == 2)
        daemon.ruleset.refuse_if(lambda t: any("10.96.0.2 " in each.key for each in t.add_elements))
        daemon.put(*both_families("two", 2))
        daemon.until(lambda: any(each.reason is Reason.KERNEL_REFUSED for each in daemon.observer.findings))
        assert daemon.serves(*SERVED)
        daemon.until(lambda: daemon.status(V4).quarantined == (build.key("two"),))
        assert daemon.status(Family.IPV6).quarantined == ()
        daemon.ruleset.recover()
        daemon.until(lambda: daemon.serves("10.96.0.2", "10.244.2.1", "10.244.2.2"))
        daemon.until(lambda: not daemon.loop.status.findings)
        daemon.until(lambda: daemon.status(V4).quarantined == ())
