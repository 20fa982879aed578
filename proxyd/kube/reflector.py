"""One thread per kind of object that keeps the store equal to what the API server has: list, watch, and begin again.

WatchList (KEP-3157) first, paged LIST where the server has none. The store keeps serving through every fault, and the rate
of requests is bounded in every fault.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

import msgspec
import structlog

from proxyd.kube.backoff import Backoff
from proxyd.kube.client import ApiError, Client, Response, TransportError
from proxyd.kube.decode import Decoded, ObjectKey
from proxyd.kube.resources import Resource
from proxyd.kube.store import Intake
from proxyd.kube.wire import INITIAL_EVENTS_END, Event, NoEndError, Page, WatchError, bookmark, events, list_page

T = TypeVar("T")
PAGE = 500
LOG_AGAIN_SECONDS = 60.0
# After so many in a row it is the resource version that is wrong (as after an etcd restore), or the event behind it.
REFUSALS_TO_RELIST = 3
DOUBTFUL = ("error-event", "garbled", "internal")
# Seconds; times of the server (of triggers, of creation) mean little here where clocks differ by more.
CLOCK_TOLERANCE = 60.0
# Streams that never said where their initial events end before a server counts as one that cannot.
MISSED_ENDS_TO_GIVE_UP = 2

log = structlog.get_logger()


class Timing(NamedTuple):
    """Clock (monotonic seconds), chance ([0, 1)) and all durations of a reflector, in seconds."""

    clock: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random
    list_read: float = 30.0
    initial: float = 30.0  # for all initial events of a WatchList
    watch: tuple[float, float] = (300.0, 600.0)  # bounds of the timeoutSeconds asked for
    idle: float = 90.0  # silence that ends a watch, once bookmarks are known to come about every minute
    margin: float = 30.0  # beyond timeoutSeconds, where they are not
    short: float = 1.0  # a watch that ended within this did not work


class WatchState(NamedTuple):
    """What a reflector has to tell, for metrics, status page and log. Times are monotonic seconds.

    ``mode`` is how lists are taken: "watchlist" or "list". ``relists`` counts complete lists after the first.
    ``clock_offset`` is by how many seconds the server's clock was ahead of ours in its last answer.
    """

    resource: str
    connected: bool
    mode: str
    last_event: float | None
    last_list: float | None
    relists: int
    errors: dict[str, int]
    last_error: str
    clock_offset: float | None


class Reflector(Generic[T]):
    """Keeps one intake of the store equal to one resource of the API server, from ``start`` to ``stop``."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        intake: Intake[T],
        timing: Timing = Timing(),  # noqa: B008 - immutable
        wait: Callable[[float], object] | None = None,
    ) -> None:
        """``wait`` passes that many seconds before a retry; the default ends early at ``stop``."""
        self._client = client
        self._resource = resource
        self._intake = intake
        self._timing = timing
        self._clock = timing.clock
        self._backoff = Backoff(timing.chance)
        self._stop = threading.Event()
        self._wait = wait or self._stop.wait
        self._thread = threading.Thread(target=self._run, name=f"reflector-{resource.name}", daemon=True)
        self._response: Response | None = None
        self._version = ""
        self._watch_list = True
        self._list_once = False
        self._missed_ends = 0
        self._refusals = 0
        self._unauthorized = False
        self._bookmarks = False
        self._last_bookmark: float | None = None
        self._opened = 0.0
        self._connected = False
        self._last_event: float | None = None
        self._last_list: float | None = None
        self._lists = 0
        self._errors: dict[str, int] = {}
        self._last_error = ""
        self._logged: dict[str, float] = {}
        self._lost_at: float | None = None
        self._clock_offset: float | None = None

    @property
    def state(self) -> WatchState:
        """The state right now; may be read from any thread."""
        return WatchState(
            self._resource.name,
            self._connected,
            "watchlist" if self._watch_list else "list",
            self._last_event,
            self._last_list,
            max(self._lists - 1, 0),
            dict(self._errors),
            self._last_error,
            self._clock_offset,
        )

    def start(self) -> None:
        """Starts the thread. To be called once."""
        self._thread.start()

    def stop(self, timeout: float = 0.5) -> bool:
        """Ends the thread, also out of a stalled stream; waits ``timeout`` seconds at most and tells whether it ended.

        What may outlast that is a connection being made; the thread is a daemon thread and holds nothing up.
        """
        self._stop.set()
        response = self._response
        if response is not None:
            response.abort()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            delay = self._round()
            if delay > 0:
                self._wait(delay)

    def _round(self) -> float:
        """One list, or one watch until its end; gives the seconds to wait before the next round."""
        try:
            if self._version:
                self._watch()
            elif self._watch_list and not self._list_once:
                self._watch(initial=True)
            else:
                self._list()
                return 0.0
            if self._clock() - self._opened < self._timing.short:
                raise WatchError("short", "the watch ended at once")
        except (ApiError, TransportError, WatchError) as error:
            return 0.0 if self._stop.is_set() else self._failed(error)
        except Exception as error:  # a fault of our own must not leave the node without its watch
            log.exception("fault in the reflector", resource=self._resource.name)
            return self._failed(WatchError("internal", f"{type(error).__name__}: {error}"))
        finally:
            self._close()
        return 0.0

    def _open(self, params: dict[str, str], read_timeout: float) -> Response:
        response = self._client.get(
            self._resource.path, {**self._resource.selection, **params}, read_timeout=read_timeout
        )
        self._response = response
        self._unauthorized = False
        self._compare_clocks(response.clock_offset)
        if self._stop.is_set():  # stop() may have looked before there was anything to abort
            response.abort()
        return response

    def _close(self) -> None:
        response, self._response, self._connected = self._response, None, False
        if response is not None:
            response.close()

    def _compare_clocks(self, offset: float | None) -> None:
        """Says so when the server's clock begins to differ from ours, and when it no longer does."""
        before, self._clock_offset = abs(self._clock_offset or 0.0), offset
        if abs(offset or 0.0) > CLOCK_TOLERANCE >= before:
            log.warning(
                "the API server's clock differs", resource=self._resource.name, ahead_by_seconds=round(offset or 0.0)
            )
        elif abs(offset or 0.0) <= CLOCK_TOLERANCE < before:
            log.info("the API server's clock is right again", resource=self._resource.name)

    # -- list ----------------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """Takes a complete list in pages; where a page expires (410) in between, one list without pages."""
        started, limit, token = self._clock(), {"limit": str(PAGE)}, ""
        listed: dict[ObjectKey, Decoded[T]] = {}
        while True:
            try:
                page = self._page({**limit, **({"continue": token} if token else {})})
            except ApiError as error:
                if error.status != 410 or not token:
                    raise
                listed, limit, token = {}, {}, ""
                continue
            for raw in page.items or ():
                decoded = self._decode(raw)
                if decoded is not None:
                    listed[decoded.key] = decoded
            token = page.metadata.continue_ or ""
            if not token:
                break
        self._replace(listed, page.metadata.resource_version, started, "list")
        self._list_once = False

    def _page(self, params: dict[str, str]) -> Page:
        response = self._open(params, self._timing.list_read)
        body = response.read()
        self._close()
        if self._stop.is_set():
            raise WatchError("stopped", "stopping")
        return list_page(body)

    def _replace(self, listed: dict[ObjectKey, Decoded[T]], version: str | None, started: float, how: str) -> None:
        if not version:
            raise WatchError("garbled", f"{how} without a resourceVersion")
        self._intake.replace(listed.values())
        self._version = version
        self._refusals = 0
        self._lists += 1
        now = self._last_list = self._last_event = self._clock()
        log.info("listed", resource=self._resource.name, count=len(listed), seconds=round(now - started, 3), how=how)
        self._recovered()

    # -- watch ---------------------------------------------------------------------------------------------------------

    def _watch(self, initial: bool = False) -> None:
        """Follows one watch to its end. With ``initial`` it is a WatchList, which begins with all objects there are."""
        timing = self._timing
        self._opened = started = self._clock()
        seconds = int(timing.watch[0] + (timing.watch[1] - timing.watch[0]) * timing.chance())
        params = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        if initial:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            params["resourceVersion"] = self._version
        idle = timing.idle if self._bookmarks else seconds + timing.margin
        response = self._open(params, timing.initial if initial else idle)
        self._connected, self._last_bookmark = True, None
        stream = self._events(response)
        if initial:
            self._initial_events(stream, started)
            response.set_read_timeout(idle)
        for event in stream:
            self._take(event, response)

    def _initial_events(self, stream: Iterator[Event], started: float) -> None:
        """Collects until the bookmark that ends the initial events, and only then replaces what the store holds."""
        listed: dict[ObjectKey, Decoded[T]] = {}
        try:
            for event in stream:
                if event.type == "BOOKMARK":
                    meta = bookmark(event)
                    if (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true":
                        return self._replace(listed, meta.resource_version, started, "watchlist")
                elif (decoded := self._decode(event.object)) is not None:
                    if event.type == "DELETED":
                        listed.pop(decoded.key, None)
                    else:
                        listed[decoded.key] = decoded
                if self._clock() - started > self._timing.initial:
                    raise NoEndError("initial-events", "the initial events did not end in time")
        except TransportError as error:
            if error.reason != "timeout":
                raise
            raise NoEndError("initial-events", "silence before the end of the initial events") from error
        raise WatchError("initial-events", "the watch ended before its initial events did")

    def _events(self, response: Response) -> Iterator[Event]:
        """The events of a stream, until it ends. Raises WatchError also at ``stop``: a busy stream must not outlive it."""
        for event in events(response):
            if self._stop.is_set():
                raise WatchError("stopped", "stopping")
            self._last_event = self._clock()
            yield event

    def _take(self, event: Event, response: Response) -> None:
        """Puts one event into the store; only then is its version the one to go on from."""
        if event.type == "BOOKMARK":
            version = bookmark(event).resource_version
            self._regular_bookmarks(response)
        else:
            decoded = self._decode(event.object)
            if decoded is None:
                return
            if event.type == "DELETED":
                self._intake.remove(decoded.key)
            else:
                self._intake.put(decoded)
            version = decoded.resource_version
        if version:
            self._version, self._refusals = version, 0
        if self._lost_at is not None and self._clock() - self._opened >= self._timing.short:
            self._recovered()

    def _regular_bookmarks(self, response: Response) -> None:
        """Shortens the silence allowed, once two bookmarks came well within it: the API promises none at all."""
        now, last = self._clock(), self._last_bookmark
        self._last_bookmark = now
        if last is not None and now - last <= self._timing.idle * 5 / 6 and not self._bookmarks:
            self._bookmarks = True
            response.set_read_timeout(self._timing.idle)

    def _decode(self, raw: msgspec.Raw) -> Decoded[T] | None:
        """Reads one object; None where not even its name can be read, which harms that object only."""
        try:
            return self._resource.decode(raw)
        except msgspec.MsgspecError as error:
            self._count("undecodable", f"object without a readable name: {error}")
            self._log("object skipped", "undecodable")
            return None

    # -- faults --------------------------------------------------------------------------------------------------------

    def _failed(self, error: ApiError | TransportError | WatchError) -> float:
        """Draws the consequences of a fault and gives the seconds to wait."""
        status = error.status if isinstance(error, ApiError) else getattr(error, "code", 0)
        reason = f"http-{status}" if isinstance(error, ApiError) else error.reason
        if not self._version and self._no_watch_list(error, status):
            log.info("no WatchList, listing in pages", resource=self._resource.name, reason=str(error))
            return 0.0
        self._count(reason, str(error))
        if reason == "timeout":
            self._bookmarks = False  # perhaps they only stopped coming
        delay = self._delay(error, status, reason)
        if self._log("forbidden" if status == 403 else "watch lost", reason, retry_in=round(delay, 1)):
            self._lost_at = self._clock() if self._lost_at is None else self._lost_at
        return delay

    def _no_watch_list(self, error: Exception, status: int) -> bool:
        """Tells whether to go on with a LIST because of the server's answer to a WatchList."""
        if not self._watch_list or self._list_once:
            return False
        if isinstance(error, NoEndError):
            self._missed_ends += 1
            self._list_once = True
            self._watch_list = self._missed_ends < MISSED_ENDS_TO_GIVE_UP
            return True
        if isinstance(error, ApiError) and status in (400, 422):
            self._watch_list = False
            return True
        return False

    def _delay(self, error: ApiError | TransportError | WatchError, status: int, reason: str) -> float:
        now = self._clock()
        if status == 401 or reason == "tls":
            self._client.refresh()
        # Within a watch it says that the watch could be opened: at once would be for ever.
        if isinstance(error, ApiError) and status == 401 and not self._unauthorized:
            self._unauthorized = True
            return 0.0
        if self._version and status == 410:
            self._version = ""
            return 0.0 if self._backoff.free(now) else self._backoff.delay(now)
        if reason in DOUBTFUL or (400 <= status < 500 and status not in (401, 403, 429)):
            self._refusals += 1
            if self._refusals >= REFUSALS_TO_RELIST:
                self._version, self._refusals = "", 0
        return self._backoff.delay(now, getattr(error, "retry_after", 0.0))

    def _count(self, reason: str, message: str) -> None:
        self._errors[reason] = self._errors.get(reason, 0) + 1
        self._last_error = f"{reason}: {message}"

    def _log(self, event: str, reason: str, **values: object) -> bool:
        """Logs a fault when it is new, and once a minute while it lasts; tells whether it did."""
        now = self._clock()
        if now - self._logged.get(reason, -LOG_AGAIN_SECONDS) < LOG_AGAIN_SECONDS:
            return False
        self._logged[reason] = now
        log.warning(event, resource=self._resource.name, reason=reason, error=self._last_error, **values)
        return True

    def _recovered(self) -> None:
        """Logs the end of a loss that was logged."""
        if self._lost_at is not None:
            log.info("watch recovered", resource=self._resource.name, after=round(self._clock() - self._lost_at, 1))
            self._lost_at = None
