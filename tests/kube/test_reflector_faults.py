"""Faults, objects that cannot be read, silence and the end: what a reflector makes of them, and how often it asks."""

from __future__ import annotations

import pytest
import structlog

from proxyd.kube import client as transport
from proxyd.kube.reflector import Reflector, Timing
from proxyd.kube.resources import SERVICES
from tests.fakes import apifaults as faults
from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import added_line, deep_service, initial_end, service
from tests.fakes.apiserver import ApiServer
from tests.kube.rig import DEADLINE, Rig, until


class TestFaults:
    """Each fault, for ever: the requests are as few as the delays say."""

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (faults.status(500, "InternalError"), "http-500"),
            (faults.status(503), "http-503"),
            (faults.status(429), "http-429"),
            (faults.status(404, "NotFound"), "http-404"),
            (faults.error_event(500), "error-event"),
            (faults.garbage, "garbled"),
            (faults.raw_lines(b'{"type":"BOOKMARK","object":{"metadata":[]}}\n'), "garbled"),
            (faults.raw_lines(b'{"type":"ERROR","object":17}\n'), "error-event"),
            (faults.raw_lines(b'{"kind":"Status"}\n'), "garbled"),
        ],
    )
    def test_from_the_beginning(self, rig: Rig, api: ApiServer, fault: faults.Fault, reason: str) -> None:
        api.fail(fault, times=100)
        assert rig.after_waits(7) == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
        assert api.count() == 7
        assert rig.reflector.state.errors == {reason: 7}
        assert rig.reflector.state.last_error.startswith(f"{reason}: ")
        assert not rig.reflector.state.connected

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (faults.end_at_once, "short"),
            (faults.cut_in_line, "stream"),
            (faults.end_in_line, "stream"),
            (faults.status(500), "http-500"),
        ],
    )
    def test_in_the_watch(self, rig: Rig, api: ApiServer, fault: faults.Fault, reason: str) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(fault, kind="watch", times=100)
        rig.most_waits = 6
        api.end_watches()
        until(lambda: len(rig.delays) == 6)
        assert rig.delays == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6]
        assert (api.count("watch"), api.count("watchlist")) == (6, 1)
        assert rig.reflector.state.errors == {reason: 6}
        assert rig.names() == ["a", "b"]

    def test_it_recovers(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(faults.status(500), kind="watch", times=3)
        api.end_watches()
        until(lambda: api.count("watch") == 4 and api.watching == 1)
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert api.count("watchlist") == 1

    def test_retry_after_is_the_least(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.status(429, retry_after=7))
        api.fail(faults.status(503, retry_after=1))
        body = b'{"type":"ERROR","object":{"code":429,"details":{"retryAfterSeconds":9}}}\n'
        api.fail(faults.raw_lines(body))
        assert rig.after_waits(3) == [7.0, 1.6, 9.0]

    def test_forbidden_is_asked_ever_more_seldom_and_never_given_up(self, rig: Rig, api: ApiServer) -> None:
        """An API server that has just started forbids everything at first: that must not cost half a minute."""
        api.fail(faults.status(403, "Forbidden"), times=8)
        rig.run_synced()
        assert rig.delays == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
        assert rig.reflector.state.errors == {"http-403": 8}

    def test_a_fault_that_lasts_is_said_once_a_minute(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.status(403, "Forbidden"), times=100)
        with structlog.testing.capture_logs() as logs:
            assert sum(rig.after_waits(8)[:7]) == pytest.approx(80.4), "seconds from the first try to the eighth"
        assert [each["event"] for each in logs] == ["forbidden"] * 2

    def test_unauthorized_is_tried_again_at_once_but_once(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.status(401, "Unauthorized"), times=4)
        rig.run_synced()
        assert rig.delays == [0.8, 1.6, 3.2]
        assert api.count() == 5

    def test_unauthorized_within_a_watch_is_tried_ever_more_seldom(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.error_event(401), times=100)
        assert rig.after_waits(4) == [0.8, 1.6, 3.2, 6.4]
        assert rig.reflector.state.errors == {"error-event": 4}

    def test_nobody_listens(self) -> None:
        with ApiServer() as gone:
            pass
        rig = Rig(gone)
        assert rig.after_waits(4) == [0.8, 1.6, 3.2, 6.4]
        assert rig.reflector.state.errors == {"connect": 4}
        rig.end()

    def test_no_answer_at_all(self, rig: Rig, api: ApiServer) -> None:
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, initial=0.1))
        api.fail(faults.mute, times=2)
        rig.run_synced()
        assert rig.delays == [0.8, 1.6]
        assert rig.reflector.state.errors == {"timeout": 2}

    def test_a_fault_of_our_own(self, rig: Rig, api: ApiServer) -> None:
        class BrokenError(Exception):
            pass

        faults = [BrokenError("once"), BrokenError("twice")]

        def decode(raw: object) -> object:
            if faults:
                raise faults.pop()
            return SERVICES.decode(raw)  # type: ignore[arg-type]

        rig.reflector = Reflector(
            transport.connect("", api.url),
            SERVICES._replace(decode=decode),  # type: ignore[arg-type]
            rig.store.services,
            Timing(clock=lambda: rig.now, chance=lambda: 0.0),
            rig.wait,
        )
        rig.run_synced()
        assert rig.delays == [0.8, 1.6]
        assert rig.reflector.state.last_error == "internal: BrokenError: once"


