"""Writes Events to the API server, on a thread of its own: whoever says something never waits, and the rate is bounded.

What is said again is counted in the Event that is there. Whatever goes wrong costs Events and nothing else.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import structlog

from proxyd.kube import events
from proxyd.kube.backoff import Backoff
from proxyd.kube.client import ApiError, TransportError
from proxyd.kube.events import Notice, Outcome
from proxyd.kube.store import Store
from proxyd.kube.tokens import TokenBucket
from proxyd.model import Finding, ServiceKey

log = structlog.get_logger()

# Notices that wait to be written; beyond that the oldest are let go.
QUEUE_AT_MOST = 100
# Events and objects that are remembered.
REMEMBERED_AT_MOST = 1000
# An Event is gone after an hour, unless the API server was told otherwise; then it may be created anew.
REMEMBERED_SECONDS = 3600.0
# Requests that the server refused (4xx) until a notice is given up.
TRIES = 5
# Answers that will be the same next time: a fault of ours.
HOPELESS = (400, 413, 422)


class Limits(NamedTuple):
    """How many requests there may be: at once, and then one every so many seconds; in all, and for one object.

    ``spread`` is the longest that a notice which all nodes have is held back at random, so that one of them has written
    it before the others try.
    """

    burst: int = 20
    every: float = 10.0
    object_burst: int = 5
    object_every: float = 60.0
    spread: float = 10.0


class Timing(NamedTuple):
    """Clocks (monotonic and Unix seconds) and chance ([0, 1))."""

    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random


class EventObserver(Protocol):
    """Who counts (the metrics). Must be quick and never raise."""

    def event_done(self, outcome: Outcome) -> None:
        """That became of a notice."""


class Writer(Protocol):
    """The part of ``Client`` that is used here."""

    def post(self, path: str, body: bytes) -> None:
        """See ``Client``."""

    def patch(self, path: str, body: bytes) -> None:
        """See ``Client``."""

    def refresh(self) -> None:
        """See ``Client``."""


class _Waiting:
    """A notice that is to be written, and how often it was ``said`` meanwhile.

    ``ready_at`` is when it may be written (monotonic), ``at`` when it was last said (Unix seconds).
    """

    def __init__(self, ready_at: float, at: float) -> None:
        self.ready_at = ready_at
        self.at = at
        self.said = 1
        self.tries = 0


class _Told(NamedTuple):
    """An Event that is there: its path (empty: somebody else wrote it), how often it was said, and until when it counts."""

    path: str
    times: int
    until: float


class Recorder:
    """See the module. ``say`` may be called from any thread, ``start`` and ``stop`` once each."""

    def __init__(
        self,
        client: Writer,
        node: str,
        uid_of: Callable[[Notice], str],
        observer: EventObserver,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        timing: Timing = Timing(),  # noqa: B008 - immutable
    ) -> None:
        self._client = client
        self._node = node
        self._uid_of = uid_of
        self._observer = observer
        self._limits = limits
        self._timing = timing
        self._changed = threading.Condition()
        self._queue: OrderedDict[Notice, _Waiting] = OrderedDict()
        self._told: OrderedDict[Notice, _Told] = OrderedDict()
        self._objects: OrderedDict[tuple[str, str, str], TokenBucket] = OrderedDict()
        self._bucket = TokenBucket(limits.burst, limits.every)
        self._backoff = Backoff(timing.chance)
        self._not_before = 0.0
        self._trouble = False
        self._standing: Sequence[Finding] = ()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread; what is about this node and still waits is tried once, for that many seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def found(self, findings: Sequence[Finding]) -> None:
        """Takes all Findings that stand now, and says those that did not before, in this order. For one thread only."""
        if findings is self._standing:
            return
        before, self._standing = frozenset(self._standing), findings
        for finding in findings:
            notice = events.of_finding(finding) if finding not in before else None
            if notice is not None:
                self.say(notice)

    def say(self, notice: Notice) -> None:
        """Takes something to say; returns at once."""
        now, at = self._timing.clock(), self._timing.wall()
        with self._changed:
            told = self._recall(notice, now)
            if told is not None:
                self._told[notice] = told._replace(times=told.times + 1)
            if notice in self._queue:
                self._queue[notice].at = at
                self._queue[notice].said += 1
            elif told is not None and not told.path:
                self._observer.event_done(Outcome.KNOWN)
            elif not self._object_bucket(notice).take(now):
                self._observer.event_done(Outcome.DROPPED)
            else:
                spread = 0.0 if notice.of_node or told else self._limits.spread * self._timing.chance()
                self._queue[notice] = _Waiting(now + spread, at)
                self._bound()
                self._changed.notify_all()

    # -- what is remembered; the lock is held -----------------------------------------------------------------------------

    def _recall(self, notice: Notice, now: float) -> _Told | None:
        told = self._told.get(notice)
        return told if told is not None and now < told.until else None

    def _remember(self, notice: Notice, told: _Told) -> None:
        self._told[notice] = told
        self._told.move_to_end(notice)
        while len(self._told) > REMEMBERED_AT_MOST:
            self._told.popitem(last=False)

    def _object_bucket(self, notice: Notice) -> TokenBucket:
        about = notice[:3]
        bucket = self._objects.pop(about, None) or TokenBucket(self._limits.object_burst, self._limits.object_every)
        self._objects[about] = bucket
        while len(self._objects) > REMEMBERED_AT_MOST:
            self._objects.popitem(last=False)
        return bucket

    def _bound(self) -> None:
        while len(self._queue) > QUEUE_AT_MOST:
            # Of what all nodes say, some other may get it written.
            oldest = next((each for each in self._queue if not each.of_node), next(iter(self._queue)))
            del self._queue[oldest]
            self._observer.event_done(Outcome.DROPPED)

    # -- the thread -------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            self._write(*taken)

    def _next(self) -> tuple[Notice, _Waiting] | None:
        """Waits until a notice may be written, and takes it; None at the end."""
        with self._changed:
            while True:
                now = self._timing.clock()
                if self._stopping:
                    last = next((each for each in self._queue if each.of_node), None)
                    return None if last is None else (last, self._queue.pop(last))
                due = min(self._queue, key=lambda each: self._queue[each].ready_at, default=None)
                if due is None:
                    self._changed.wait()
                    continue
                may = max(self._queue[due].ready_at, self._not_before, now + self._bucket.wait(now))
                if may <= now:
                    self._bucket.take(now)
                    return due, self._queue.pop(due)
                self._changed.wait(may - now)

    def _write(self, notice: Notice, waiting: _Waiting) -> None:
        with self._changed:
            told = self._recall(notice, self._timing.clock())
            if told is not None and told.path and told.times < 2:  # said again while it was being created
                told = self._told[notice] = told._replace(times=2)
        try:
            if told is None:
                self._create(notice, waiting)
            elif not told.path:
                self._done(Outcome.KNOWN)
            else:
                self._client.patch(told.path, events.series(told.times, waiting.at))
                self._done(Outcome.COUNTED)
        except ApiError as error:
            self._refused(notice, waiting, error, patching=told is not None)
        except TransportError as error:
            self._put_back(notice, waiting, f"{error.reason}: {error}")
        except Exception:  # this thread has other things to write
            log.exception("an Event could not be made", kind=notice.kind, object=notice.name, reason=notice.reason)
            self._observer.event_done(Outcome.GIVEN_UP)

    def _create(self, notice: Notice, waiting: _Waiting) -> None:
        path, uid = events.path(notice), self._uid_of(notice)
        until = self._timing.clock() + REMEMBERED_SECONDS
        name = events.event_name(notice, uid, self._node)
        try:
            self._client.post(path, events.event(notice, uid, self._node, waiting.at))
        except ApiError as error:
            if error.status != 409:
                raise
            told, outcome = _Told("", waiting.said, until), Outcome.KNOWN
        else:
            told, outcome = _Told(f"{path}/{name}", waiting.said, until), Outcome.CREATED
        with self._changed:
            self._remember(notice, told)
        self._done(outcome)

    def _done(self, outcome: Outcome) -> None:
        self._observer.event_done(outcome)
        if self._trouble:
            self._trouble = False
            log.info("Events are written again")

    def _refused(self, notice: Notice, waiting: _Waiting, error: ApiError, *, patching: bool) -> None:
        if error.status == 404 and patching:
            with self._changed:  # its time was over
                self._told.pop(notice, None)
        if error.status == 401:
            self._client.refresh()
        waiting.tries += error.status < 500 and error.status not in (401, 429)
        if error.status in HOPELESS or waiting.tries >= TRIES:
            log.warning("Event given up", kind=notice.kind, object=notice.name, reason=notice.reason, error=str(error))
            self._observer.event_done(Outcome.GIVEN_UP)
        else:
            self._put_back(notice, waiting, str(error), error.retry_after)

    def _put_back(self, notice: Notice, waiting: _Waiting, error: str, floor: float = 0.0) -> None:
        """Has it tried again later. What is said only when the process ends is not."""
        now = self._timing.clock()
        delay = self._backoff.delay(now, floor)
        # The same again and again is worth one line.
        tell = log.debug if self._trouble else log.warning
        self._trouble = True
        tell("Events cannot be written, will be tried again", error=error, retry_in=round(delay, 1))
        with self._changed:
            self._not_before = now + delay
            if not self._stopping:
                self._queue.setdefault(notice, waiting)
                self._queue.move_to_end(notice, last=False)
                self._bound()


def uids(store: Store) -> Callable[[Notice], str]:
    """Gives the uid that Events on an object refer to: "" where the object is not known.

    That of a Node is its name, as in the kubelet's Events and kube-proxy's: that is what ``kubectl describe`` looks for.
    """

    def uid_of(notice: Notice) -> str:
        if notice.kind == "Node":
            return notice.name
        if notice.kind != "Service":
            return ""
        with store.lock:
            service = store.services.objects.get(ServiceKey(notice.namespace, notice.name))
        return service.uid if service is not None else ""

    return uid_of
