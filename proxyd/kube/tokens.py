"""A token bucket: how often something may happen. Pure, with the time handed in."""

from __future__ import annotations


class TokenBucket:
    """``size`` at once, and one more every ``every`` seconds. Not safe for several threads."""

    def __init__(self, size: int, every: float) -> None:
        self._size = float(size)
        self._every = every
        self._tokens = float(size)
        self._at: float | None = None

    def take(self, now: float) -> bool:
        """Takes a token at ``now`` (monotonic seconds), and tells whether there was one."""
        self._refill(now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self, now: float) -> float:
        """The seconds until there is a token; 0 where there is one."""
        self._refill(now)
        return max(0.0, (1 - self._tokens) * self._every)

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(self._size, self._tokens + (now - self._at) / self._every)
        self._at = now
