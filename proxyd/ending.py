"""The end of the program: who asked for it, and with which exit status. Ready before everything else, for signals."""

from __future__ import annotations

import queue
import signal


class Ending:
    """Whether the end is asked for. All of it may be called by signal handlers and any thread, except ``wait``."""

    def __init__(self) -> None:
        self.asked = False
        """Whether it is."""
        self.status = 0
        """The exit status: the highest that was asked for."""
        # Signal handlers put here too, which may interrupt anything: no other queue, event or lock can take that.
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()

    def on_signals(self) -> None:
        """Has SIGTERM and SIGINT ask for it. For the main thread, and early: process 1 of a container misses others."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.ask(0))

    def ask(self, status: int) -> None:
        """Asks for the end."""
        self.status = max(self.status, status)
        self.asked = True
        self.wake()

    def wake(self) -> None:
        """Ends a ``wait``, though the end may not be asked for."""
        self._news.put(None)

    def wait(self) -> None:
        """Waits for ``ask`` or ``wake``, one of them that no earlier call has waited for."""
        self._news.get()
