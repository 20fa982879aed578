"""How long to wait before a request is tried again: pure, with time and chance handed in."""

from __future__ import annotations

from collections.abc import Callable

FIRST_SECONDS = 0.8
CAP_SECONDS = 30.0
HEALTHY_SECONDS = 120.0

# A server (or something that answers in its place) may not silence a node for longer than this with one header.
FLOOR_LIMIT_SECONDS = 300.0


class Backoff:
    """Exponential delays with jitter: 0.8 s, doubled up to 30 s, plus 0-100 % of that; anew after 2 healthy minutes.

    The figures are those of client-go's reflector. Healthy means: no delay was asked for since the last one ran out.
    Not safe for several threads; each reflector has its own.
    """

    def __init__(self, chance: Callable[[], float]) -> None:
        """``chance`` gives the jitter, a number in [0, 1)."""
        self._chance = chance
        self._next = FIRST_SECONDS
        self._healthy_from: float | None = None
        self._free = True

    def delay(self, now: float, floor: float = 0.0) -> float:
        """Counts a failure at ``now`` (monotonic seconds) and gives the seconds to wait before the next try.

        ``floor`` is the least that the server asked for (Retry-After, RFC 9110 section 10.2.3); jitter comes on top, so
        that a fleet told the same number does not return at the same moment.
        """
        self._reset_if_healthy(now)
        base = self._next
        self._next = min(self._next * 2, CAP_SECONDS)
        seconds = max(base, min(floor, FLOOR_LIMIT_SECONDS)) + base * self._chance()
        self._healthy_from = now + seconds
        return seconds

    def free(self, now: float) -> bool:
        """Tells whether a try at once is in order: none was lately, whatever else failed. The next one is not free."""
        self._reset_if_healthy(now)
        free, self._free = self._free, False
        if free:
            self._healthy_from = now if self._healthy_from is None else max(now, self._healthy_from)
        return free

    def _reset_if_healthy(self, now: float) -> None:
        if self._healthy_from is not None and now - self._healthy_from >= HEALTHY_SECONDS:
            self._next = FIRST_SECONDS
            self._healthy_from = None
            self._free = True
