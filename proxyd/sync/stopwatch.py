"""How much of a pass goes by in calls of the kernel or its tools."""

from __future__ import annotations

import time
from typing import Self


class Stopwatch:
    """Adds up the time (seconds) that is spent within ``with stopwatch:``; for one thread at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        return self

    def __exit__(self, *_error: object) -> None:
        self.seconds += time.monotonic() - self._since
