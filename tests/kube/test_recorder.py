"""The recorder of Events, against the stub API server: what is written, how often, and what trouble costs."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import structlog.testing

from proxyd.kube import backoff, events
from proxyd.kube import recorder as recorder_module
from proxyd.kube.client import connect
from proxyd.kube.events import Notice, Outcome
from proxyd.kube.recorder import QUEUE_AT_MOST, TRIES, Limits, Recorder, Timing, uids
from proxyd.model import Finding, Reason, Service, ServiceKey
from tests import build
from tests.fakes import apiserver as fake
from tests.fakes.apiserver import ApiServer

DEADLINE = 20.0
GENEROUS = Limits(burst=10_000, every=0.001, object_burst=10_000, object_every=0.001, spread=0.0)
NEVER_AGAIN = 3600.0


def finding(number: int = 1, name: str = "web") -> Finding:
    return Finding("Service", f"shop/{name}", Reason.INVALID_PORT, f"port {number}")


def notice(number: int = 1, name: str = "web") -> Notice:
    made = events.of_finding(finding(number, name))
    assert made is not None
    return made


def of_node(problem: str = "taken") -> Notice:
    return events.health_address_taken("node1", problem)


class Outcomes:
    """An EventObserver that a test can wait for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.counts: Counter[Outcome] = Counter()

    def event_done(self, outcome: Outcome) -> None:
        with self.changed:
            self.counts[outcome] += 1
            self.changed.notify_all()

    def until(self, **wanted: int) -> None:
        """Waits until these outcomes have been counted at least so often."""

        def there() -> bool:
            return all(self.counts[Outcome(name.replace("_", "-"))] >= count for name, count in wanted.items())

        with self.changed:
            assert self.changed.wait_for(there, DEADLINE), (wanted, self.counts)


class Setting:
    """A recorder at an API server."""

    def __init__(
        self,
        api: ApiServer,
        limits: Limits = GENEROUS,
        uid_of: Callable[[Notice], str] = lambda _: "1",
        chance: float = 0.0,
    ) -> None:
        self.api = api
        self.outcomes = Outcomes()
        timing = Timing(chance=lambda: chance)
        self.recorder = Recorder(connect("", api.url), "node1", uid_of, self.outcomes, limits, timing)

    def written(self) -> list[str]:
        """The notes of the Events that there are."""
        return [each["note"] for each in self.api.events.events.values()]

    def counts(self) -> list[int]:
        """How often each Event was said."""
        return [each.get("series", {"count": 1})["count"] for each in self.api.events.events.values()]

    def started(self) -> Setting:
        self.recorder.start()
        return self


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def setting(api: ApiServer) -> Iterator[Setting]:
    made = Setting(api).started()
    yield made
    made.recorder.stop()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(backoff, "CAP_SECONDS", 0.02)


class TestWhatIsWritten:
    def test_findings_that_are_new_and_no_others(self, api: ApiServer) -> None:
        setting = Setting(api)
        for standing in ([1], [1, 2], [1, 2], [2]):
            setting.recorder.found([finding(number) for number in standing])
        setting.started()
        setting.outcomes.until(created=2)
        assert setting.written() == ["port 1", "port 2"]
        setting.recorder.found([finding(1), finding(2)])
        setting.outcomes.until(counted=1)
        setting.recorder.stop()
        assert setting.counts() == [2, 1], "the first came up twice, the second is still standing"

    def test_what_comes_back_is_counted_in_the_same_event(self, setting: Setting) -> None:
        for times in range(1, 4):
            setting.recorder.found([finding()])
            setting.outcomes.until(created=1, counted=times - 1)
            setting.recorder.found([])
        assert setting.counts() == [3]
        [event] = setting.api.events.events.values()
        assert event["series"]["lastObservedTime"] > event["eventTime"]

    def test_what_is_said_again_while_it_waits_is_one_request(self, api: ApiServer) -> None:
        setting = Setting(api)
        for _ in range(5):
            setting.recorder.say(of_node())
        setting.started()
        setting.outcomes.until(created=1)
        setting.recorder.say(of_node())
        setting.outcomes.until(counted=1)
        setting.recorder.stop()
        assert setting.counts() == [6]
        assert [each.kind for each in api.requests] == ["post", "patch"]

    def test_what_is_said_again_while_it_is_being_created_is_counted(self, setting: Setting) -> None:
        def slow(exchange: fake.Exchange) -> None:
            setting.recorder.say(of_node())
            exchange.serve()

        setting.api.fail(slow, kind="post")
        setting.recorder.say(of_node())
        setting.outcomes.until(created=1, counted=1)
        assert setting.counts() == [2]

    def test_what_another_node_has_said_is_known_and_never_asked_about_again(self, api: ApiServer) -> None:
        others, ours = Setting(api).started(), Setting(api, GENEROUS._replace(burst=1, every=NEVER_AGAIN)).started()
        others.recorder.say(notice())
        others.outcomes.until(created=1)
        for times in range(1, 4):
            ours.recorder.say(notice())
            ours.outcomes.until(known=times)
        assert api.count("post") == 2
        assert api.count("patch") == 0
        others.recorder.stop()
        ours.recorder.stop()

    def test_an_event_whose_time_is_over_is_created_anew(self, setting: Setting) -> None:
        setting.recorder.say(of_node())
        setting.outcomes.until(created=1)
        setting.api.events.expire()
        setting.recorder.say(of_node())
        setting.outcomes.until(created=2)
        assert setting.counts() == [1]

    def test_the_uid_is_that_of_the_service_as_it_is_known(self, api: ApiServer) -> None:
        key = ServiceKey("shop", "web")
        store = build.store(Service(key, uid="a-b-c"))
        of = uids(store)
        assert [of(notice()), of(notice(name="unknown")), of(of_node())] == ["a-b-c", "", "node1"]
        setting = Setting(api, uid_of=of).started()
        setting.recorder.say(notice())
        setting.outcomes.until(created=1)
        setting.recorder.stop()
        [event] = api.events.events.values()
        assert event["regarding"]["uid"] == "a-b-c"


