"""When to write: the thread that owns all state, takes what changed and brings every family up to date."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import structlog

from proxyd.kernel.ruleset import KernelRefusedError
from proxyd.kube.store import Changes, Store
from proxyd.model import Family, Finding, Node, NodeSettings
from proxyd.sync.reconcile import Reconciler, StoppedError
from proxyd.sync.status import FamilyStatus, Observer, PassResult, Status

log = structlog.get_logger("proxyd.sync")

# Under churn syncing may take this share of one core: after a pass of t seconds the next one waits t * (1/share - 1).
SHARE = 0.25
# Objects that nothing uses any more are deleted when no change has come for this long (seconds).
CLEANUP_AFTER = 1.0
RETRY_FIRST = 1.0

SettingsOf = Callable[[Family, Node | None], NodeSettings]


class Timing(NamedTuple):
    """Seconds: the longest that a change may wait, the longest between retries, how long to wait for the Node at start."""

    min_sync_period: float = 1.0
    sync_period: float = 30.0
    node_wait: float = 10.0


class _FamilyState:
    """What the loop remembers of one family between passes."""

    def __init__(self, reconciler: Reconciler) -> None:
        self.reconciler = reconciler
        self.status = FamilyStatus(reconciler.family)
        self.triggers: list[float] = []
        self.retry_delay = 0.0
        self.cleanup_failed = False


class SyncLoop:
    """Runs passes until told to stop. ``status`` may be read from any thread; it is replaced whole."""

    def __init__(
        self,
        store: Store,
        reconcilers: Sequence[Reconciler],
        settings_of: SettingsOf,
        observer: Observer,
        timing: Timing,
        mode: str = "nftables",
        more_findings: Callable[[], Iterable[Finding]] = tuple,
    ) -> None:
        self.status = Status(mode, tuple(FamilyStatus(r.family) for r in reconcilers))
        self._store = store
        self._states = [_FamilyState(reconciler) for reconciler in reconcilers]
        self._settings_of = settings_of
        self._observer = observer
        self._timing = timing
        self._more_findings = more_findings
        self._stop = threading.Event()
        self._known_findings: frozenset[Finding] = frozenset()
        self._started_at = time.time()
        self._retry_at: float | None = None

    def stopping(self) -> bool:
        """Whether the loop was asked to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Asks the loop to end after the commit it is in."""
        self._stop.set()
        self._store.wake()

    def run(self) -> None:
        """Runs until ``stop``."""
        if not self._wait_complete():
            return
        self._pass(self._store.take())
        while not self._stop.is_set():
            changed = self._store.wait(self._patience())
            if self._stop.is_set():
                return
            if changed:
                self._observer.queued()
                self._pass(self._store.take())
            elif self._retry_at is not None and time.monotonic() >= self._retry_at:
                self._pass(self._store.take())
            else:
                self._cleanup()

    def _wait_complete(self) -> bool:
        """Waits for the first complete lists, and a little for the Node; gives False where stopped meanwhile."""
        with self._store.lock:
            self._store.lock.wait_for(lambda: self._stop.is_set() or self._store.complete)
            ready = lambda: self._stop.is_set() or self._store.nodes.synced  # noqa: E731
            self._store.lock.wait_for(ready, self._timing.node_wait)
        return not self._stop.is_set()

    def _patience(self) -> float | None:
        """How long to wait for a change: until the retry, the cleanup, or for ever."""
        if self._retry_at is not None:
            return max(0.0, self._retry_at - time.monotonic())
        owed = any(s.reconciler.cleanup_owed for s in self._states)
        failed = any(s.cleanup_failed for s in self._states)
        return (self._timing.sync_period if failed else CLEANUP_AFTER) if owed else None

    def _pass(self, changes: Changes) -> None:
        started = time.monotonic()
        node = self._store.node()
        owed_since = changes.since if changes.since is not None else started
        for state in self._states:
            if self._stop.is_set():
                return
            state.triggers.extend(t for each in changes.triggers.values() for t in each if t >= self._started_at)
            self._sync_family(state, changes, node, owed_since)
        delays = [s.retry_delay for s in self._states if s.retry_delay]
        self._retry_at = time.monotonic() + min(delays) if delays else None
        self._publish(node)
        spent = time.monotonic() - started
        self._stop.wait(min(spent * (1 / SHARE - 1), self._timing.min_sync_period))

    def _sync_family(self, state: _FamilyState, changes: Changes, node: Node | None, owed_since: float) -> None:
        reconciler, old = state.reconciler, state.status
        full, started, error = reconciler.full_owed, time.monotonic(), ""
        try:
            reconciler.sync(changes.services, self._store.keys, self._settings_of(reconciler.family, node))
        except StoppedError:
            return
        except KernelRefusedError as refused:
            error = str(refused)
        except Exception as unforeseen:  # one family's trouble must not end the other's
            log.exception("a pass failed", ip_family=old.family)
            reconciler.forget()
            error = f"internal error: {unforeseen!r}"
        seconds = time.monotonic() - started
        tally = reconciler.tally
        if error:
            state.retry_delay = min(max(RETRY_FIRST, state.retry_delay * 2), self._timing.sync_period)
            since = old.owed_since if old.owed_since is not None else owed_since
            state.status = FamilyStatus(
                old.family, old.last_success, old.last_success_time, since, error, tally.services, *tally.total
            )
            log.error(
                "rules could not be written", ip_family=old.family, error=error, retry_in_seconds=state.retry_delay
            )
        else:
            if old.last_error or old.last_success is None:
                log.info(
                    "rules written",
                    ip_family=old.family,
                    services=tally.services,
                    endpoints=tally.total.endpoints,
                    seconds=round(seconds, 3),
                )
            state.retry_delay = 0.0
            state.status = FamilyStatus(
                old.family, time.monotonic(), time.time(), None, "", tally.services, *tally.total
            )
            self._programmed(state)
        services = len(changes.services)
        self._observer.pass_done(PassResult(old.family, full, seconds, services, reconciler.operations, error))

    def _programmed(self, state: _FamilyState) -> None:
        now = time.time()
        for trigger in state.triggers:
            self._observer.programmed(state.reconciler.family, max(0.0, now - trigger))
        state.triggers.clear()

    def _cleanup(self) -> None:
        for state in self._states:
            if not state.reconciler.cleanup_owed:
                continue
            try:
                state.reconciler.cleanup()
                state.cleanup_failed = False
            except KernelRefusedError as error:
                state.cleanup_failed = True
                self._observer.cleanup_failed(state.reconciler.family)
                log.warning("unused objects not deleted", ip_family=state.reconciler.family, error=str(error))

    def _publish(self, node: Node | None) -> None:
        with self._store.lock:
            findings = {*self._store.unreadable.values(), *self._more_findings()}
        for state in self._states:
            for each in state.reconciler.findings.values():
                findings.update(each)
        current = frozenset(findings)
        for finding in sorted(current - self._known_findings, key=str):
            self._observer.found(finding)
            log.warning(
                "finding", kind=finding.kind, object=finding.object, reason=finding.reason, detail=finding.message
            )
        self._known_findings = current
        self.status = Status(
            self.status.mode, tuple(s.status for s in self._states), tuple(sorted(current, key=str)), node
        )
