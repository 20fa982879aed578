"""The store: what becomes dirty, what stays known, and who is woken."""

import itertools
import threading
from collections.abc import Callable, Iterable

import pytest

from proxyd.kube.decode import Decoded
from proxyd.kube.store import TIMES_KEPT, Changes, Received, Store
from proxyd.model import (
    Action,
    Cause,
    Endpoint,
    EndpointSlice,
    Event,
    Family,
    Finding,
    Node,
    Origin,
    Reason,
    Service,
    ServiceKey,
)
from tests import build

WEB, API = ServiceKey("shop", "web"), ServiceKey("shop", "api")


def service(key: ServiceKey, ip: str = "10.0.0.1") -> Decoded[Service]:
    return Decoded(key, "1", Service(key, cluster_ips=(ip,)))


def endpoints(
    name: str, of: ServiceKey, addresses: Iterable[str] = (), trigger: float | None = None
) -> Decoded[EndpointSlice]:
    found = tuple(Endpoint(address) for address in addresses)
    value = EndpointSlice(of.namespace, name, of, Family.IPV4, found, trigger=trigger)
    return Decoded((of.namespace, name), "1", value)


def node(zone: str) -> Decoded[Node]:
    return Decoded(("", "n1"), "1", Node("n1", zone=zone))


@pytest.fixture
def store() -> Store:
    """A store that has been listed, empty, with a clock that counts 1, 2, 3."""
    times = itertools.count(1)
    store = Store(lambda: float(next(times)))
    for intake in (store.services, store.slices, store.nodes):
        intake.replace([])
    return store


def test_complete_once_services_and_slices_are_listed() -> None:
    store = Store()
    assert not store.complete
    store.services.replace([])
    assert not store.complete
    store.slices.replace([])
    assert store.complete


def test_a_change_makes_its_service_dirty_once(store: Store) -> None:
    store.services.put(service(WEB))
    store.services.put(service(WEB, "10.0.0.2"))
    assert store.pending() == (1, 1.0)
    changes = store.take()
    assert (changes.services, changes.since, changes.node) == ({WEB}, 1.0, False)
    assert store.take() == Changes(set(), False, {}, None, {})
    assert store.take().since is None
    assert store.pending() == (0, None)


def test_an_equal_object_is_no_change(store: Store) -> None:
    store.services.put(service(WEB))
    store.take()
    store.services.put(Decoded(WEB, "2", Service(WEB, cluster_ips=("10.0.0.1",))))
    assert store.take().since is None
    assert store.services.events == 2


def test_what_a_later_list_brings_counts_like_events() -> None:
    store = Store()
    store.services.replace([service(WEB), service(API)])
    assert store.services.events == 0
    store.services.replace([service(WEB), service(ServiceKey("shop", "third"))])
    assert store.services.events == 2


def test_removal(store: Store) -> None:
    store.services.put(service(WEB))
    store.take()
    store.services.remove(WEB)
    store.services.remove(("shop", "never-there"))
    assert store.take().services == {WEB}
    assert store.service(WEB) == (None, ())
    assert store.keys() == []


def test_an_object_that_is_no_longer_for_us_is_removed(store: Store) -> None:
    store.services.put(service(WEB))
    store.take()
    store.services.put(Decoded(WEB, "2", None))
    assert store.take().services == {WEB}
    assert store.keys() == []
    store.services.put(Decoded(WEB, "3", None))
    assert store.take().since is None
    store.services.put(service(WEB))
    assert store.take().services == {WEB}


def test_replace_makes_only_differences_dirty(store: Store) -> None:
    same, changed, gone, new = (ServiceKey("shop", name) for name in ("same", "changed", "gone", "new"))
    store.services.replace([service(same), service(changed), service(gone)])
    store.take()
    store.services.replace([service(same), service(changed, "10.0.0.9"), service(new)])
    assert store.take().services == {changed, gone, new}
    assert sorted(store.keys()) == sorted([same, changed, new])


