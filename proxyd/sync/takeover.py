"""Removes what kube-proxy left, on a thread of its own, once our own rules of the family are in.

Until then the old rules serve, in between both do, and afterwards ours: no connection meets a node without rules. If
kube-proxy still runs it puts its rules back. That is told, loudly, and its rules are removed again ever more rarely and
not in a fight: both sets of rules lead to the same endpoints, so what there is to fear is only that one becomes stale.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

import structlog

from proxyd.ipt.removal import Found
from proxyd.kernel.predecessor import Predecessor, PredecessorError
from proxyd.sync.status import Status

log = structlog.get_logger("proxyd.sync")

# Seconds until a place is looked at again after it was looked at; the last goes on for ever.
DELAYS = (10.0, 60.0, 600.0, 3600.0)
# Removing may take this share of one core: after a step of t seconds the next one waits t * (1/share - 1). Whoever listens
# to the kernel's notifications keeps up with it then, too.
SHARE = 0.25
# Seconds until a removal that failed is tried again; after the last it is as if it had been looked at.
RETRIES = (1.0, 2.0, 5.0, 10.0)
_SHOWN = 3


class _StoppedError(Exception):
    """The thread is asked to end; what is left is removed after the next start."""


class _Place:
    """One place, and when to look at it: ``due_at`` is the monotonic time, infinite before our rules are in."""

    def __init__(self, predecessor: Predecessor) -> None:
        self.predecessor = predecessor
        self.due_at = math.inf
        self.looks = 0
        self.failures = 0
        self.removals = 0
        self.error = ""


class Takeover:
    """Looks at all places again and again, and has removed what is there."""

    def __init__(self, predecessors: Sequence[Predecessor], delays: Sequence[float] = DELAYS) -> None:
        self._places = [_Place(each) for each in predecessors]
        self._delays = delays
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="takeover", daemon=True)

    def update(self, status: Status) -> None:
        """Takes note of the families whose rules are in; returns at once."""
        written = {family.family for family in status.families if family.last_success is not None}
        with self._changed:
            for each in self._places:
                if each.due_at == math.inf and each.predecessor.family in written:
                    each.due_at = time.monotonic()
                    self._changed.notify_all()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread, after the step that it is in."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (place := self._next()) is not None:
            try:
                self._look(place)
            except _StoppedError:
                return
            except PredecessorError as error:
                self._failed(place, str(error))
            except Exception as unforeseen:  # noqa: BLE001  (the other places have to be looked at)
                self._failed(place, f"internal error: {unforeseen!r}", trace=True)

    def _next(self) -> _Place | None:
        """Waits until a place is due and gives it; None at the end."""
        with self._changed:
            while not self._stopped:
                first = min(self._places, key=lambda each: each.due_at)
                wait = first.due_at - time.monotonic()
                if wait <= 0:
                    return first
                self._changed.wait(None if wait == math.inf else wait)
        return None

    def _look(self, place: _Place) -> None:
        found = place.predecessor.find()
        if found is not None:
            started = time.monotonic()
            _tell(place, found)
            place.predecessor.remove(found, self._breathe)
            place.removals += 1
            seconds = round(time.monotonic() - started, 3)
            log.info(f"rules of {found.whose} removed", place=place.predecessor.place, seconds=seconds)
        place.failures, place.error = 0, ""
        self._rest(place)

    def _breathe(self, spent: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, spent * (1 / SHARE - 1)):
                raise _StoppedError

    def _failed(self, place: _Place, error: str, *, trace: bool = False) -> None:
        # The same again and again is worth one line.
        tell = log.debug if error == place.error else log.warning
        place.error = error
        if place.failures < len(RETRIES):
            place.due_at = time.monotonic() + RETRIES[place.failures]
        else:
            self._rest(place)
        place.failures += 1
        tell(
            "rules of kube-proxy not removed, will be tried again",
            place=place.predecessor.place,
            error=error,
            exc_info=trace,
        )

    def _rest(self, place: _Place) -> None:
        """Puts the next look off, further than the last one."""
        place.due_at = time.monotonic() + self._delays[min(place.looks, len(self._delays) - 1)]
        place.looks += 1


def _tell(place: _Place, found: Found) -> None:
    details = {"place": place.predecessor.place, "jumps": len(found.jumps), "chains": len(found.chains)}
    if found.kept:
        names = [f"{chain.table} {chain.name}" for chain in found.kept]
        details["kept_because_others_use_them"] = ", ".join(names[:_SHOWN]) + (" ..." if names[_SHOWN:] else "")
    if place.removals and not place.failures and not found.own:
        log.warning(
            "rules of kube-proxy are back, removing them again: is it still running? Stop it on this node",
            removed_before=place.removals,
            **details,
        )
    else:
        log.info(f"rules of {found.whose} found, removing them", **details)
    if found.forward_drops:
        log.warning(
            "the policy of FORWARD is DROP, and rules of kube-proxy that accepted traffic go now: "
            "what nothing else accepts will be dropped (see docs/migrate.md)",
            place=place.predecessor.place,
        )
