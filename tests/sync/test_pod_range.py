"""A start in which the Node has no podCIDRs yet, and nobody knows what is local."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from proxyd.desired.settings import NodePolicy
from proxyd.sync.facts import node_findings
from proxyd.sync.loop import Timing
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.sync.looping import SERVED, SLICES, SOON, TIMING, WEB, Daemon, running

POLICY = NodePolicy(build.NODE, detect_local_mode="NodeCIDR")
PATIENT = TIMING._replace(pod_range_wait=10 * SOON)
NEW_ENDPOINT = build.endpoint_slice("web", "10.244.1.9")


def rules_of_an_earlier_run() -> FakeRuleset:
    with running(WEB, *SLICES) as daemon:
        daemon.until(lambda: daemon.serves(*SERVED) and len(daemon.observer.passes) == 2)
    return daemon.ruleset


@contextmanager
def started(ruleset: FakeRuleset, timing: Timing = PATIENT) -> Iterator[Daemon]:
    """A new run, with another endpoint and a Node without podCIDRs."""
    store = build.store(build.node(), WEB, NEW_ENDPOINT)
    daemon = Daemon(store, timing, lambda: list(node_findings(store, POLICY, build.NODE)), ruleset)
    daemon.thread.start()
    try:
        yield daemon
    finally:
        daemon.stop()


def test_rules_of_an_earlier_run_stay_until_the_pod_range_is_known() -> None:
    ruleset = rules_of_an_earlier_run()
    before = len(ruleset.commits)
    with started(ruleset) as daemon:
        daemon.until(lambda: ruleset.listings > 2)  # it has looked for rules
        daemon.put(build.node(zone="zb"))
        assert daemon.serves(*SERVED)
        assert len(ruleset.commits) == before
        daemon.put(build.node(pod_cidrs=("10.244.1.0/24",)))
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.9"))
    assert all(node and node.pod_cidrs for node in daemon.nodes)


def test_the_wait_has_an_end_and_says_what_is_missing() -> None:
    with started(rules_of_an_earlier_run(), TIMING._replace(pod_range_wait=0.01)) as daemon:
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.9"))
        daemon.until(lambda: [each.reason for each in daemon.observer.findings] == ["pod-range-unknown"])
        daemon.put(build.node(pod_cidrs=("10.244.1.0/24",)))
        daemon.until(lambda: not daemon.loop.status.findings)


def test_without_rules_there_is_nothing_to_wait_for() -> None:
    with started(FakeRuleset()) as daemon:
        daemon.until(lambda: daemon.serves("10.96.0.1", "10.244.1.9"))


def test_a_stop_ends_the_wait() -> None:
    ruleset = rules_of_an_earlier_run()
    before = len(ruleset.commits)
    with started(ruleset) as daemon:
        daemon.until(lambda: ruleset.listings > 2)
    assert len(ruleset.commits) == before
