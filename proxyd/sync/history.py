"""The last changes, each with what caused it and what became of it: a ring of constant size.

The sync thread alone writes; any thread may read. A reader may lose the oldest entry to a writer, never get half of one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import NamedTuple

from proxyd.model import CamelStruct, Event, Family, Origin, ServiceKey
from proxyd.sync.status import FamilyStatus, PassResult, Undone

# Entries that are kept, and what one of them names at most; beyond that it counts.
ENTRIES = 1000
SERVICES_NAMED = 32
EVENTS_NAMED = 16
# Characters of an error that are kept: tools can answer with a line for each rule.
ERROR_KEPT = 1000
# Events of which any Service may feel something.
_CONCERN_ALL = frozenset({Origin.START, Origin.NODE, Origin.HOST, Origin.EDIT, Origin.COMPARISON})


class FamilyWrite(CamelStruct, frozen=True):
    """What one pass did for one family. Seconds; the three add up to the time from the oldest event to the end of the pass.

    ``waited_seconds``: until the pass began with this family. ``work_seconds``: deciding, and making the objects.
    ``kernel_seconds``: in calls of the kernel or its tools; where the work goes on meanwhile, only the rest of it counts as
    work. ``error`` is empty where the pass succeeded. ``quarantined`` are the Services that the kernel refuses, as they are
    after the pass.
    """

    family: Family
    full: bool
    operations: int
    waited_seconds: float
    work_seconds: float
    kernel_seconds: float
    error: str = ""
    refusals: int = 0
    quarantined: tuple[str, ...] = ()
    quarantined_more: int = 0
    undone: Undone | None = None

    @property
    def seconds(self) -> float:
        """From the oldest event to the end of the pass."""
        return self.waited_seconds + self.work_seconds + self.kernel_seconds


class Entry(CamelStruct, frozen=True):
    """One pass: what asked for it, which Services it was about and what was written. Times are Unix seconds.

    ``sequence`` counts from 1 without gaps. ``at`` is when the pass ended, ``oldest`` when the oldest event came that it
    dealt with. ``events`` and ``services`` (namespace/name) name some; ``events_more`` and ``services_more`` count the
    others. ``families`` has those that were tried: one that failed lately waits for its retry.
    """

    sequence: int
    at: float
    oldest: float
    events: tuple[Event, ...] = ()
    events_more: int = 0
    services: tuple[str, ...] = ()
    services_more: int = 0
    families: tuple[FamilyWrite, ...] = ()

    def may_concern(self, service: str) -> bool:
        """Whether this is about a Service (namespace/name), or may be: where not all are named, or all are written."""
        if service in self.services or self.services_more:
            return True
        if any(each.full for each in self.families):
            return True
        return not self.services and any(each.origin in _CONCERN_ALL for each in self.events)


class Since(NamedTuple):
    """Entries after a sequence number; ``last`` is that of the newest one there is, ``dropped`` counts those forgotten."""

    entries: tuple[Entry, ...]
    last: int
    dropped: int


class History:
    """The ring."""

    def __init__(self, size: int = ENTRIES) -> None:
        self.size = size
        self._slots: list[Entry | None] = [None] * size
        self._last = 0

    def record(
        self,
        at: float,
        oldest: float,
        events: Collection[Event],
        events_more: int,
        services: Collection[ServiceKey],
        families: Iterable[FamilyWrite],
    ) -> Entry:
        """Adds an entry; where the ring is full, the oldest one goes. For the sync thread only; times as in ``Entry``."""
        named = tuple(sorted(map(str, islice(services, SERVICES_NAMED))))
        events = tuple(events)
        sequence = self._last + 1
        entry = Entry(
            sequence,
            at,
            oldest,
            events[:EVENTS_NAMED],
            events_more + len(events[EVENTS_NAMED:]),
            named,
            len(services) - len(named),
            tuple(families),
        )
        # In this order: whoever reads meanwhile finds each entry that ``_last`` promises, or one that took its place.
        self._slots[sequence % self.size] = entry
        self._last = sequence
        return entry

    def since(self, after: int) -> Since:
        """The entries after this sequence number (0: all), oldest first. For any thread."""
        last = self._last
        wanted = range(max(0, after) + 1, last + 1)
        slots = (self._slots[each % self.size] for each in wanted[-self.size :])
        kept = tuple(each for each in slots if each is not None and after < each.sequence <= last)
        return Since(kept, last, len(wanted) - len(kept))


def family_write(result: PassResult, status: FamilyStatus) -> FamilyWrite:
    """What is kept of a pass of one family; ``status`` is that after it."""
    in_kernel = min(result.in_kernel, result.seconds)
    quarantined = status.quarantined
    return FamilyWrite(
        family=result.family,
        full=result.full,
        operations=result.operations,
        waited_seconds=result.waited,
        work_seconds=result.seconds - in_kernel,
        kernel_seconds=in_kernel,
        error=result.error[:ERROR_KEPT],
        refusals=result.refusals,
        quarantined=tuple(map(str, quarantined[:SERVICES_NAMED])),
        quarantined_more=len(quarantined[SERVICES_NAMED:]),
        undone=result.undone,
    )
