"""The ring of the last changes: bounded, numbered without gaps, and a follower loses nothing that is still there."""

from __future__ import annotations

import random

import msgspec
import pytest

from proxyd.errors import UserError
from proxyd.model import Action, Event, Family, Origin, ServiceKey
from proxyd.serve.history import PATH, HistoryRoute, Page, Wanted, page, wanted
from proxyd.serve.http import Request
from proxyd.sync.history import ERROR_KEPT, EVENTS_NAMED, SERVICES_NAMED, Entry, FamilyWrite, History, family_write
from proxyd.sync.status import FamilyStatus, PassResult, Undone

V4 = Family.IPV4
WEB = ServiceKey("shop", "web")
WRITE = FamilyWrite(V4, False, 3, 0.25, 0.5, 0.25)
CHANGED = Event(Origin.ENDPOINTS, "shop/web-abcde", Action.MODIFIED)


def add(history: History, *services: ServiceKey, events: tuple[Event, ...] = (CHANGED,), more: int = 0) -> Entry:
    return history.record(100.0, 99.0, events, more, services, (WRITE,))


@pytest.mark.parametrize("seed", range(20))
def test_a_follower_gets_every_entry_once_and_is_told_of_what_it_missed(seed: int) -> None:
    chance = random.Random(seed)
    history, seen, missed, last = History(chance.randint(1, 30)), [], 0, 0
    for _ in range(60):
        for _ in range(chance.randint(0, 40)):
            add(history, WEB)
        answer = history.since(last)
        assert len(answer.entries) <= history.size
        assert [each.sequence for each in answer.entries] == list(range(last + 1 + answer.dropped, answer.last + 1))
        seen += [each.sequence for each in answer.entries]
        missed += answer.dropped
        last = answer.last
    assert len(seen) == len(set(seen)) == last - missed
    assert len(history.since(0).entries) == min(history.size, last)


def test_what_one_entry_names_is_bounded_and_the_rest_is_counted() -> None:
    services = {ServiceKey("shop", f"s{number}") for number in range(1000)}
    entry = add(History(), *services, events=(CHANGED,) * 100, more=5)
    assert (len(entry.services), entry.services_more) == (SERVICES_NAMED, 1000 - SERVICES_NAMED)
    assert (len(entry.events), entry.events_more) == (EVENTS_NAMED, 105 - EVENTS_NAMED)
    failed = PassResult(V4, True, 1.0, 1000, 0, error="x" * 10_000, in_kernel=0.25, waited=2.0)
    refused = FamilyStatus(V4, quarantined=tuple(sorted(services)))
    write = family_write(failed, refused)
    assert len(write.error) == ERROR_KEPT
    assert len(write.quarantined) + write.quarantined_more == 1000
    assert (write.waited_seconds, write.work_seconds, write.kernel_seconds, write.seconds) == (2.0, 0.75, 0.25, 3.0)


def test_the_answer_in_json_has_these_fields() -> None:
    history = History()
    write = FamilyWrite(V4, True, 3, 0.25, 0.5, 0.25, "no", 1, ("a/b",), 0, Undone(2, "1 element deleted", "mended"))
    history.record(100.0, 99.0, (CHANGED,), 1, (WEB,), (write,))
    response = HistoryRoute(history, "2026-11-29T20:00:00Z")(Request("GET", PATH))
    assert msgspec.json.decode(response.body) == {
        "run": "2026-11-29T20:00:00Z",
        "last": 1,
        "dropped": 0,
        "entries": [
            {
                "sequence": 1,
                "at": 100.0,
                "oldest": 99.0,
                "events": [{"origin": "EndpointSlice", "object": "shop/web-abcde", "action": "modified"}],
                "eventsMore": 1,
                "services": ["shop/web"],
                "servicesMore": 0,
                "families": [
                    {
                        "family": "IPv4",
                        "full": True,
                        "operations": 3,
                        "waitedSeconds": 0.25,
                        "workSeconds": 0.5,
                        "kernelSeconds": 0.25,
                        "error": "no",
                        "refusals": 1,
                        "quarantined": ["a/b"],
                        "quarantinedMore": 0,
                        "undone": {"edits": 2, "what": "1 element deleted", "how": "mended"},
                    }
                ],
            }
        ],
    }
    assert msgspec.json.decode(response.body, type=Page).entries == history.since(0).entries


def test_a_page_is_what_was_asked_for() -> None:
    history = History(5)
    for number in range(8):
        add(history, WEB if number % 2 else ServiceKey("shop", "api"))

    def numbers(asked: Wanted) -> list[int]:
        return [each.sequence for each in page(history, "", asked).entries]

    assert numbers(Wanted()) == [4, 5, 6, 7, 8]
    assert numbers(Wanted(limit=2)) == [7, 8]
    assert numbers(Wanted(limit=0)) == []
    assert numbers(Wanted(after=6)) == [7, 8]
    assert numbers(Wanted(after=99)) == []
    assert numbers(Wanted(service="shop/web")) == [4, 6, 8]
    assert page(history, "", Wanted(after=1)).dropped == 2
    assert page(history, "", Wanted(service="shop/web", limit=1)).last == 8


@pytest.mark.parametrize("asked", [Wanted(), Wanted(7, 0, "shop/web"), Wanted(limit=3)])
def test_a_path_says_what_is_wanted(asked: Wanted) -> None:
    assert wanted(asked.path.partition("?")[2]) == asked


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "limit=", "limit=1e3", "after=" + "9" * 30, "service=web", "service=a/b/c", "n=3"]
)
def test_a_wrong_query_is_refused(query: str) -> None:
    with pytest.raises(UserError):
        wanted(query)
    assert HistoryRoute(History(), "")(Request("GET", PATH, query)).status == 400


def test_entries_that_may_be_about_a_service_are_its_too() -> None:
    history = History()
    many = [ServiceKey("shop", f"s{number}") for number in range(SERVICES_NAMED + 1)]
    assert add(history, *many).may_concern("shop/web")
    assert add(history, events=(Event(Origin.NODE, "n1", Action.MODIFIED),)).may_concern("shop/web")
    assert not add(history, ServiceKey("shop", "api")).may_concern("shop/web")
    full = msgspec.structs.replace(WRITE, full=True)
    assert history.record(1.0, 1.0, (), 0, (), (full,)).may_concern("shop/web")