def test_slices_of_a_service_come_in_order_of_name(store: Store) -> None:
    for name in ("b", "c", "a"):
        store.slices.put(endpoints(name, WEB))
    store.slices.put(endpoints("x", API))
    store.services.put(service(WEB))
    found, slices = store.service(WEB)
    assert found is not None
    assert [each.name for each in slices] == ["a", "b", "c"]


def test_a_slice_that_moves_makes_both_services_dirty(store: Store) -> None:
    store.slices.put(endpoints("a", WEB, ["192.0.2.1"]))
    store.take()
    store.slices.put(endpoints("a", API, ["192.0.2.1"]))
    assert store.take().services == {WEB, API}
    assert store.service(WEB)[1] == ()
    assert len(store.service(API)[1]) == 1


def test_removing_one_of_two_slices(store: Store) -> None:
    store.slices.put(endpoints("a", WEB))
    store.slices.put(endpoints("b", WEB))
    store.take()
    store.slices.remove(("shop", "a"))
    assert store.take().services == {WEB}
    assert [each.name for each in store.service(WEB)[1]] == ["b"]
    store.slices.remove(("shop", "b"))
    assert store.service(WEB)[1] == ()


def test_triggers_are_kept_bounded_and_taken_once(store: Store) -> None:
    for number in range(TIMES_KEPT + 5):
        store.slices.put(endpoints("a", WEB, trigger=float(number)))
    store.slices.put(endpoints("b", API))
    triggers = store.take().triggers
    assert triggers[Family.IPV4] == [float(number) for number in range(TIMES_KEPT)]
    assert store.take().triggers == {}


def test_when_changes_came_is_kept_by_family_and_cause_bounded_and_taken_once(store: Store) -> None:
    store.services.put(service(WEB))
    store.services.put(service(WEB, "fd00::1"))
    store.slices.put(endpoints("a", WEB))
    store.slices.put(endpoints("a", WEB))
    store.nodes.put(node("z"))
    received = store.take().received
    expected = [Cause.SERVICE, Cause.SERVICE, Cause.ENDPOINTS, Cause.NODE]
    assert [each.cause for each in received[Family.IPV4]] == expected
    assert [each.cause for each in received[Family.IPV6]] == [Cause.SERVICE, Cause.NODE]
    assert store.take().received == {}
    for number in range(TIMES_KEPT + 5):
        store.slices.put(endpoints("a", WEB, [f"10.1.{number // 250}.{number % 250}"]))
    assert len(store.take().received[Family.IPV4]) == TIMES_KEPT


def test_when_the_first_lists_came_says_nothing_about_changes() -> None:
    store = Store(lambda: 5.0)
    store.services.replace([service(WEB)])
    store.slices.replace([])
    assert store.take().received == {}
    store.services.remove(WEB)
    assert store.take().received == {Family.IPV4: [Received(Cause.SERVICE, 5.0)]}


