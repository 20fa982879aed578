"""One family between passes: what it owes, when it may try again, how it stands. Families never wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from typing import Protocol

import msgspec
import structlog

from proxyd.kernel.refused import KernelRefusedError
from proxyd.kube.store import TIMES_KEPT, Received
from proxyd.model import Cause, Event, Family, Finding, Node, NodeSettings, Origin, ServiceKey
from proxyd.nft.drift import Drift
from proxyd.sync.order import StoppedError
from proxyd.sync.status import OF_LAST_SUCCESS, Counts, FamilyStatus, Observer, PassResult, Repair, Undone, Writing
from proxyd.sync.tally import Tally
from proxyd.sync.unused import Unused

log = structlog.get_logger("proxyd.sync")

SettingsOf = Callable[[Family, Node | None], NodeSettings]

# Seconds until a failed pass is tried again: doubled each time, up to the longest (or syncPeriod, if that is shorter).
RETRY_FIRST = 1.0
RETRY_LONGEST = 10.0
# Foreign changes are undone at once, until so many repairs have followed each other within this time (seconds) each;
# from there on, each repair waits longer than the last.
CALM = 30.0
PATIENT_REPAIRS = 5


class FamilyRules(Protocol):
    """One family's rules in either mode: brought to what is desired, pass by pass. For the sync thread only."""

    family: Family
    settings: NodeSettings | None
    """The settings that the kernel's rules were made with, None before the first pass."""
    rewritten: bool
    """Whether the last pass wrote everything, or tried to."""
    concerned: Set[ServiceKey]
    """The Services that the last pass worked out; where it wrote everything, those that had asked for it."""

    @property
    def operations(self) -> int:
        """How much the last pass wrote."""

    @property
    def refusals(self) -> int:
        """How many transactions were refused in the last pass."""

    @property
    def in_kernel(self) -> float:
        """How much of the last pass went by in calls of the kernel or its tools (seconds)."""

    @property
    def counts(self) -> Counts:
        """How many rules there are, and how many the last pass wrote, where the mode counts them."""

    @property
    def tally(self) -> Tally:
        """Counts of what is in the kernel."""

    @property
    def findings(self) -> dict[ServiceKey, tuple[Finding, ...]]:
        """What there is to say about each Service."""

    def finds_rules(self) -> bool:
        """Whether the kernel has rules of an earlier run in use. Raises ``KernelRefusedError``."""

    @property
    def cleanup_owed(self) -> bool:
        """Whether there are objects in the kernel that nothing uses any more."""

    @property
    def quarantined(self) -> tuple[ServiceKey, ...]:
        """The Services that the kernel refused, and that are not served until it takes them."""

    def sync(
        self, dirty: Iterable[ServiceKey], all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        """One pass. ``dirty`` are Services that changed; whatever an earlier pass could not do is done as well.

        Raises ``KernelRefusedError`` where something is still owed afterwards, ``StoppedError`` at shutdown.
        """

    def retry_quarantined(self, all_keys: Callable[[], list[ServiceKey]]) -> None:
        """Tries each Service that was refused once more, alone: the refusal may not have been about the Service.

        Where what came of it is not known, everything is written: nothing half written stays. Raises as ``sync``.
        """

    def forget(self) -> None:
        """Takes nothing about the kernel for known any more: the next pass writes everything."""

    def mend(self, drift: Drift) -> None:
        """Has the next pass undo what others did: in the places of ``drift``, or by writing everything."""

    def cleanup(self) -> None:
        """Deletes what nothing uses any more; what was in use just now may stay, and is owed as before.

        Raises ``KernelRefusedError``; what is still there is owed as before.
        """


class FamilySync:
    """Runs the passes of one family and keeps its status. Used by the sync thread only; ``status`` is replaced whole."""

    def __init__(
        self,
        reconciler: FamilyRules,
        settings_of: SettingsOf,
        observer: Observer,
        sync_period: float,
        cleanup_after: float,
    ) -> None:
        self.status = FamilyStatus(reconciler.family)
        self.reconciler = reconciler
        # When the next attempt is due although nothing changes (monotonic seconds), None where nothing is owed.
        self.retry_at: float | None = None
        self._settings_of = settings_of
        self._observer = observer
        self._sync_period = sync_period
        self.unused = Unused(cleanup_after, sync_period)
        self._longest = min(RETRY_LONGEST, sync_period)
        self._delay = 0.0
        self._failure = ""
        self._failure_time: float | None = None
        self._dirty: set[ServiceKey] = set()
        self._triggers: list[float] = []
        self._received: list[Received] = []
        self._since: float | None = None
        self._retry_quarantined_at: float | None = None
        # What others did: to be undone when its time has come, and handed over for that but not known to be undone.
        self._drift: Drift | None = None
        self._mending: Drift | None = None
        self._repair_at: float | None = None
        self._repair_delay = 0.0
        self._repairs = 0
        self._drifted_at: float | None = None
        self._drifting_since: float | None = None

    @property
    def due_at(self) -> float | None:
        """When there is something to do although nothing changes (monotonic seconds), None where there is not."""
        if self.retry_at is not None:
            return self.retry_at  # until then, nothing else is done either
        all_due = (self._repair_at, self._retry_quarantined_at)
        return min((at for at in all_due if at is not None), default=None)

    def drifted(self, drift: Drift, at: float) -> None:
        """Takes notice of a foreign change to our table, seen at that time (monotonic seconds).

        The next pass undoes it, though not without end.
        """
        now = time.monotonic()
        if not drift.edits:
            # A comparison by the clock is no sign of anything.
            self._drift = _both(self._drift, drift)
            self._repair_at = now if self._repair_at is None else self._repair_at
            return
        self._drifting_since = at if self._drifting_since is None else self._drifting_since
        if self._drifted_at is None or now - self._drifted_at > CALM:
            self._repairs, self._repair_delay = 0, 0.0
        self._drifted_at = now
        self._drift = _both(self._drift, drift)
        if self._repair_at is not None:
            return
        self._repairs += 1
        if self._repairs > PATIENT_REPAIRS:
            self._repair_delay = min(max(RETRY_FIRST / 2, self._repair_delay * 2), self._longest)
        self._repair_at = now + self._repair_delay
        log.warning(
            "somebody changed our table",
            ip_family=self.reconciler.family,
            what=drift.what,
            repair="rewrite" if drift.everything else "mend",
            in_seconds=self._repair_delay,
        )

    def owe(
        self, services: Iterable[ServiceKey], since: float, triggers: Iterable[float], received: Iterable[Received] = ()
    ) -> None:
        """Takes changes that the kernel does not have yet; ``since`` is the monotonic time of the oldest.

        ``status`` has it from now on, lest a write that hangs goes unnoticed. A first one may take its time.
        """
        self._dirty.update(services)
        self._since = since if self._since is None else self._since
        if self.status.last_success is not None:
            self.status = msgspec.structs.replace(self.status, owed_since=self._since)
        # Bounded: a family that fails owes them until it succeeds.
        self._triggers = [*self._triggers, *triggers][:TIMES_KEPT]
        self._received = [*self._received, *received][:TIMES_KEPT]

    def sync(self, all_keys: Callable[[], list[ServiceKey]], node: Node | None) -> PassResult | None:
        """One pass over everything owed, unless it is too early after a failure (None).

        Raises ``StoppedError`` at shutdown.
        """
        started = time.monotonic()
        if self.retry_at is not None and started < self.retry_at:
            return None
        reconciler, dirty, error = self.reconciler, self._dirty, ""
        self._dirty = set()
        events = self._own_events(started)
        if self._drift is not None and self._repair_at is not None and started >= self._repair_at:
            reconciler.mend(self._drift)
            self._take_drift()
        try:
            reconciler.sync(dirty, all_keys, self._settings_of(reconciler.family, node))
            if self._retry_quarantined_at is not None and started >= self._retry_quarantined_at:
                self._retry_quarantined_at = None
                reconciler.retry_quarantined(all_keys)
        except StoppedError:
            raise
        except KernelRefusedError as refused:
            error = str(refused)
        except Exception as unforeseen:  # one family's trouble must not end the other's
            log.exception("a pass failed", ip_family=reconciler.family)
            reconciler.forget()
            error = f"internal error: {unforeseen!r}"
        ended = time.monotonic()
        self.unused.look(ended, owed=reconciler.cleanup_owed)
        if not error and reconciler.rewritten:
            # Whatever was noticed before the pass is undone too.
            self._take_drift()
        result = PassResult(
            family=reconciler.family,
            full=reconciler.rewritten,
            seconds=ended - started,
            services=len(dirty),
            operations=reconciler.operations,
            error=error,
            refusals=reconciler.refusals,
            counts=reconciler.counts,
            waited=max(0.0, started - self._oldest(started)),
            in_kernel=reconciler.in_kernel,
            events=events,
            undone=None if error else self._undone(),
        )
        if error:
            self._failed(result)
        else:
            self._succeeded(result)
            self._tell_latencies(ended)
        self._observer.pass_done(result)
        return result

    def _own_events(self, now: float) -> tuple[Event, ...]:
        """What asks for a pass that begins now, beside changes of objects."""
        found = []
        if self.retry_at is not None:
            found.append(Event(Origin.RETRY, str(self.reconciler.family)))
        if self._retry_quarantined_at is not None and now >= self._retry_quarantined_at:
            found.append(Event(Origin.RETRY, f"refused Services, {self.reconciler.family}"))
        if self._drift is not None and self._repair_at is not None and now >= self._repair_at:
            origin = Origin.EDIT if self._drift.edits else Origin.COMPARISON
            found.append(Event(origin, str(self.reconciler.family)))
        return tuple(found)

    def _oldest(self, otherwise: float) -> float:
        """When the oldest came of what this pass is to bring into the kernel (monotonic seconds)."""
        edited = self._drifting_since if self._mending is not None else None
        return min((at for at in (self._since, edited) if at is not None), default=otherwise)

    def _undone(self) -> Undone | None:
        """The foreign edits that a pass which succeeded has undone."""
        drift = self._mending
        return Undone(drift.edits, drift.what, self._how) if drift is not None and drift.edits else None

    @property
    def _how(self) -> Repair:
        return "rewritten" if self.reconciler.rewritten else "mended"

    def progressed(self, writing: Writing) -> None:
        """Takes how far a full write has come, in the middle of a pass."""
        self.status = msgspec.structs.replace(self.status, writing=writing)

    def cleanup(self) -> None:
        """Deletes from the kernel what nothing uses any more; a failure is counted. What is left waits like what is new."""
        error = ""
        try:
            self.reconciler.cleanup()
        except KernelRefusedError as refused:
            error = str(refused)
        except Exception as unforeseen:  # nothing that is merely left over may end the sync thread
            log.exception("a cleanup failed", ip_family=self.reconciler.family)
            error = f"internal error: {unforeseen!r}"
        if error:
            self._observer.cleanup_failed(self.reconciler.family)
            log.warning("unused objects not deleted", ip_family=self.reconciler.family, error=error)
        self.unused.tried(time.monotonic(), owed=self.reconciler.cleanup_owed, failed=bool(error))

    def _failed(self, result: PassResult) -> None:
        self._delay = min(max(RETRY_FIRST, self._delay * 2), self._longest)
        self.retry_at = time.monotonic() + self._delay
        self._failure, self._failure_time = result.error, time.time()
        before = self.status
        self.status = self._status(before.last_success, before.last_success_time, result)
        if before.last_success is not None:
            # What could not be written again still serves, or comes back in a moment: a count that a failure broke off is
            # no reason to cut connections, or to send load balancers elsewhere.
            kept = {name: getattr(before, name) for name in OF_LAST_SUCCESS}
            self.status = msgspec.structs.replace(self.status, **kept)
        log.error("rules not written", ip_family=self.status.family, error=result.error, retry_in_seconds=self._delay)

    def _tell_latencies(self, written_at: float) -> None:
        """Tells how long changes took that are in the kernel since ``written_at`` (monotonic seconds)."""
        now, family = time.time(), self.reconciler.family
        for trigger in self._triggers:
            self._observer.programmed(family, max(0.0, now - trigger))
        for cause, at in self._received:
            self._observer.written(family, cause, max(0.0, written_at - at))
        self._triggers, self._received = [], []
        if self._mending is not None:
            self._repaired(self._mending, written_at)
            self._mending = None

    def _succeeded(self, result: PassResult) -> None:
        self._since, self.retry_at, self._delay = None, None, 0.0
        before, self.status = self.status, self._status(time.monotonic(), time.time(), result)
        if not self.status.quarantined:
            self._retry_quarantined_at = None
        elif self._retry_quarantined_at is None:
            self._retry_quarantined_at = time.monotonic() + self._sync_period
        if before.last_error or before.last_success is None or self.reconciler.refusals:
            log.info(
                "rules written",
                ip_family=self.status.family,
                services=self.status.services,
                endpoints=self.status.endpoints,
                seconds=round(result.seconds, 3),
            )

    def _take_drift(self) -> None:
        if self._drift is not None:
            self._mending = _both(self._mending, self._drift)
        self._drift = self._repair_at = None

    def _repaired(self, drift: Drift, written_at: float) -> None:
        family, operations = self.reconciler.family, self.reconciler.operations
        how = self._how
        if not drift.edits:
            log.info("rules compared with what is wanted", ip_family=family, operations=operations)
            return
        self._observer.repaired(family, how, drift.edits)
        if self._drifting_since is not None:
            self._observer.written(family, Cause.DRIFT, max(0.0, written_at - self._drifting_since))
        self._drifting_since = None
        log.info("our table is as it was", ip_family=family, how=how, edits=drift.edits, operations=operations)

    def _status(self, last_success: float | None, last_success_time: float | None, last: PassResult) -> FamilyStatus:
        tally = self.reconciler.tally
        return FamilyStatus(
            family=self.reconciler.family,
            last_success=last_success,
            last_success_time=last_success_time,
            owed_since=self._since,
            last_error=last.error,
            last_pass=last,
            last_failure=self._failure,
            last_failure_time=self._failure_time,
            services=tally.services,
            endpoints=tally.total.endpoints,
            no_local_internal=tally.total.no_local_internal,
            no_local_external=tally.total.no_local_external,
            health_checks=tally.health_checks,
            localhost_ports=tally.localhost_ports,
            settings=self.reconciler.settings,
            quarantined=self.reconciler.quarantined,
            writing=self.status.writing,
        )


def _both(first: Drift | None, later: Drift) -> Drift:
    return later if first is None else first.then(later)
