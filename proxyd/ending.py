"""The end of the program: who asked for it, and with which exit status. Ready before everything else, for signals."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

_MANY = 4096


class Ending:
    """Whether the end is asked for. All of it may be called by signal handlers and any thread, except ``wait``."""

    def __init__(self) -> None:
        self.asked = False
        """Whether it is."""
        self.status = 0
        """The exit status: the highest that was asked for."""
        # A pipe, since Python runs its handlers on the main thread only, and between two steps of it: a signal that comes
        # just before a wait for a lock or a queue does not end that wait. What is written to a pipe does.
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)

    def on_signals(self) -> None:
        """Has SIGTERM and SIGINT ask for it. For the main thread, and early: process 1 of a container misses others."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask(0))

    def ask(self, status: int) -> None:
        """Asks for the end."""
        self.status = max(self.status, status)
        self.asked = True
        self.wake()

    def wake(self) -> None:
        """Ends a ``wait``, though the end may not be asked for."""
        with suppress(BlockingIOError):  # full, so that it ends anyway
            os.write(self._wake, b"\0")

    def wait(self) -> None:
        """Waits for ``ask``, ``wake`` or a signal; those that came since the last time count, together as one."""
        os.read(self._wakes, _MANY)
