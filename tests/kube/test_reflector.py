"""The reflector against a real server on loopback that misbehaves: what the store holds, and how often it was asked.

Time is a clock that only moves when the reflector waits, so each fault gives the same requests and delays every time.
"""

from __future__ import annotations

import pytest

from proxyd.kube import client as transport
from proxyd.kube.reflector import Reflector, Timing
from proxyd.kube.resources import ENDPOINT_SLICES, own_node
from proxyd.kube.store import Store
from proxyd.model import Endpoint, ServiceKey
from tests.fakes import apifaults as faults
from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import endpoint_slice, service
from tests.fakes.apiserver import ApiServer
from tests.kube.rig import DEADLINE, Rig, list_and_expire, until


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
        api.fail(faults.status(code, "Invalid"))
        rig.run_synced()
        assert len(rig.names()) == 1102
        assert [request.kind for request in api.requests] == ["watchlist", "list", "page", "page", "watch"]
        assert [request.params.get("limit") for request in api.requests[1:4]] == ["500"] * 3
        state = rig.reflector.state
        assert (state.mode, state.errors, rig.delays) == ("list", {}, [])

    def test_the_server_is_not_asked_for_a_watch_list_again(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.status(422))
        rig.run_synced()
        api.fail(faults.status(410))
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert api.count("watchlist") == 1

    def test_pages_that_expire(self, rig: Rig, api: ApiServer) -> None:
        api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(600)))
        api.fail(faults.status(422))
        api.fail(faults.status(410, "Expired"), kind="page")
        rig.run_synced()
        assert len(rig.names()) == 602
        assert [request.kind for request in api.requests] == ["watchlist", "list", "page", "list", "watch"]
        assert "limit" not in api.requests[3].params

    def test_nothing_is_replaced_by_half_a_list(self, rig: Rig, api: ApiServer) -> None:
        api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(600)))
        api.fail(faults.status(422))
        api.fail(faults.status(500), kind="page", times=2)
        assert rig.after_waits(2) == [0.8, 1.6]
        assert not rig.store.services.synced
        assert rig.names() == []

    def test_a_list_that_is_none(self, rig: Rig, api: ApiServer) -> None:
        api.fail(faults.status(422))
        for body in (b'{"metadata":{"resourceVersion":"1"},"items":[', b'{"metadata":{},"items":null}'):
            api.fail(lambda exchange, body=body: exchange.reply(200, body), kind="list")  # type: ignore[misc]
        rig.run_synced()
        assert rig.delays == [0.8, 1.6]
        assert rig.reflector.state.errors == {"garbled": 2}

    def test_a_stream_that_breaks_in_the_initial_events(self, rig: Rig, api: ApiServer) -> None:
        for fault in (faults.cut_in_line, faults.end_in_line, faults.end_in_initial_events):
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
        api.fail(faults.no_end, kind="watchlist", times=2)
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
    @pytest.mark.parametrize(
        "fault", [faults.status(410, "Expired"), faults.error_event(410), faults.error_event(0, "Gone")]
    )
    def test_only_real_differences_become_dirty(self, rig: Rig, api: ApiServer, fault: faults.Fault) -> None:
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
        api.fail(faults.error_event(410, "Expired"), kind="watch", times=4)
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
        api.fail(faults.status(503), kind="watch", times=4)
        api.fail(faults.error_event(410, "Expired"), kind="watch")
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert rig.delays == [0.8, 1.6, 3.2, 6.4]

    def test_it_serves_the_old_objects_meanwhile(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(faults.status(410), kind="watch")
        api.fail(faults.status(500), kind="watchlist", times=3)
        rig.most_waits = 3
        api.end_watches()
        until(lambda: len(rig.delays) == 3)
        assert rig.names() == ["a", "b"]
        assert rig.store.services.synced

    def test_a_version_that_the_server_keeps_refusing(self, rig: Rig, api: ApiServer) -> None:
        rig.run_synced()
        rig.now += 600.0
        api.fail(faults.error_event(500, "InternalError"), kind="watch", times=2)
        api.fail(faults.status(400, "BadRequest"), kind="watch")
        api.end_watches()
        until(lambda: rig.reflector.state.relists == 1)
        assert [request.kind for request in api.requests] == ["watchlist", "watch", "watch", "watch", "watchlist"]
        assert rig.delays == [0.8, 1.6, 3.2]
