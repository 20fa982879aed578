"""Entries of the history as people read them: one line each."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator

from proxyd.model import Action, Event
from proxyd.sync.history import Entry, FamilyWrite

# What a line shows of each; JSON has all that is kept.
EVENTS_SHOWN = 3
SERVICES_SHOWN = 3
# Errors and words about edits come from tools: whatever could end a line or move the cursor is shown as a space.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\s]+")


def entry_text(entry: Entry) -> str:
    """One line, without the newline at its end: when, what asked for it, which Services, what became of it."""
    parts = [f"{_when(entry.at)} #{entry.sequence}", _events(entry)]
    if entry.services:
        parts.append(_named("for", entry.services, SERVICES_SHOWN, entry.services_more))
    parts += [_family(each) for each in _told(entry.families)] or ["waits for the next try"]
    return _UNPRINTABLE.sub(" ", "; ".join(filter(None, parts)))


def dropped_text(dropped: int) -> str:
    """One line about entries that are forgotten."""
    return f"({dropped} earlier {'change is' if dropped == 1 else 'changes are'} forgotten)"


def _when(unix: float) -> str:
    """RFC 3339 in UTC, always with milliseconds, so that lines stand in columns."""
    seconds, milliseconds = divmod(round(unix * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{milliseconds:03}Z"


def _events(entry: Entry) -> str:
    """What asked for it, each kind with its first objects."""
    shown = [_event(each) for each in entry.events[:EVENTS_SHOWN]]
    more = len(entry.events) - len(shown) + entry.events_more
    return ", ".join(shown) + (f" and {more} more events" if more else "") if shown else "owed"


def _event(event: Event) -> str:
    words = (str(event.origin), event.object, "" if event.action is Action.NONE else str(event.action))
    return " ".join(filter(None, words))


def _named(what: str, names: Iterable[str], most: int, more: int) -> str:
    names = list(names)
    more += len(names[most:])
    return f"{what} {', '.join(names[:most])}" + (f" and {more} more" if more else "")


def _told(families: tuple[FamilyWrite, ...]) -> Iterator[FamilyWrite]:
    """Those that did something; the first one where nobody had to."""
    busy = [
        each for each in families if each.operations or each.error or each.refusals or each.undone or each.quarantined
    ]
    yield from busy or families[:1]


def _family(write: FamilyWrite) -> str:
    if write.error:
        what = f"FAILED, will be tried again: {write.error}"
    else:
        many = f"{write.operations} {'operation' if write.operations == 1 else 'operations'}"
        what = many if write.operations else "nothing to write"
        what += ", everything written" if write.full else ""
    if write.undone is not None:
        undone = write.undone
        what += (
            f", {undone.edits} foreign {'edit' if undone.edits == 1 else 'edits'} undone ({undone.how}: {undone.what})"
        )
    if write.refusals:
        what += f", {write.refusals} refused"
    if write.quarantined:
        what += ", " + _named("left out:", write.quarantined, SERVICES_SHOWN, write.quarantined_more)
    return f"{write.family} {what}, {_stages(write)}"


def _stages(write: FamilyWrite) -> str:
    return (
        f"{_time(write.seconds)} ({_time(write.waited_seconds)} waiting + {_time(write.work_seconds)} working out"
        f" + {_time(write.kernel_seconds)} kernel)"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.2f} ms"
