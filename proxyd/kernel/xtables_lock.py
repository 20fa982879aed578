"""The lock that all users of iptables' legacy tools on a machine share: how long others keep us waiting, and who does.

The tools wait for it themselves, and tell neither how long nor for whom. So it is looked at before they are called.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

log = structlog.get_logger("proxyd.kernel")

# The tools' own variable for the file, and where that is without it.
VARIABLE, FILE = "XTABLES_LOCKFILE", "/run/xtables.lock"
# Seconds after which it is said that somebody holds it.
PATIENCE = 1.0
_EVERY = 0.01


class XtablesLock:
    """For one thread. ``waited`` is told how long each wait was (seconds), 0 where nobody held the lock."""

    def __init__(self, waited: Callable[[float], None] = lambda _: None, patience: float = PATIENCE) -> None:
        self._waited = waited
        self._patience = patience

    def wait(self, at_most: float) -> float:
        """Waits until nobody holds the lock, but ``at_most`` so many seconds; gives how long it has been."""
        file = os.environ.get(VARIABLE, FILE)
        started = time.monotonic()
        seconds, told = 0.0, False
        while _is_held(file) and seconds < at_most:
            time.sleep(_EVERY)
            seconds = time.monotonic() - started
            if seconds >= self._patience and not told:
                told = True
                log.warning("somebody holds the lock of iptables, waiting for it", file=file, holder=holder(file))
        self._waited(seconds)
        if told and seconds < at_most:
            log.info("the lock of iptables is free again", file=file, seconds=round(seconds, 1))
        return seconds


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
