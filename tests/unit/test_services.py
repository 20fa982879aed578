"""Many Services: which must be worked out again, and what follows from a conflict between them."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st

from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Desired
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, Finding, Reason, Service, ServiceKey
from tests.build import NODE_IP, decoded, endpoint_slice, key, port, service, settings, store

V4, V6 = Family.IPV4, Family.IPV6
SHARED = "203.0.113.10"
X, Y, Z = key("x"), key("y"), key("z")
SETTINGS = settings()


def frontends(desired: Desired, name: ServiceKey) -> set[str]:
    forwarding, _ = desired.forwarding(name, SETTINGS)
    return {str(each.key) for p in forwarding.ports for each in p.frontends} if forwarding else set()


def put(built: Store, *services: Service) -> None:
    for each in services:
        built.services.put(decoded(each))


class TestFamilies:
    def test_each_family_has_its_own_half_of_a_service(self) -> None:
        dual = service("x", cluster_ips=("10.96.0.1", "fd00:96::1"))
        built = store(dual, endpoint_slice("x", "10.244.1.1"))
        for family, address in ((V4, "10.96.0.1"), (V6, "fd00:96::1")):
            desired = Desired(family, built.service)
            desired.concerned([X])
            forwarding, findings = desired.forwarding(X, settings(family))
            assert forwarding is not None
            assert (forwarding.family, forwarding.cluster_ip, findings) == (family, address, ())

    def test_a_service_without_a_cluster_ip_of_the_family_is_none_and_keeps_its_findings(self) -> None:
        desired = Desired(V6, store(service("x", external_ips=("bad",))).service)
        assert desired.concerned([X]) == {X}
        message = "spec.externalIPs[0]: 'bad' cannot be a Service address"
        expected = Finding("Service", "default/x", Reason.INVALID_ADDRESS, message)
        assert desired.forwarding(X, settings(V6)) == (None, (expected,))

    def test_a_service_that_is_not_there_is_none(self) -> None:
        desired = Desired(V4, store(endpoint_slice("x", "10.244.1.1")).service)
        assert desired.concerned([X]) == {X}
        assert desired.forwarding(X, SETTINGS) == (None, ())

    def test_findings_of_admission_and_of_endpoints_come_together(self) -> None:
        built = store(service("x", external_ips=("bad",)), endpoint_slice("x", refused=("127.0.0.1",)))
        desired = Desired(V4, built.service)
        desired.concerned([X])
        reasons = [each.reason for each in desired.forwarding(X, SETTINGS)[1]]
        assert reasons == [Reason.INVALID_ADDRESS, Reason.INVALID_ENDPOINT]

    def test_a_service_may_be_asked_for_again_without_being_dirty(self) -> None:
        desired = Desired(V4, store(service("x"), endpoint_slice("x", "10.244.1.1")).service)
        desired.concerned([X])
        assert desired.forwarding(X, SETTINGS) == desired.forwarding(X, SETTINGS)


class TestConflicts:
    OLD, NEW = "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"

    def both(self) -> tuple[Store, Desired]:
        built = store(
            service("x", ip="10.96.0.1", external_ips=(SHARED,), created=self.OLD),
            service("y", ip="10.96.0.2", external_ips=(SHARED,), created=self.NEW),
        )
        desired = Desired(V4, built.service)
        assert desired.concerned(built.take().services) == {X, Y}
        return built, desired

    def test_the_loser_keeps_its_other_frontends_and_is_told(self) -> None:
        _, desired = self.both()
        assert frontends(desired, X) == {"10.96.0.1:80/tcp", f"{SHARED}:80/tcp"}
        assert frontends(desired, Y) == {"10.96.0.2:80/tcp"}
        message = f"{SHARED}:80/tcp is served for default/x instead"
        expected = Finding("Service", "default/y", Reason.FRONTEND_CONFLICT, message)
        assert desired.forwarding(Y, SETTINGS)[1] == (expected,)
        assert desired.forwarding(X, SETTINGS)[1] == ()

    def test_deleting_the_winner_makes_the_loser_take_over_in_the_same_pass(self) -> None:
        built, desired = self.both()
        built.services.remove(("default", "x"))
        assert desired.concerned(built.take().services) == {X, Y}
        assert frontends(desired, Y) == {"10.96.0.2:80/tcp", f"{SHARED}:80/tcp"}
        assert desired.forwarding(Y, SETTINGS)[1] == ()

    def test_the_winner_comes_back(self) -> None:
        built, desired = self.both()
        winner = built.service(X)[0]
        assert winner is not None
        built.services.remove(("default", "x"))
        desired.concerned(built.take().services)
        put(built, winner)
        assert desired.concerned(built.take().services) == {X, Y}
        assert frontends(desired, Y) == {"10.96.0.2:80/tcp"}

    def test_a_winner_that_becomes_unservable_gives_way(self) -> None:
        built, desired = self.both()
        put(built, service("x", ip="not an address", external_ips=(SHARED,), created=self.OLD))
        assert desired.concerned(built.take().services) == {X, Y}
        assert f"{SHARED}:80/tcp" in frontends(desired, Y)

    def test_a_change_without_a_part_in_the_conflict_concerns_nobody_else(self) -> None:
        built, desired = self.both()
        built.slices.put(decoded(endpoint_slice("x", "10.244.1.1")))
        assert desired.concerned(built.take().services) == {X}

    def test_a_cluster_ip_that_an_older_service_has_as_external_ip_stays_with_its_service(self) -> None:
        built, desired = self.both()
        put(built, service("z", ip=SHARED, created=""))
        assert desired.concerned(built.take().services) == {X, Y, Z}
        assert frontends(desired, Z) == {f"{SHARED}:80/tcp"}
        assert frontends(desired, X) == {"10.96.0.1:80/tcp"}

    def test_one_load_balancer_address_with_different_ports_is_shared(self) -> None:
        built = store(
            service("x", ip="10.96.0.1", ingress_ips=(SHARED,), ports=(port(80),)),
            service("y", ip="10.96.0.2", ingress_ips=(SHARED,), ports=(port(443),)),
        )
        desired = Desired(V4, built.service)
        desired.concerned(built.take().services)
        assert f"{SHARED}:80/tcp" in frontends(desired, X)
        assert f"{SHARED}:443/tcp" in frontends(desired, Y)
        assert desired.forwarding(X, SETTINGS)[1] == desired.forwarding(Y, SETTINGS)[1] == ()

    def test_node_ports_move_and_swap_within_one_batch(self) -> None:
        def with_node_port(name: str, number: int) -> Service:
            return service(name, ip=f"10.96.0.{1 + (name == 'y')}", ports=(port(80, node_port=number),))

        built = store(with_node_port("x", 30080), with_node_port("y", 30081))
        desired = Desired(V4, built.service)
        desired.concerned(built.take().services)
        put(built, with_node_port("x", 30081), with_node_port("y", 30080))
        assert desired.concerned(built.take().services) == {X, Y}
        assert "node port 30081/tcp" in frontends(desired, X)
        assert "node port 30080/tcp" in frontends(desired, Y)
        assert desired.forwarding(X, SETTINGS)[1] == desired.forwarding(Y, SETTINGS)[1] == ()

    def test_a_node_port_does_not_conflict_with_addresses(self) -> None:
        built = store(
            service("x", ip="10.96.0.1", ports=(port(80, node_port=30080),)),
            service("y", ip="10.96.0.2", external_ips=(NODE_IP[V4],), ports=(port(30080),)),
        )
        desired = Desired(V4, built.service)
        desired.concerned(built.take().services)
        assert desired.forwarding(X, SETTINGS)[1] == desired.forwarding(Y, SETTINGS)[1] == ()

    def test_a_conflict_in_one_family_leaves_the_other_alone(self) -> None:
        built = store(
            service("x", cluster_ips=("10.96.0.1", "fd00:96::1"), external_ips=(SHARED, "2001:db8::1")),
            service("y", cluster_ips=("10.96.0.2", "fd00:96::2"), external_ips=(SHARED, "2001:db8::2")),
        )
        desired = Desired(V6, built.service)
        desired.concerned(built.take().services)
        assert [each for name in (X, Y) for each in desired.forwarding(name, settings(V6))[1]] == []

    def test_after_forgetting_the_next_changes_are_all_there_is(self) -> None:
        built, desired = self.both()
        desired.forget()
        assert desired.concerned([Y]) == {Y}
        assert f"{SHARED}:80/tcp" in frontends(desired, Y)
        assert built.service(X)[0] is not None


def test_a_service_that_cannot_be_worked_out_harms_no_other() -> None:
    built = store(service("x", external_ips=(SHARED,)), service("y", ip="10.96.0.2", external_ips=(SHARED,)))

    def lookup(name: ServiceKey) -> tuple[Service | None, tuple[EndpointSlice, ...]]:
        if name == X:
            raise RuntimeError("a fault of ours")
        return built.service(name)

    desired = Desired(V4, lookup)
    assert desired.concerned([X, Y]) == {X, Y}
    assert f"{SHARED}:80/tcp" in frontends(desired, Y)
    with pytest.raises(RuntimeError, match="of ours"):
        desired.forwarding(X, SETTINGS)


# -- any history gives what its end alone gives --------------------------------------------------------------------------

IPS = st.sampled_from(["10.96.0.1", "10.96.0.2", "10.96.0.3", "bad"])
SHARED_IPS = st.lists(st.sampled_from([SHARED, "203.0.113.11", "10.96.0.1", "bad"]), max_size=2).map(tuple)
PORTS = st.lists(
    st.builds(port, st.sampled_from([80, 81]), node_port=st.sampled_from([0, 30080, 30081])), max_size=2
).map(tuple)
SERVICES = st.builds(
    service,
    st.sampled_from(["x", "y", "z"]),
    ip=IPS,
    external_ips=SHARED_IPS,
    ingress_ips=SHARED_IPS,
    ports=PORTS,
    created=st.sampled_from(["", "2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z"]),
)
EVENTS = st.lists(st.lists(SERVICES | st.sampled_from(["x", "y", "z"]), max_size=4), max_size=5)
Answer = tuple[Forwarding | None, tuple[Finding, ...]]


def answers(desired: Desired, keys: set[ServiceKey]) -> dict[ServiceKey, Answer]:
    return {name: desired.forwarding(name, SETTINGS) for name in keys}


@patiently(deadline=None)
@given(EVENTS, st.randoms(use_true_random=False))
def test_any_history_gives_what_its_end_alone_gives(history: list[list[Service | str]], random: Random) -> None:
    built = store()
    desired = Desired(V4, built.service)
    known: dict[ServiceKey, Answer] = {}
    for batch in history:
        for event in batch:
            if isinstance(event, str):
                built.services.remove(("default", event))
            else:
                put(built, event)
        known.update(answers(desired, desired.concerned(built.take().services)))
    anew = Desired(V4, built.service)
    keys = built.keys()
    anew.concerned(random.sample(keys, len(keys)))
    assert {name: each for name, each in known.items() if each != (None, ())} == {
        name: each for name, each in answers(anew, set(keys)).items() if each != (None, ())
    }
    taken = [
        str(f.key) for forwarding, _ in known.values() if forwarding for p in forwarding.ports for f in p.frontends
    ]
    assert len(taken) == len(set(taken))


class TestNewSettings:
    SERVICES = store(service("x"), service("y", ip="10.96.0.2", ports=(port(node_port=30001),)))

    def affected(self, **fields: Any) -> list[ServiceKey]:
        return Desired(V4, self.SERVICES.service).affected(settings(), settings(**fields), [X, Y])

    @pytest.mark.parametrize(
        "fields", [{"zone": "zb"}, {"node_ip": "192.0.2.77"}, {"zone": "zb", "local": None}], ids=str
    )
    def test_zone_and_node_address_may_concern_any_service(self, fields: dict[str, Any]) -> None:
        assert self.affected(**fields) == [X, Y]

    @pytest.mark.parametrize("addresses", [("192.0.2.11", "192.0.2.100"), (), None], ids=str)
    def test_addresses_that_take_node_ports_concern_services_with_node_ports(self, addresses: Any) -> None:
        assert self.affected(node_port_addresses=addresses) == [Y]
        assert self.affected(node_port_addresses=addresses, local=None) == [Y]

    def test_what_is_local_concerns_none(self) -> None:
        assert self.affected(local=None) == []

    def test_without_earlier_settings_all_are_concerned(self) -> None:
        assert Desired(V4, self.SERVICES.service).affected(None, settings(), [X, Y]) == [X, Y]