class TestBounds:
    def test_no_more_requests_than_the_bucket_has(self, api: ApiServer) -> None:
        setting = Setting(api, GENEROUS._replace(burst=3, every=NEVER_AGAIN)).started()
        setting.recorder.found([finding(number) for number in range(10)])
        setting.outcomes.until(created=3)
        setting.recorder.stop()
        assert len(api.requests) == 3

    def test_the_bucket_fills_up_again(self, api: ApiServer) -> None:
        setting = Setting(api, GENEROUS._replace(burst=1, every=0.02)).started()
        setting.recorder.found([finding(number) for number in range(10)])
        setting.outcomes.until(created=10)
        setting.recorder.stop()

    def test_one_object_cannot_use_up_what_all_share(self, api: ApiServer) -> None:
        limits = Limits(burst=10, every=NEVER_AGAIN, object_burst=4, object_every=NEVER_AGAIN, spread=0.0)
        setting = Setting(api, limits).started()
        setting.recorder.found([finding(number) for number in range(50)])
        setting.recorder.say(notice(1, "other"))
        setting.outcomes.until(created=5, dropped=46)
        setting.recorder.stop()
        assert len(api.requests) == 5

    def test_thousands_at_once_make_a_bounded_number_of_requests_and_of_things_that_wait(self, api: ApiServer) -> None:
        """With the limits that proxyd has."""
        setting = Setting(api, Limits(spread=0.0)).started()
        found = [finding(number, f"web-{number % 500}") for number in range(5000)]
        setting.recorder.found(found)
        setting.outcomes.until(created=Limits().burst)
        setting.recorder.stop()
        assert len(api.requests) == Limits().burst
        counts = setting.outcomes.counts
        assert counts[Outcome.CREATED] + counts[Outcome.DROPPED] >= len(found) - QUEUE_AT_MOST

    def test_of_too_many_the_oldest_go_but_what_is_about_this_node_stays(self, api: ApiServer) -> None:
        setting = Setting(api)
        setting.recorder.say(of_node())
        for number in range(QUEUE_AT_MOST + 10):
            setting.recorder.say(notice(number))
        assert setting.outcomes.counts == {Outcome.DROPPED: 11}
        setting.started()
        setting.outcomes.until(created=QUEUE_AT_MOST)
        setting.recorder.stop()
        assert setting.written() == ["taken", *(f"port {number}" for number in range(11, QUEUE_AT_MOST + 10))]

    def test_only_what_all_nodes_say_is_held_back_for_a_while(self, api: ApiServer) -> None:
        setting = Setting(api, GENEROUS._replace(spread=NEVER_AGAIN), chance=0.5).started()
        setting.recorder.say(notice())
        setting.recorder.say(of_node())
        setting.outcomes.until(created=1)
        setting.recorder.stop()
        assert setting.written() == ["taken"]

    def test_what_is_remembered_is_bounded(self, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorder_module, "REMEMBERED_AT_MOST", 5)
        setting = Setting(api).started()
        for number in range(20):
            setting.recorder.say(notice(number, f"web-{number}"))
        setting.outcomes.until(created=20)
        setting.recorder.stop()
        assert len(setting.recorder._told) == len(setting.recorder._objects) == 5


def troubles(logged: list[structlog.typing.EventDict]) -> list[str]:
    return [each["event"] for each in logged if each["log_level"] != "debug" and "Event" in each["event"]]


