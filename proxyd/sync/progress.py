"""How far a full write has come: told in the middle of a pass, which may be long at the first start."""

from __future__ import annotations

import time

import structlog

from proxyd.model import Family
from proxyd.sync.status import Writing

log = structlog.get_logger("proxyd.sync")

# Seconds between two lines in the log.
LOG_EVERY = 2.0


class Progress:
    """Follows the full writes of all families. Used by the sync thread only."""

    def __init__(self) -> None:
        self._told: dict[Family, float] = {}
        self._since: dict[Family, float] = {}

    def note(self, family: Family, done: int, of: int) -> Writing:
        """Takes how many Services are written, 0 at the beginning; gives what there is to show. Long writes are logged."""
        now = time.monotonic()
        if not done:
            self._since[family] = self._told[family] = now
        writing = Writing(done, of, self._since.get(family, now))
        if done < of and now - self._told.get(family, now) >= LOG_EVERY:
            self._told[family] = now
            seconds = round(now - writing.since, 1)
            log.info("writing rules", ip_family=family, services=done, of=of, seconds=seconds)
        return writing