class TestObjects:
    """One object that cannot be read is reported, and all others go on."""

    def test_refused_in_the_watch(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.store.take()
        api.put(fake.SERVICES, service("a", "10.0.0.1", ports=[{"port": "80"}]), service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert {key.name for key in rig.store.take().services} == {"c"}
        assert [finding.object for finding in rig.store.unreadable.values()] == ["default/a"]
        assert (rig.delays, rig.reflector.state.errors, api.count()) == ([], {}, 1)

    def test_refused_in_the_list(self, rig: Rig, api: ApiServer) -> None:
        api.put(fake.SERVICES, service("a", "10.0.0.1", ports=17))
        rig.run_synced()
        assert rig.names() == ["b"]
        assert [finding.object for finding in rig.store.unreadable.values()] == ["default/a"]

    def test_without_a_readable_name(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        api.put_raw(fake.SERVICES, '{"metadata":null}')
        api.put_raw(fake.SERVICES, '{"metadata":{"name":17}}')
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert (rig.delays, api.count()) == ([], 1)
        assert set(rig.reflector.state.errors) == {"undecodable"}

    def test_a_line_that_can_never_be_read_is_passed_by_a_new_list(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.put_raw(fake.SERVICES, '{"metadata":null}')
        api.put_raw(fake.SERVICES, '{"metadata":{"name":"x\\ud800"}}')
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert [request.kind for request in api.requests] == ["watchlist", "watch", "watch", "watchlist"]
        assert rig.delays == [0.8, 1.6, 3.2]

    def test_also_in_the_list(self, rig: Rig, api: ApiServer) -> None:
        def one_bad(exchange: fake.Exchange) -> None:
            good = exchange.api.snapshot(exchange.request)[1][0][1]
            exchange.reply(200, b'{"metadata":{"resourceVersion":"102"},"items":[{"metadata":null},%b]}' % good)

        api.fail(faults.status(422))
        api.fail(one_bad)
        rig.run_synced()
        assert rig.names() == ["a"]

    def test_refused_and_deleted(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        api.put(fake.SERVICES, service("a", "10.0.0.1", ports=17))
        api.delete(fake.SERVICES, "default", "a")
        until(lambda: rig.names() == ["b"])
        assert rig.store.unreadable == {}


class TestDepth:
    """Objects nested deeper than msgspec goes. Go's JSON reader takes 10,000 levels, and nothing that is read lies deep."""

    LEVELS = (1_200, 9_990)

    @pytest.mark.parametrize("levels", LEVELS)
    def test_in_the_watch(self, rig: Rig, api: ApiServer, levels: int) -> None:
        rig.run_synced()
        api.put_raw(fake.SERVICES, deep_service("deep", "10.0.0.9", levels))
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c", "deep"])
        assert (rig.delays, rig.reflector.state.errors, api.count()) == ([], {}, 1)

    @pytest.mark.parametrize("levels", LEVELS)
    def test_in_the_initial_events(self, rig: Rig, api: ApiServer, levels: int) -> None:
        def deep(exchange: fake.Exchange) -> None:
            exchange.begin()
            exchange.send(added_line(deep_service("deep", "10.0.0.9", levels).encode()), *exchange.added())
            exchange.send(initial_end(1000))
            exchange.end()

        api.fail(deep, kind="watchlist")
        rig.run_synced()
        assert rig.names() == ["a", "b", "deep"]

    @pytest.mark.parametrize("levels", LEVELS)
    def test_in_the_list(self, rig: Rig, api: ApiServer, levels: int) -> None:
        def deep(exchange: fake.Exchange) -> None:
            raw = deep_service("deep", "10.0.0.9", levels).encode()
            good = exchange.api.snapshot(exchange.request)[1][0][1]
            exchange.reply(200, b'{"metadata":{"resourceVersion":"102"},"items":[%b,%b]}' % (raw, good))

        api.fail(faults.status(422))
        api.fail(deep)
        rig.run_synced()
        assert rig.names() == ["a", "deep"]

    def test_one_that_is_wrong_too_is_refused_alone(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        api.put_raw(fake.SERVICES, deep_service("deep", "10.0.0.9", 5_000).replace('"port": 80', '"port": "http"'))
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert [finding.object for finding in rig.store.unreadable.values()] == ["default/deep"]

    def test_a_line_that_is_only_deep_is_garbled(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.raw_lines(b"[" * 100_000 + b"\n"))
        rig.run_synced()
        assert set(rig.reflector.state.errors) == {"garbled"}

    def test_an_error_that_is_deep(self, rig: Rig, api: ApiServer) -> None:
        body = b'{"reason":"Busy","details":%b}' % (b'{"a":' * 5_000 + b"1" + b"}" * 5_000)
        api.fail(lambda exchange: exchange.reply(503, body))
        rig.run_synced()
        assert rig.reflector.state.last_error == "http-503: 503 Busy"


class TestSilence:
    def test_a_silent_watch_ends_after_its_time_and_is_resumed(self, rig: Rig, api: ApiServer) -> None:
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, watch=(0.1, 0.2), margin=0.1, short=0.0))
        api.fail(faults.stalled, kind="watch")
        rig.run_synced()
        api.end_watches()
        until(lambda: rig.reflector.state.errors.get("timeout") == 1)
        until(lambda: api.watching == 1)
        assert rig.reflector.state.relists == 0

    def test_regular_bookmarks_shorten_the_silence_allowed(self, rig: Rig, api: ApiServer) -> None:
        # An hour of silence is allowed: only what the bookmarks teach can end the stream within this test.
        idle = 0.3
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, watch=(3600, 3600), idle=idle))

        def two_bookmarks_then_silence(exchange: fake.Exchange) -> None:
            exchange.begin()
            for version in (b"201", b"202"):
                exchange.send(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%b"}}}\n' % version)
            exchange.hold()

        rig.run_synced()
        api.fail(two_bookmarks_then_silence, kind="watch")
        api.end_watches()
        until(lambda: rig.reflector.state.errors.get("timeout") == 1)
        until(lambda: api.count("watch") >= 2)
        assert api.requests[2].params["resourceVersion"] == "202"

    def test_bookmarks_far_apart_teach_nothing(self, rig: Rig, api: ApiServer) -> None:
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, watch=(3600, 3600), idle=0.05))
        rig.run_synced()
        for number in range(3):
            rig.now += 100.0
            api.bookmark(fake.SERVICES)
            until(lambda now=rig.now: rig.reflector.state.last_event == now, number)  # type: ignore[misc]
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert rig.reflector.state.errors == {}
        assert api.count() == 1


class TestStop:
    def test_before_it_was_started(self, rig: Rig) -> None:
        assert rig.reflector.stop()

    @pytest.mark.parametrize("fault", [faults.stalled, faults.no_end])
    def test_out_of_a_stalled_stream(self, rig: Rig, api: ApiServer, fault: faults.Fault) -> None:
        api.fail(fault)
        rig.reflector.start()
        until(lambda: rig.reflector.state.connected)
        assert rig.reflector.stop(DEADLINE)  # the stream itself would last for an hour
        assert rig.delays == []
        assert rig.reflector.state.errors == {}

    def test_out_of_a_quiet_watch(self, rig: Rig) -> None:
        rig.run_synced()
        assert rig.reflector.stop(DEADLINE)
        assert not rig.reflector.state.connected

    def test_out_of_a_busy_stream(self, rig: Rig, api: ApiServer) -> None:
        def busy(exchange: fake.Exchange) -> None:
            exchange.begin()
            events = exchange.added()
            while not exchange.api.stopping:
                exchange.send(*events)

        api.fail(busy)
        rig.reflector.start()
        until(lambda: rig.reflector.state.last_event is not None)
        assert rig.reflector.stop(DEADLINE)

    def test_out_of_a_backoff(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.status(429, retry_after=60), times=100)
        rig.reflector = Reflector(transport.connect("", api.url), SERVICES, rig.store.services)
        rig.reflector.start()
        until(lambda: rig.reflector.state.errors.get("http-429") == 1)
        assert rig.reflector.stop(DEADLINE)  # a minute of waiting is ahead of it
        assert api.count() == 1

    def test_out_of_a_list(self, rig: Rig, api: ApiServer) -> None:
        def half(exchange: fake.Exchange) -> None:
            exchange.begin()
            exchange.send(b'{"metadata":')
            exchange.hold()

        api.fail(faults.status(422))
        api.fail(half, kind="list")
        rig.reflector.start()
        until(lambda: api.count("list") == 1)
        assert rig.reflector.stop(DEADLINE)
        assert api.count() == 2


def test_a_clock_that_differs_is_told_once_and_when_it_is_right_again(
    rig: Rig, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = "the API server's clock differs", "the API server's clock is right again"
    with structlog.testing.capture_logs() as logs, monkeypatch.context() as patch:
        patch.setattr(fake._Handler, "date_time_string", lambda _: "Fri, 01 Jan 2100 00:00:00 GMT")
        rig.run_synced()
        for number in (1, 2):
            rig.now += 300.0
            api.end_watches()
            until(lambda number=number: api.count("watch") == number)  # type: ignore[misc]
        assert rig.reflector.state.clock_offset > 1e9
        patch.undo()
        rig.now += 300.0
        api.end_watches()
        until(lambda: rig.reflector.state.clock_offset < 60.0)
        until(lambda: len(logs) and logs[-1]["event"] == told[1])
    assert [each["event"] for each in logs if each["event"] in told] == list(told)