class TestTrouble:
    @pytest.mark.parametrize("code", [403, 404, 429, 500, 503])
    def test_what_fails_is_tried_again_and_logged_once(self, setting: Setting, code: int) -> None:
        setting.api.fail(fake.status(code), times=TRIES - 1)
        with structlog.testing.capture_logs() as logged:
            setting.recorder.say(of_node())
            setting.outcomes.until(created=1)
            setting.recorder.stop()
        assert setting.written() == ["taken"]
        assert troubles(logged) == ["Events cannot be written, will be tried again", "Events are written again"]

    @pytest.mark.parametrize("code", [403, 404])
    def test_what_is_refused_again_and_again_is_given_up_and_others_have_their_turn(
        self, setting: Setting, code: int
    ) -> None:
        setting.api.fail(fake.status(code), times=TRIES)
        setting.recorder.say(of_node())
        setting.outcomes.until(given_up=1)
        setting.recorder.say(notice())
        setting.outcomes.until(created=1)
        assert setting.api.count("post") == TRIES + 1

    @pytest.mark.parametrize("code", [400, 422])
    def test_what_the_server_finds_wrong_is_not_tried_again(self, setting: Setting, code: int) -> None:
        setting.api.fail(fake.status(code))
        setting.recorder.say(of_node())
        setting.outcomes.until(given_up=1)
        assert setting.api.count("post") == 1

    def test_a_server_that_is_in_trouble_for_long_gets_all_of_it_in_the_end(self, setting: Setting) -> None:
        setting.api.fail(fake.status(503), times=3 * TRIES)
        setting.recorder.say(of_node())
        setting.recorder.say(notice())
        setting.outcomes.until(created=2)

    def test_while_it_fails_the_rate_is_bounded(self, api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backoff, "FIRST_SECONDS", NEVER_AGAIN)
        monkeypatch.setattr(backoff, "CAP_SECONDS", NEVER_AGAIN)
        setting = Setting(api).started()
        api.fail(fake.status(500), times=100)
        with structlog.testing.capture_logs():
            for number in range(50):
                setting.recorder.say(notice(number))
            with api.changed:
                assert api.changed.wait_for(lambda: api.requests, DEADLINE)
                assert not api.changed.wait_for(lambda: len(api.requests) > 1, 0.5)
        setting.recorder.stop()

    def test_no_server_at_all(self) -> None:
        with ApiServer() as gone:
            setting = Setting(gone)
        setting.started()
        with structlog.testing.capture_logs() as logged:
            setting.recorder.say(of_node())
            while not logged:
                time.sleep(0.005)
            started = time.monotonic()
            setting.recorder.stop()
        assert time.monotonic() - started < 5
        assert troubles(logged) == ["Events cannot be written, will be tried again"]

    def test_a_conflict_while_counting_is_tried_again(self, setting: Setting) -> None:
        setting.recorder.say(of_node())
        setting.outcomes.until(created=1)
        setting.api.fail(fake.status(409), kind="patch")
        setting.recorder.say(of_node())
        setting.outcomes.until(counted=1)
        assert setting.counts() == [2]

    def test_whoever_says_something_never_waits_for_the_server(self, setting: Setting) -> None:
        go_on = threading.Event()

        def hang(exchange: fake.Exchange) -> None:
            go_on.wait(DEADLINE)
            exchange.serve()

        setting.api.fail(hang)
        setting.recorder.say(of_node())
        with setting.api.changed:
            assert setting.api.changed.wait_for(lambda: setting.api.requests, DEADLINE)
        setting.recorder.found([finding(number) for number in range(20)])
        assert setting.outcomes.counts == {}
        go_on.set()
        setting.outcomes.until(created=21)

    def test_a_fault_of_our_own_costs_one_event(self, api: ApiServer) -> None:
        faults = iter([True, False])

        def uid_of(_: Notice) -> str:
            if next(faults):
                raise RuntimeError("a fault")
            return "1"

        setting = Setting(api, uid_of=uid_of).started()
        with structlog.testing.capture_logs():
            setting.recorder.say(of_node("one"))
            setting.recorder.say(of_node("two"))
            setting.outcomes.until(given_up=1, created=1)
        setting.recorder.stop()
        assert setting.written() == ["two"]


class TestStop:
    def test_what_is_about_this_node_gets_out_although_its_turn_has_not_come(self, api: ApiServer) -> None:
        setting = Setting(api, GENEROUS._replace(burst=1, every=NEVER_AGAIN))
        for number in range(3):
            setting.recorder.say(of_node(f"problem {number}"))
        setting.recorder.say(notice())
        setting.started()
        setting.recorder.stop(DEADLINE)
        assert setting.written() == [f"problem {number}" for number in range(3)]

    def test_a_recorder_that_was_never_started(self, api: ApiServer) -> None:
        Setting(api).recorder.stop()
        assert json.dumps(api.requests) == "[]"
