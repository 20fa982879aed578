"""When to write: the thread that owns all state, takes what changed and brings every family up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence, Set
from typing import NamedTuple

import msgspec
import structlog

from proxyd.kernel.refused import KernelRefusedError
from proxyd.kube.store import Changes, Store
from proxyd.model import Event, Family, Finding, Node, Origin, Reason, ServiceKey
from proxyd.nft.drift import Drift
from proxyd.sync.family import FamilyRules, FamilySync, SettingsOf
from proxyd.sync.history import History, family_write
from proxyd.sync.order import StoppedError
from proxyd.sync.progress import Progress
from proxyd.sync.status import Observer, PassResult, Status

log = structlog.get_logger("proxyd.sync")

# Under churn syncing may take this share of one core, unless the mode says otherwise: after a pass of t seconds the next
# one waits t * (1/share - 1).
SHARE = 0.25
# Objects that nothing uses any more are deleted when no change has come for this long (seconds); under constant change
# after syncPeriod, but never those that were in use within this time.
CLEANUP_AFTER = 1.0


class Timing(NamedTuple):
    """Seconds: the longest that a change may wait, the longest between retries, how long to wait for the Node at start.

    ``pod_range_wait``: and for its podCIDRs, while rules of an earlier run serve. ``share``: how much of one core syncing
    may take under churn. ``cleanup_after``: how long no change must have come before what nothing uses is deleted.
    """

    min_sync_period: float = 1.0
    sync_period: float = 30.0
    node_wait: float = 10.0
    pod_range_wait: float = 30.0
    share: float = SHARE
    cleanup_after: float = CLEANUP_AFTER


class SyncLoop:
    """Runs passes until told to stop. ``status`` may be read from any thread; it is replaced whole. So may ``history``."""

    def __init__(
        self,
        store: Store,
        reconcilers: Sequence[FamilyRules],
        settings_of: SettingsOf,
        observer: Observer,
        timing: Timing,
        mode: str = "nftables",
        more_findings: Callable[[], Iterable[Finding]] = tuple,
    ) -> None:
        self._families = [
            FamilySync(each, settings_of, observer, timing.sync_period, timing.cleanup_after) for each in reconcilers
        ]
        self.status = Status(mode, tuple(each.status for each in self._families))
        self.history = History()
        self._store = store
        self._observer = observer
        self._timing = timing
        self._more_findings = more_findings
        self._progress = Progress()
        self._told: list[Callable[[Status], None]] = []
        self._stop = threading.Event()
        self._known_findings: set[Finding] = set()
        self._started_at = time.time()
        # Each with when it began (monotonic seconds).
        self._drifts: dict[Family, tuple[Drift, float]] = {}

    def subscribe(self, told: Callable[[Status], None]) -> None:
        """Has ``told`` called with each new status, on the sync thread, from the first pass on."""
        self._told.append(told)

    def stop(self) -> None:
        """Asks the loop to end after the commit it is in."""
        self._stop.set()
        self._store.wake()

    def run(self) -> None:
        """Runs until ``stop``."""
        try:
            if self._wait_complete():
                self._pass(self._store.take(), (Event(Origin.START),))
            while not self._stop.is_set():
                self._wait_and_work()
        except StoppedError:
            log.info("stopped in the middle of writing; what is written is complete")

    def _wait_and_work(self) -> None:
        changed = self._store.wait(self._patience())
        drifts = self._take_drifts()
        for each in self._families:
            if each.reconciler.family in drifts:
                each.drifted(*drifts[each.reconciler.family])
        if changed:
            self._observer.queued()
        quiet = not changed and self._due_in() != 0
        if not quiet:
            self._pass(self._store.take())
        if not self._stop.is_set():
            self._cleanup(quiet=quiet)

    def _wait_complete(self) -> bool:
        """Waits for the first complete lists, and a little for the Node; gives False where stopped meanwhile."""
        with self._store.lock:
            self._store.lock.wait_for(lambda: self._stop.is_set() or self._store.complete)
            self._store.lock.wait_for(lambda: self._stop.is_set() or self._store.nodes.synced, self._timing.node_wait)
        self._wait_for_pod_range()
        return not self._stop.is_set()

    def _wait_for_pod_range(self) -> None:
        """Leaves the rules of an earlier run alone for a while where new ones would not know any more what is local.

        Not for long, and not without such rules: they get older, and Services matter more than masquerading.
        """
        if self._stop.is_set() or self._pod_range_known() or not self._rules_are_there():
            return
        longest = self._timing.pod_range_wait
        log.warning("waiting for the podCIDRs of the Node; the rules of the last run serve meanwhile", seconds=longest)
        with self._store.lock:
            self._store.lock.wait_for(lambda: self._stop.is_set() or self._pod_range_known(), longest)
        if not self._pod_range_known():
            log.warning("the Node has no podCIDRs still; going on without, until it has")

    def _pod_range_known(self) -> bool:
        return all(each.reason is not Reason.POD_RANGE_UNKNOWN for each in self._more_findings())

    def _rules_are_there(self) -> bool:
        try:
            return any(each.reconciler.finds_rules() for each in self._families)
        except KernelRefusedError:
            return False  # the first pass will meet with the same, and tell

    def drifted(self, drift: Drift) -> None:
        """Takes a foreign change to our tables; may be called from any thread."""
        with self._store.lock:
            known, since = self._drifts.get(drift.family, (None, time.monotonic()))
            self._drifts[drift.family] = (drift if known is None else known.then(drift), since)
        self._store.wake()

    def progressed(self, family: Family, done: int, of: int) -> None:
        """Takes how many Services of how many a full write has written. For the sync thread, in the middle of a pass.

        Shown at once to whoever reads ``status``.
        """
        writing = self._progress.note(family, done, of)
        for each in self._families:
            if each.reconciler.family is family:
                each.progressed(writing)
        self._show_families()

    def _show_families(self) -> None:
        """Shows in ``status`` how the families stand in the middle of a pass; nobody is called for it."""
        families = tuple(each.status for each in self._families)
        self.status = msgspec.structs.replace(self.status, families=families)

    def _take_drifts(self) -> dict[Family, tuple[Drift, float]]:
        with self._store.lock:
            taken, self._drifts = self._drifts, {}
        return taken

    def _due_in(self) -> float | None:
        """Seconds until a family has to be looked at again although nothing changes, None where none has."""
        return _seconds_until(each.due_at for each in self._families)

    def _patience(self) -> float | None:
        """How long to wait for a change: until the retry, the cleanup, or for ever."""
        return _seconds_until(at for each in self._families for at in (each.due_at, each.unused.delete_at))

    def _pass(self, changes: Changes, events: tuple[Event, ...] = ()) -> None:
        started = time.monotonic()
        node = self._store.node()
        results: list[PassResult] = []
        for each in self._families:
            family = each.reconciler.family
            triggers = (t for t in changes.triggers.get(family, ()) if t >= self._started_at)
            since = changes.since if changes.since is not None else started
            each.owe(changes.services, since, triggers, changes.received.get(family, ()))
        self._show_families()
        for each in self._families:
            if (result := each.sync(self._store.keys, node)) is not None:
                results.append(result)
            self._publish(node)
        self._record(changes, (*events, *changes.events), results)
        spent = time.monotonic() - started
        self._stop.wait(min(spent * (1 / self._timing.share - 1), self._timing.min_sync_period))

    def _record(self, changes: Changes, events: tuple[Event, ...], results: list[PassResult]) -> None:
        """Remembers what this pass was; one that nothing asked for and that did nothing is not worth it."""
        events = (*events, *dict.fromkeys(event for result in results for event in result.events))
        by_family = {each.reconciler.family: each for each in self._families}
        ran = [by_family[result.family] for result in results]
        writes = [family_write(result, each.status) for result, each in zip(results, ran, strict=True)]
        services = _all_of([each.reconciler.concerned for each in ran] or [changes.services])
        asked = any(each.origin is not Origin.COMPARISON for each in events)
        if not (asked or services or any(each.operations or each.error for each in writes)):
            return
        now, monotonic = time.time(), time.monotonic()
        waits = [each.seconds for each in writes] or [monotonic - (changes.since or monotonic)]
        self.history.record(now, now - max(waits), events, changes.more_events, services, writes)

    def _cleanup(self, *, quiet: bool) -> None:
        """Deletes what nothing uses any more, where it is time for that."""
        for each in self._families:
            if _seconds_until([each.unused.delete_at if quiet else each.unused.overdue_at]) == 0:
                each.cleanup()

    def _publish(self, node: Node | None) -> None:
        with self._store.lock:
            findings = {*self._store.unreadable.values(), *self._more_findings()}
        for family in self._families:
            for about in family.reconciler.findings.values():
                findings.update(about)
        # There may be thousands, and hardly ever does one come or go: as long as none does, nothing is sorted or told.
        standing = self.status.findings
        if findings != self._known_findings:
            for finding in sorted(findings - self._known_findings, key=str):
                self._observer.found(finding)
                log.warning(
                    "finding", kind=finding.kind, object=finding.object, reason=finding.reason, detail=finding.message
                )
            self._known_findings = findings
            standing = tuple(sorted(findings, key=str))
        families = tuple(each.status for each in self._families)
        self.status = Status(self.status.mode, families, standing, node)
        for told in self._told:
            try:
                told(self.status)
            except Exception:  # rules matter more than whoever is told of them
                log.exception("fault in telling of new rules")


def _seconds_until(times: Iterable[float | None]) -> float | None:
    """Seconds until the first of these times (monotonic seconds), 0 where it has come, None where there is none."""
    first = min((each for each in times if each is not None), default=None)
    return max(0.0, first - time.monotonic()) if first is not None else None


def _all_of(sets: Sequence[Set[ServiceKey]]) -> Set[ServiceKey]:
    """Their union; mostly both families had the same to do, which costs nothing."""
    first, *others = sets
    return first if all(each == first for each in others) else frozenset().union(first, *others)