class TestUnreadable:
    REFUSED = Decoded[Service](WEB, "2", None, "spec is a list")
    FINDING = Finding("Service", "shop/web", Reason.UNREADABLE_OBJECT, "spec is a list")

    def test_keeps_the_object_known_before(self, store: Store) -> None:
        store.services.put(service(WEB))
        store.take()
        store.services.put(self.REFUSED)
        assert not store.take().services
        assert store.service(WEB)[0] == service(WEB).value
        assert list(store.unreadable.values()) == [self.FINDING]

    def test_also_in_a_list(self, store: Store) -> None:
        store.services.put(service(WEB))
        store.take()
        store.services.replace([self.REFUSED, service(API)])
        assert store.take().services == {API}
        assert store.service(WEB)[0] == service(WEB).value

    def test_ends_when_it_can_be_read(self, store: Store) -> None:
        store.services.put(self.REFUSED)
        store.services.put(service(WEB))
        assert store.unreadable == {}

    def test_ends_with_the_object(self, store: Store) -> None:
        store.services.put(self.REFUSED)
        store.services.remove(WEB)
        assert store.unreadable == {}

    @pytest.mark.parametrize(
        ("end", "action"),
        [
            (lambda store: store.services.put(service(WEB)), Action.MODIFIED),
            (lambda store: store.services.replace([service(WEB)]), Action.MODIFIED),
            (lambda store: store.services.put(Decoded(WEB, "3", None)), Action.DELETED),
            (lambda store: store.services.remove(WEB), Action.DELETED),
            (lambda store: store.services.replace([]), Action.DELETED),
        ],
        ids=["as before", "as before in a list", "not for us", "deleted", "missing in a list"],
    )
    @pytest.mark.parametrize("known", [True, False])
    def test_its_end_is_an_event_that_somebody_has_to_report(
        self, store: Store, end: Callable[[Store], None], action: Action, known: bool
    ) -> None:
        if known:
            store.services.put(service(WEB))
        store.services.put(self.REFUSED)
        store.take()
        end(store)
        assert store.wait(0)
        if not known and action is Action.MODIFIED:
            action = Action.ADDED
        assert store.take().events == (Event(Origin.SERVICE, "shop/web", action),)
        end(store)
        assert not store.wait(0)

    def test_ends_when_a_list_is_without_it_and_other_kinds_stay(self, store: Store) -> None:
        store.services.put(self.REFUSED)
        store.slices.put(Decoded(("shop", "a"), "1", None, "bad"))
        store.services.replace([])
        assert list(store.unreadable) == [("EndpointSlice", ("shop", "a"))]

    def test_without_a_namespace(self, store: Store) -> None:
        store.nodes.put(Decoded(("", "n1"), "1", None, "bad"))
        assert [finding.object for finding in store.unreadable.values()] == ["n1"]


def test_node(store: Store) -> None:
    assert store.node() is None
    store.nodes.put(node("z1"))
    changes = store.take()
    assert (changes.node, changes.since) == (True, 1.0)
    assert changes.services == set()
    store.nodes.put(node("z1"))  # a heartbeat
    assert store.take().since is None
    store.nodes.put(node("z2"))
    assert store.node() == Node("n1", zone="z2")
    store.services.put(service(WEB))
    assert store.take().since not in (None, 1.0)
    store.nodes.remove(("", "n1"))
    assert store.node() is None


class TestWait:
    def test_nothing_may_be_written_before_it_is_complete(self) -> None:
        store = Store()
        store.services.replace([service(WEB)])
        assert store.wait(0) is False
        store.slices.replace([])
        assert store.wait(0) is True

    def test_gives_up_after_the_timeout(self, store: Store) -> None:
        assert store.wait(0) is False

    def test_wake_wakes_once_without_a_change(self, store: Store) -> None:
        store.wake()
        assert store.wait(None) is False
        assert store.wait(0) is False

    def test_a_change_wakes_the_waiting_thread(self, store: Store) -> None:
        woken: list[bool] = []
        waiting = threading.Thread(target=lambda: woken.append(store.wait(60)))
        waiting.start()
        store.slices.put(endpoints("a", WEB))
        waiting.join(60)
        assert woken == [True]


def test_what_came_before_the_lists_were_complete_is_no_older_than_their_completion() -> None:
    clock = iter((10.0, 70.0))
    store = Store(lambda: next(clock))
    store.services.replace([service(WEB)])
    assert store.pending() == (1, 10.0)
    store.slices.replace([])
    assert store.pending() == (1, 70.0)


def test_node_ports_are_told_with_whose_they_are() -> None:
    ports = (build.port(80, node_port=30080), build.port(53, "dns", "udp", node_port=30080), build.port(81, "none"))
    store = build.store(build.service("web", ports=ports), build.service("plain"))
    assert store.node_ports() == {("tcp", 30080): build.key("web"), ("udp", 30080): build.key("web")}
