"""The reflector against a real server on loopback that misbehaves: what the store holds, and how often it was asked.

Time is a clock that only moves when the reflector waits, so each fault gives the same requests and delays every time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import structlog

from proxyd.kube import client as transport
from proxyd.kube.reflector import Reflector, Timing
from proxyd.kube.resources import ENDPOINT_SLICES, SERVICES, own_node
from proxyd.kube.store import Store
from proxyd.model import Endpoint, Service, ServiceKey
from tests.fakes import apiserver as fake
from tests.fakes.apiserver import ApiServer, endpoint_slice, service

DEADLINE = 30.0


def until(condition: Callable[[], bool], what: object = "") -> None:
    """Waits for a condition; fails after a time that no working machine needs."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"still waiting: {what}"
        time.sleep(0.002)


class Rig:
    """A reflector with everything around it. Its clock stands still but for the reflector's own waits."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.store = Store()
        self.now = 1000.0
        self.delays: list[float] = []
        self.most_waits: int | None = None
        self.held = threading.Event()
        self.reflector: Reflector[Service] = self.make(Timing(clock=lambda: self.now, chance=lambda: 0.0))

    def make(self, timing: Timing) -> Reflector[Service]:
        client = transport.connect("", self.api.url)
        self.reflector = Reflector(client, SERVICES, self.store.services, timing, self.wait)
        return self.reflector

    def wait(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.now += seconds
        if self.most_waits is not None and len(self.delays) >= self.most_waits:
            self.held.wait(DEADLINE)

    def after_waits(self, number: int) -> list[float]:
        """Runs until that many delays were asked for, and stands still there; gives them."""
        self.most_waits = number
        self.reflector.start()
        until(lambda: len(self.delays) >= number, self.reflector)
        return self.delays

    def run_synced(self) -> None:
        self.reflector.start()
        self.until_synced()

    def until_synced(self) -> None:
        until(lambda: self.store.services.synced and self.api.watching > 0, self.reflector)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.store.services.objects.copy())

    def end(self) -> None:
        self.most_waits = None
        self.held.set()
        assert self.reflector.stop(DEADLINE)


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def rig(api: ApiServer) -> Iterator[Rig]:
    rig = Rig(api)
    api.put(fake.SERVICES, service("a", "10.0.0.1"), service("b", "10.0.0.2"))
    yield rig
    rig.end()


class TestFollowing:
    def test_watch_list_then_events_on_the_same_stream(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        assert rig.names() == ["a", "b"]
        rig.store.take()
        api.put(fake.SERVICES, service("c", "10.0.0.3"), service("a", "10.0.0.9"))
        api.delete(fake.SERVICES, "default", "b")
        until(lambda: rig.names() == ["a", "c"])
        assert {key.name for key in rig.store.take().services} == {"a", "b", "c"}
        assert [request.kind for request in api.requests] == ["watchlist"]
        state = rig.reflector.state
        assert (state.connected, state.mode, state.relists, state.errors) == (True, "watchlist", 0, {})
        assert state.last_list == state.last_event == 1000.0

    def test_what_it_asks_for(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        [request] = api.requests
        assert request.params == {
            "watch": "true",
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "300",
            "labelSelector": "!service.kubernetes.io/service-proxy-name",
            "fieldSelector": "spec.clusterIP!=None",
        }

    def test_resumes_at_the_last_version(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        rig.now += 300.0
        api.end_watches()
        until(lambda: api.count("watch") == 1)
        assert api.requests[-1].params["resourceVersion"] == "103"
        assert "sendInitialEvents" not in api.requests[-1].params
        api.put(fake.SERVICES, service("d", "10.0.0.4"))
        until(lambda: rig.names() == ["a", "b", "c", "d"])
        assert (rig.delays, rig.reflector.state.errors) == ([], {})

    def test_a_bookmark_moves_the_version(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        api.bookmark(fake.SERVICES)
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        api.delete(fake.SERVICES, "default", "c")
        api.bookmark(fake.SERVICES)
        api.end_watches()
        until(lambda: api.count("watch") == 1)
        assert api.requests[-1].params["resourceVersion"] == "106"

    def test_a_label_that_excludes_it_is_a_deletion(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        other = service("a", "10.0.0.1")
        other["metadata"]["labels"] = {"service.kubernetes.io/service-proxy-name": "other"}
        api.put(fake.SERVICES, other)
        until(lambda: rig.names() == ["b"])
        api.put(fake.SERVICES, service("a", "10.0.0.1"))
        until(lambda: rig.names() == ["a", "b"])

    def test_slices_and_the_own_node(self, api: ApiServer) -> None:
        store, client = Store(), transport.connect("", api.url)
        api.put(fake.SLICES, endpoint_slice("s", "a", ["192.0.2.1", "192.0.2.2"]))
        headless = endpoint_slice("h", "b", ["192.0.2.3"])
        headless["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
        api.put(fake.SLICES, headless)
        api.put(fake.NODES, {"metadata": {"name": "n1"}}, {"metadata": {"name": "n2"}})
        slices = Reflector(client, ENDPOINT_SLICES, store.slices)
        nodes = Reflector(client, own_node("n2"), store.nodes)
        slices.start()
        nodes.start()
        try:
            until(lambda: store.slices.synced and store.nodes.synced)
            [found] = store.service(ServiceKey("default", "a"))[1]
            assert found.endpoints == (Endpoint("192.0.2.1"), Endpoint("192.0.2.2"))
            assert list(store.slices.objects) == [("default", "s")]
            assert list(store.nodes.objects) == [("", "n2")]
        finally:
            assert slices.stop(DEADLINE)
            assert nodes.stop(DEADLINE)

    def test_nothing_there_is_a_list_too(self, api: ApiServer) -> None:
        rig = Rig(api)
        rig.run_synced()
        assert rig.names() == []
        rig.end()

    def test_lines_in_many_pieces_and_several_in_one(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        large = service("c", "10.0.0.3")
        large["metadata"]["annotations"] = {"padding": "x" * 300_000}
        api.put(fake.SERVICES, large, service("d", "10.0.0.4"), large)
        until(lambda: rig.names() == ["a", "b", "c", "d"])


class TestListing:
    @pytest.mark.parametrize("code", [400, 422])
    def test_pages_where_there_is_no_watch_list(self, rig: Rig, api: ApiServer, code: int) -> None:
        api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(1100)))
        api.fail(fake.status(code, "Invalid"))
        rig.run_synced()
        assert len(rig.names()) == 1102
        assert [request.kind for request in api.requests] == ["watchlist", "list", "page", "page", "watch"]
        assert [request.params.get("limit") for request in api.requests[1:4]] == ["500"] * 3
        state = rig.reflector.state
        assert (state.mode, state.errors, rig.delays) == ("list", {}, [])

    def test_the_server_is_not_asked_for_a_watch_list_again(self, rig: Rig, api: ApiServer) -> None:
        api.fail(fake.status(422))
        rig.run_synced()
        api.fail(fake.status(410))
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert api.count("watchlist") == 1

    def test_pages_that_expire(self, rig: Rig, api: ApiServer) -> None:
        api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(600)))
        api.fail(fake.status(422))
        api.fail(fake.status(410, "Expired"), kind="page")
        rig.run_synced()
        assert len(rig.names()) == 602
        assert [request.kind for request in api.requests] == ["watchlist", "list", "page", "list", "watch"]
        assert "limit" not in api.requests[3].params

    def test_nothing_is_replaced_by_half_a_list(self, rig: Rig, api: ApiServer) -> None:
        api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(600)))
        api.fail(fake.status(422))
        api.fail(fake.status(500), kind="page", times=2)
        assert rig.after_waits(2) == [0.8, 1.6]
        assert not rig.store.services.synced
        assert rig.names() == []

    def test_a_list_that_is_none(self, rig: Rig, api: ApiServer) -> None:
        api.fail(fake.status(422))
        for body in (b'{"metadata":{"resourceVersion":"1"},"items":[', b'{"metadata":{},"items":null}'):
            api.fail(lambda exchange, body=body: exchange.reply(200, body), kind="list")  # type: ignore[misc]
        rig.run_synced()
        assert rig.delays == [0.8, 1.6]
        assert rig.reflector.state.errors == {"garbled": 2}

    def test_a_stream_that_breaks_in_the_initial_events(self, rig: Rig, api: ApiServer) -> None:
        for fault in (fake.cut_in_line, fake.end_in_line, fake.end_in_initial_events):
            api.fail(fault)
        assert rig.after_waits(3) == [0.8, 1.6, 3.2]
        assert rig.names() == []
        assert not rig.store.services.synced
        rig.held.set()
        rig.until_synced()
        assert rig.names() == ["a", "b"]
        assert rig.reflector.state.errors == {"stream": 2, "initial-events": 1}

    def test_initial_events_that_never_end(self, rig: Rig, api: ApiServer) -> None:
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, initial=0.2))
        api.fail(fake.no_end, kind="watchlist", times=2)
        rig.run_synced()
        assert [request.kind for request in api.requests] == ["watchlist", "list", "watch"]
        assert rig.reflector.state.mode == "watchlist"
        api.compact()
        api.end_watches()
        until(lambda: rig.reflector.state.mode == "list")
        until(lambda: api.watching == 1)
        assert api.count("watchlist") == 2

    def test_initial_events_that_drip(self, rig: Rig, api: ApiServer) -> None:
        def drip(exchange: fake.Exchange) -> None:
            exchange.begin()
            for event in exchange.added() * 3:
                rig.now += 20.0
                exchange.send(event)
                until(lambda: rig.reflector.state.last_event == rig.now or exchange.gone())
            exchange.hold()

        api.fail(drip)
        rig.run_synced()
        assert [request.kind for request in api.requests] == ["watchlist", "list", "watch"]

    def test_a_deletion_within_the_initial_events(self, rig: Rig, api: ApiServer) -> None:
        def deletes_one(exchange: fake.Exchange) -> None:
            exchange.begin()
            first, *others = exchange.added()
            exchange.send(first, *others, first.replace(b"ADDED", b"DELETED"))
            exchange.send(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"102"}}}\n')
            meta = b'{"resourceVersion":"102","annotations":{"k8s.io/initial-events-end":"true"}}'
            exchange.send(b'{"type":"BOOKMARK","object":{"metadata":%b}}\n' % meta)
            exchange.hold()

        api.fail(deletes_one)
        rig.reflector.start()
        until(lambda: rig.store.services.synced)
        assert rig.names() == ["b"]


class TestRelisting:
    @pytest.mark.parametrize("fault", [fake.status(410, "Expired"), fake.error_event(410), fake.error_event(0, "Gone")])
    def test_only_real_differences_become_dirty(self, rig: Rig, api: ApiServer, fault: fake.Fault) -> None:
        api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(50)))
        rig.run_synced()
        rig.store.take()
        rig.now += 600.0

        def changes_first(exchange: fake.Exchange) -> None:
            api.put(fake.SERVICES, service("a", "10.0.0.9"), service("new", "10.0.0.3"), service("s7", "10.0.1.1"))
            api.delete(fake.SERVICES, "default", "b")
            fault(exchange)

        api.fail(changes_first, kind="watch")
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert {key.name for key in rig.store.take().services} == {"a", "b", "new"}
        assert "b" not in rig.names()
        assert rig.delays == []

    def test_the_first_at_once_the_later_ones_backed_off(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(fake.error_event(410, "Expired"), kind="watch", times=4)
        api.fail(list_and_expire, kind="watchlist", times=3)
        api.end_watches()
        until(lambda: len(rig.delays) >= 3)
        assert rig.delays[:3] == [0.8, 1.6, 3.2]
        assert api.requests[1].kind == "watch"
        assert api.requests[2].kind == "watchlist"

    def test_an_outage_before_it_does_not_delay_it(self, rig: Rig, api: ApiServer) -> None:
        """The usual case: an API server that was restarted no longer knows the version, and it is time to catch up."""
        rig.run_synced()
        rig.now += 600.0
        api.fail(fake.status(503), kind="watch", times=4)
        api.fail(fake.error_event(410, "Expired"), kind="watch")
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert rig.delays == [0.8, 1.6, 3.2, 6.4]

    def test_it_serves_the_old_objects_meanwhile(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(fake.status(410), kind="watch")
        api.fail(fake.status(500), kind="watchlist", times=3)
        rig.most_waits = 3
        api.end_watches()
        until(lambda: len(rig.delays) == 3)
        assert rig.names() == ["a", "b"]
        assert rig.store.services.synced

    def test_a_version_that_the_server_keeps_refusing(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(fake.error_event(500, "InternalError"), kind="watch", times=2)
        api.fail(fake.status(400, "BadRequest"), kind="watch")
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert [request.kind for request in api.requests] == ["watchlist", "watch", "watch", "watch", "watchlist"]
        assert rig.delays == [0.8, 1.6, 3.2]


def list_and_expire(exchange: fake.Exchange) -> None:
    """A WatchList that is complete, and at once expired."""
    version, objects = exchange.api.snapshot(exchange.request)
    exchange.begin()
    exchange.send(*(b'{"type":"ADDED","object":%b}\n' % raw for _, raw in objects))
    annotations = b'{"k8s.io/initial-events-end":"true"}'
    exchange.send(
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d","annotations":%b}}}\n'
        % (version, annotations),
        b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n',
    )
    exchange.end()


class TestFaults:
    """Each fault, for ever: the requests are as few as the delays say."""

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (fake.status(500, "InternalError"), "http-500"),
            (fake.status(503), "http-503"),
            (fake.status(429), "http-429"),
            (fake.status(404, "NotFound"), "http-404"),
            (fake.error_event(500), "error-event"),
            (fake.garbage, "garbled"),
            (fake.raw_lines(b'{"type":"BOOKMARK","object":{"metadata":[]}}\n'), "garbled"),
            (fake.raw_lines(b'{"type":"ERROR","object":17}\n'), "error-event"),
            (fake.raw_lines(b'{"kind":"Status"}\n'), "garbled"),
        ],
    )
    def test_from_the_beginning(self, rig: Rig, api: ApiServer, fault: fake.Fault, reason: str) -> None:
        api.fail(fault, times=100)
        assert rig.after_waits(7) == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0]
        assert api.count() == 7
        assert rig.reflector.state.errors == {reason: 7}
        assert rig.reflector.state.last_error.startswith(f"{reason}: ")
        assert not rig.reflector.state.connected

    @pytest.mark.parametrize(
        ("fault", "reason"),
        [
            (fake.end_at_once, "short"),
            (fake.cut_in_line, "stream"),
            (fake.end_in_line, "stream"),
            (fake.status(500), "http-500"),
        ],
    )
    def test_in_the_watch(self, rig: Rig, api: ApiServer, fault: fake.Fault, reason: str) -> None:
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
        api.fail(fake.status(500), kind="watch", times=3)
        api.end_watches()
        until(lambda: api.count("watch") == 4 and api.watching == 1)
        api.put(fake.SERVICES, service("c", "10.0.0.3"))
        until(lambda: rig.names() == ["a", "b", "c"])
        assert api.count("watchlist") == 1

    def test_retry_after_is_the_least(self, rig: Rig, api: ApiServer) -> None:
        api.fail(fake.status(429, retry_after=7))
        api.fail(fake.status(503, retry_after=1))
        body = b'{"type":"ERROR","object":{"code":429,"details":{"retryAfterSeconds":9}}}\n'
        api.fail(fake.raw_lines(body))
        assert rig.after_waits(3) == [7.0, 1.6, 9.0]

    def test_forbidden_is_asked_ever_more_seldom_and_never_given_up(self, rig: Rig, api: ApiServer) -> None:
        """An API server that has just started forbids everything at first: that must not cost half a minute."""
        api.fail(fake.status(403, "Forbidden"), times=8)
        rig.run_synced()
        assert rig.delays == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
        assert rig.reflector.state.errors == {"http-403": 8}

    def test_unauthorized_is_tried_again_at_once_but_once(self, rig: Rig, api: ApiServer) -> None:
        api.fail(fake.status(401, "Unauthorized"), times=4)
        rig.run_synced()
        assert rig.delays == [0.8, 1.6, 3.2]
        assert api.count() == 5

    def test_nobody_listens(self) -> None:
        with ApiServer() as gone:
            pass
        rig = Rig(gone)
        assert rig.after_waits(4) == [0.8, 1.6, 3.2, 6.4]
        assert rig.reflector.state.errors == {"connect": 4}
        rig.end()

    def test_no_answer_at_all(self, rig: Rig, api: ApiServer) -> None:
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, initial=0.1))
        api.fail(fake.mute, times=2)
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

        api.fail(fake.status(422))
        api.fail(one_bad)
        rig.run_synced()
        assert rig.names() == ["a"]

    def test_refused_and_deleted(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        api.put(fake.SERVICES, service("a", "10.0.0.1", ports=17))
        api.delete(fake.SERVICES, "default", "a")
        until(lambda: rig.names() == ["b"])
        assert rig.store.unreadable == {}


class TestSilence:
    def test_a_silent_watch_ends_after_its_time_and_is_resumed(self, rig: Rig, api: ApiServer) -> None:
        rig.make(Timing(clock=lambda: rig.now, chance=lambda: 0.0, watch=(0.1, 0.2), margin=0.1, short=0.0))
        api.fail(fake.stalled, kind="watch")
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

    @pytest.mark.parametrize("fault", [fake.stalled, fake.no_end])
    def test_out_of_a_stalled_stream(self, rig: Rig, api: ApiServer, fault: fake.Fault) -> None:
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
        api.fail(fake.status(429, retry_after=60), times=100)
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

        api.fail(fake.status(422))
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
