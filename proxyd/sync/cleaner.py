"""Deletes stale flows, on a thread of its own: rules are never kept waiting by a connection tracker that is full."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import structlog

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.kernel.flows import FlowsError, FlowTable
from proxyd.model import Family

log = structlog.get_logger("proxyd.sync")

# Cleaning may take this share of one core: after t seconds of it, the next one waits t * (1/share - 1) ...
SHARE = 0.25
# ... but never longer than this (seconds).
REST_LONGEST = 5.0
# Seconds until what failed is tried again: doubled each time, up to the longest.
RETRY_FIRST = 1.0
RETRY_LONGEST = 30.0
# Frontends owed while nothing can be deleted; beyond that the oldest are let go (their flows end when packets do).
OWED_AT_MOST = 100_000
_SHOWN = 5

Frontends = dict[FrontendKey, Live]


class FlowObserver(Protocol):
    """Who counts (the metrics). Called on the thread of the cleaner; must be quick and never raise."""

    def flows_cleaned(self, family: Family, seconds: float, deleted: int) -> None:
        """Everything owed of one family was done, in that time; zero deleted is usual."""

    def flows_failed(self, family: Family) -> None:
        """It could not be done; it is still owed."""


class _Debt:
    """What one family owes: the newest state of each frontend. ``due_at`` is the monotonic time before which to wait.

    ``news`` are those that came since somebody asked.
    """

    def __init__(self) -> None:
        self.frontends: Frontends = {}
        self.news: Frontends = {}
        self.due_at = 0.0
        self.delay = 0.0
        self.error = ""

    def add(self, frontends: Mapping[FrontendKey, Live]) -> None:
        """Takes newer states."""
        self.frontends.update(frontends)
        self.news.update(frontends)
        self._bound()

    def take(self) -> Frontends:
        """Gives everything, to be dealt with or put back."""
        taken, self.frontends, self.news = self.frontends, {}, {}
        return taken

    def put_back(self, frontends: Frontends) -> None:
        """Takes states that could not be dealt with; what came meanwhile is newer."""
        self.frontends = frontends | self.frontends
        self._bound()

    def _bound(self) -> None:
        for key in list(self.frontends)[: max(0, len(self.frontends) - OWED_AT_MOST)]:
            del self.frontends[key]
            self.news.pop(key, None)


class _Task(NamedTuple):
    family: Family
    frontends: Frontends


class FlowCleaner:
    """Has the flows of changed frontends cleaned, one family at a time. Memory is bounded by the number of frontends."""

    def __init__(self, table: FlowTable, observer: FlowObserver) -> None:
        self._table = table
        self._observer = observer
        self._changed = threading.Condition()
        self._debts = {family: _Debt() for family in Family}
        self._rest_until = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="conntrack", daemon=True)

    def give(self, family: Family, frontends: Mapping[FrontendKey, Live]) -> None:
        """Takes frontends whose rules are in the kernel now, with the endpoints that keep their flows. Returns at once."""
        with self._changed:
            self._debts[family].add(frontends)
            self._changed.notify_all()

    def owed(self) -> dict[Family, int]:
        """How many frontends of each family have yet to be looked at; from any thread."""
        with self._changed:
            return {family: len(debt.frontends) for family, debt in self._debts.items()}

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread. What is owed then is done by the first full sync of the next start."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while tasks := self._next():
            started = time.monotonic()
            for task in tasks:
                self._clean(task)
            ended = time.monotonic()
            self._rest_until = ended + min((ended - started) * (1 / SHARE - 1), REST_LONGEST)

    def _next(self) -> list[_Task]:
        """Waits until something is due, and takes all that is; nothing at the end."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                owing = {family: max(d.due_at, self._rest_until) for family, d in self._debts.items() if d.frontends}
                if due := [family for family, due_at in owing.items() if due_at <= now]:
                    return [_Task(family, self._debts[family].take()) for family in due]
                self._changed.wait(min(owing.values()) - now if owing else None)
        return []

    def _clean(self, task: _Task) -> None:
        started = time.monotonic()
        try:
            deleted = self._table.delete_stale(task.family, task.frontends, lambda: self._news(task.family))
        except FlowsError as error:
            self._failed(task, str(error))
        except Exception as unforeseen:  # noqa: BLE001  (this thread has other work to do)
            self._failed(task, f"internal error: {unforeseen!r}", trace=True)
        else:
            self._done(task, time.monotonic() - started, deleted)

    def _news(self, family: Family) -> Frontends:
        """What came since the last call, in the middle of a cleaning: else new flows to a new endpoint would be stale."""
        with self._changed:
            news, self._debts[family].news = self._debts[family].news, {}
            return news

    def _failed(self, task: _Task, error: str, *, trace: bool = False) -> None:
        debt = self._debts[task.family]
        debt.delay = min(max(RETRY_FIRST, debt.delay * 2), RETRY_LONGEST)
        debt.due_at = time.monotonic() + debt.delay
        with self._changed:
            debt.put_back(task.frontends)
        self._observer.flows_failed(task.family)
        # The same again and again is worth one line.
        tell = log.debug if error == debt.error else log.warning
        debt.error = error
        tell("stale flows not deleted, will be tried again", ip_family=task.family, error=error, exc_info=trace)

    def _done(self, task: _Task, seconds: float, deleted: int) -> None:
        debt = self._debts[task.family]
        recovered, debt.delay, debt.due_at, debt.error = bool(debt.error), 0.0, 0.0, ""
        self._observer.flows_cleaned(task.family, seconds, deleted)
        shown = ", ".join(map(str, sorted(task.frontends)[:_SHOWN]))
        more = len(task.frontends) - _SHOWN
        tell = log.info if deleted or recovered else log.debug
        tell(
            "stale flows deleted",
            ip_family=task.family,
            flows=deleted,
            frontends=shown + (f" and {more} more" if more > 0 else ""),
            seconds=round(seconds, 3),
        )
