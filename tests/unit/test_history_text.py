"""What `proxyd history` prints: one line for each change, whatever is in it; and how changes are followed."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from proxyd.history import follow, told
from proxyd.model import Action, Event, Family, Origin, ServiceKey
from proxyd.serve.history import HistoryRoute, Wanted
from proxyd.serve.history_text import entry_text
from proxyd.serve.http import Request
from proxyd.sync.history import Entry, FamilyWrite, History
from proxyd.sync.status import Undone

V4, V6 = Family.IPV4, Family.IPV6
WRITE = FamilyWrite(V4, False, 3, 0.25, 0.0005, 2.5)
NOTHING = FamilyWrite(V6, False, 0, 0.25, 0.0005, 0.0)
CHANGED = Event(Origin.ENDPOINTS, "shop/web-abcde", Action.MODIFIED)
HOSTILE = "no\nsuch\r\nfile\x1b[2J \u2028 \x85 \x00end"


def entry(*families: FamilyWrite, events: tuple[Event, ...] = (CHANGED,), **more: object) -> Entry:
    fields = {"services": ("shop/web",), "families": families or (WRITE, NOTHING)} | more
    return Entry(7, 1_700_000_000.1234, 1_700_000_000.0, events, **fields)  # type: ignore[arg-type]


def test_a_change_is_a_line_with_its_cause_its_services_and_its_stages() -> None:
    assert entry_text(entry()) == (
        "2023-11-14T22:13:20.123Z #7; EndpointSlice shop/web-abcde modified; for shop/web; "
        "IPv4 3 operations, 2.75 s (250.00 ms waiting + 0.50 ms working out + 2.50 s kernel)"
    )


def test_what_is_not_named_is_counted() -> None:
    services = tuple(f"shop/s{number}" for number in range(10))
    text = entry_text(entry(events=(CHANGED,) * 5, events_more=10, services=services, services_more=90))
    assert "modified and 12 more events; for shop/s0, shop/s1, shop/s2 and 97 more; IPv4" in text


def test_nothing_to_write_and_nobody_to_write_it() -> None:
    assert "; IPv6 nothing to write, " in entry_text(entry(NOTHING))
    assert entry_text(entry(families=())).endswith("; waits for the next try")
    assert "; owed; for shop/web" in entry_text(entry(events=()))


def test_repairs_failures_and_refused_services_are_said() -> None:
    undone = msgspec.structs.replace(WRITE, full=True, undone=Undone(2, "3 x element deleted", "rewritten"))
    assert "3 operations, everything written, 2 foreign edits undone (rewritten: 3 x element deleted), " in entry_text(
        entry(undone)
    )
    failed = msgspec.structs.replace(NOTHING, error="Operation not permitted", refusals=2, quarantined=("a/b",))
    assert "; IPv6 FAILED, will be tried again: Operation not permitted, 2 refused, left out: a/b, " in entry_text(
        entry(NOTHING, failed)
    )


@pytest.mark.parametrize("where", ["error", "what", "object", "service", "quarantined"])
def test_an_entry_is_one_line_whatever_is_in_it(where: str) -> None:
    undone = Undone(1, HOSTILE if where == "what" else "", "mended")
    write = msgspec.structs.replace(
        WRITE,
        error=HOSTILE if where == "error" else "",
        undone=undone,
        quarantined=(HOSTILE,) if where == "quarantined" else (),
    )
    services = (HOSTILE,) if where == "service" else ()
    text = entry_text(
        entry(write, events=(Event(Origin.EDIT, HOSTILE if where == "object" else ""),), services=services)
    )
    assert "no such file [2J end" in text
    assert text.isprintable()
    assert len(text.splitlines()) == 1


class Served:
    """A running proxyd whose history changes whenever somebody waits."""

    def __init__(self, *rounds: int, size: int = 10) -> None:
        self.rounds, self.size, self.runs, self.asked = list(rounds), size, 1, 0
        self.history = History(size)

    def add(self, count: int) -> None:
        for _ in range(count):
            self.history.record(1.0, 1.0, (CHANGED,), 0, (ServiceKey("shop", "web"),), (WRITE,))

    def fetch(self, path: str) -> bytes:
        self.asked += 1
        route, _, query = path.partition("?")
        return HistoryRoute(self.history, f"run{self.runs}")(Request("GET", route, query)).body

    def sleep(self, _seconds: float) -> None:
        """What comes in a round; a negative number is a restart and so many changes after it."""
        if not self.rounds:
            raise KeyboardInterrupt
        count = self.rounds.pop(0)
        if count < 0:
            self.history, self.runs = History(self.size), self.runs + 1
        self.add(abs(count))

    def followed(self, wanted: Wanted, *, as_json: bool = False) -> list[str]:
        lines: list[str] = []
        with suppress(KeyboardInterrupt):
            for each in follow(wanted, self.fetch, self.sleep, as_json=as_json):
                lines.append(each)  # noqa: PERF402  (it never ends, and what has come must stay)
        return lines


def numbers(lines: list[str]) -> list[int]:
    return [msgspec.json.decode(line)["sequence"] for line in lines]


def test_whoever_follows_gets_the_newest_and_then_every_change_once() -> None:
    served = Served(0, 3, 1)
    served.add(5)
    assert numbers(served.followed(Wanted(limit=2), as_json=True)) == [4, 5, 6, 7, 8, 9]
    assert served.asked == 4


def test_what_was_missed_is_said() -> None:
    served = Served(25)
    lines = served.followed(Wanted(limit=0))
    assert lines[0] == "(15 earlier changes are forgotten)"
    assert len(lines) == 11


@pytest.mark.parametrize("after", [1, 3, 9])
def test_after_a_restart_the_new_one_is_followed_from_its_first_change_on(after: int) -> None:
    served = Served(-after, 1)
    served.add(3)
    assert numbers(served.followed(Wanted(limit=1), as_json=True)) == [3, *range(1, after + 2)]


def test_one_document_or_lines() -> None:
    served = Served()
    served.add(2)
    body = served.fetch(Wanted().path)
    assert [each["sequence"] for each in msgspec.json.decode(told(body, as_json=True))["entries"]] == [1, 2]
    assert len(told(body, as_json=False).splitlines()) == 2
    assert told(Served().fetch(Wanted().path), as_json=False) == ""
