"""When to delete what nothing in the kernel uses any more: in a quiet moment, or without one where none comes."""

from __future__ import annotations


class Unused:
    """The times for one family. All times are monotonic seconds; used by the sync thread only."""

    def __init__(self, quiet: float, patience: float) -> None:
        """``quiet``: for how long nothing must have happened. ``patience``: how long that is waited for."""
        self._quiet, self._patience = quiet, patience
        self._owed_since: float | None = None
        self._failed = False
        self._idle_since = 0.0

    @property
    def delete_at(self) -> float | None:
        """When it is to be deleted if nothing changes until then, None where there is nothing of it."""
        overdue_at = self.overdue_at
        if overdue_at is None or self._failed:
            return overdue_at
        return min(self._idle_since + self._quiet, overdue_at)

    @property
    def overdue_at(self) -> float | None:
        """When it has waited so long for a quiet moment that it is to go without one."""
        return self._owed_since + self._patience if self._owed_since is not None else None

    def look(self, now: float, *, owed: bool) -> None:
        """To be called after whatever may have left something, or deleted it; ``owed`` is whether there is something."""
        self._idle_since = now
        if not owed:
            self._failed, self._owed_since = False, None
        elif self._owed_since is None:
            self._owed_since = now

    def tried(self, now: float, *, owed: bool, failed: bool) -> None:
        """Takes the outcome of a deletion. What is left waits like what is new, and where it failed, for its whole time."""
        self._failed, self._owed_since = failed, None
        self.look(now, owed=owed)
