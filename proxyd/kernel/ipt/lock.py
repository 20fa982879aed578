"""The lock that all users of iptables' legacy tools on a machine share: how long others keep us waiting, and who does.

The tools wait for it themselves, and tell neither how long nor for whom. So it is looked at before they are called.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

log = structlog.get_logger("proxyd.kernel")

# The tools' own variable for the file, and where that is without it.
VARIABLE, FILE = "XTABLES_LOCKFILE", "/run/xtables.lock"
# Seconds after which it is said that somebody holds it.
PATIENCE = 1.0
# Seconds after which it is left to the tools to wait on.
LOOKING = 1.5
_EVERY = 0.01


class XtablesLock:
    """For one thread. ``waited`` is told how long each wait was (seconds), 0 where nobody held the lock.

    Looking at it is no place in the queue, so it ends after ``looking`` seconds: then the tool is to queue. What it takes
    from there on counts as waiting to its end, its own work too.
    """

    def __init__(
        self,
        waited: Callable[[float], None] = lambda _: None,
        patience: float = PATIENCE,
        looking: float = LOOKING,
    ) -> None:
        self._waited = waited
        self._patience = patience
        self._looking = looking

    @contextmanager
    def call(self) -> Iterator[None]:
        """To be entered around a call of a tool; waits until nobody holds the lock, though not for long."""
        file = os.environ.get(VARIABLE, FILE)
        started = time.monotonic()
        told = self._look(file, started)
        seconds = time.monotonic() - started if told is not None else 0.0
        queued = seconds >= self._looking
        try:
            yield
        finally:
            self._waited(time.monotonic() - started if queued else seconds)
        if told:
            log.info("the lock of iptables was had at last", file=file, seconds=round(time.monotonic() - started, 1))

    def _look(self, file: str, started: float) -> bool | None:
        """Whether it took so long that it was told; None where there was nothing to wait for."""
        told = None
        while _is_held(file):
            seconds = time.monotonic() - started
            if not told and seconds >= self._patience:
                who = holder(file)
                log.warning("somebody holds the lock of iptables, waiting for it", file=file, holder=who)
            told = told or seconds >= self._patience
            if seconds >= self._looking:
                break
            time.sleep(_EVERY)
        return told


def _is_held(file: str) -> bool:
    """Whether somebody holds it just now. Not by asking for all of it: others that look at the same moment are let in."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False  # nobody has used it yet, or the tools will say what is wrong
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder(file: str) -> str:
    """The process that holds the lock, as ``name (id)``; "unknown" where it cannot be seen from here."""
    try:
        number = os.stat(file).st_ino
        for process in _holders(number):
            return f"{Path(f'/proc/{process}/comm').read_text().strip()} ({process})"
    except (OSError, ValueError):
        pass
    return "unknown"


def _holders(number: int) -> Iterator[int]:
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        # Those that wait have an arrow before the kind.
        if words[1] == "FLOCK" and words[5].rsplit(":", 1)[-1] == str(number) and int(words[4]) > 0:
            yield int(words[4])
