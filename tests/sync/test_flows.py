"""Which frontends are handed over for a look at their flows, and when: after the rules, and never a second time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.desired.flows import Live, Place
from proxyd.model import EndpointSlice, Family, Service, SlicePort
from proxyd.sync import cleaner
from proxyd.sync.cleaner import FlowCleaner
from proxyd.sync.flows import FlowTracker
from proxyd.sync.nft import full
from proxyd.sync.order import StoppedError
from tests import build
from tests.fakes.flows import FakeFlowTable, Flow
from tests.sync.test_cleaner import Recorder
from tests.world import World

V4 = Family.IPV4
DNS = SlicePort("dns", "udp", 5353)
EXTERNAL = "203.0.113.10"
NODE_IP = build.NODE_IP[V4]


def dns(name: str = "dns", number: int = 1, *, node_port: int = 0, **fields: object) -> Service:
    fields.setdefault("ports", (build.port(53, "dns", "udp", node_port),))
    return build.service(name, ip=f"10.96.0.{number}", **fields)


def endpoints(name: str = "dns", *addresses: str, **fields: object) -> EndpointSlice:
    return build.endpoint_slice(name, *addresses, ports=(DNS, SlicePort("http", "tcp", 8080)), **fields)


def udp(address: str, port: int = 53) -> FrontendKey:
    return FrontendKey(address, "udp", port)


def live(*addresses: str) -> Live:
    return frozenset(Backend(address, 5353) for address in addresses)


VIP = udp("10.96.0.1")
A, B = "10.244.1.1", "10.244.1.2"


def started(*objects: Service | EndpointSlice) -> World:
    """A world after its first pass, of which nothing is told any more."""
    world = World(*objects)
    world.sync()
    world.cleaned.clear()
    return world


class TestPasses:
    def test_the_first_one_hands_over_all_udp_frontends(self) -> None:
        world = World(dns(node_port=30053), endpoints("dns", A), build.service("web", ip="10.96.0.2"), dns("none", 3))
        world.sync()
        assert world.cleaned == [{VIP: live(A), udp(NODE_IP, 30053): live(A), udp("10.96.0.3"): live()}]

    def test_one_without_a_change_hands_over_nothing(self) -> None:
        world = started(dns(), endpoints("dns", A))
        world.put(dns(created="2026-02-02T00:00:00Z"))
        world.sync()
        assert world.cleaned == []

    def test_an_endpoint_is_replaced(self) -> None:
        world = started(dns(), endpoints("dns", A), dns("other", 2), endpoints("other", A))
        world.put(endpoints("dns", B))
        world.sync()
        assert world.cleaned == [{VIP: live(B)}]

    def test_the_last_endpoint_goes(self) -> None:
        world = started(dns(), endpoints("dns", A))
        world.remove(endpoints("dns", A))
        world.sync()
        assert world.cleaned == [{VIP: live()}]

    def test_an_endpoint_that_terminates_and_serves_changes_nothing(self) -> None:
        world = started(dns(), endpoints("dns", A, B))
        world.put(endpoints("dns", build.endpoint(A, **build.SERVING_TERMINATING), B))
        world.sync()
        assert world.cleaned == []

    def test_tcp_is_of_no_concern(self) -> None:
        world = started(build.service(), endpoints("web", A))
        world.put(endpoints("web", B))
        world.sync()
        world.remove(build.service())
        world.sync()
        assert world.cleaned == []

    def test_an_external_ip_goes(self) -> None:
        world = started(dns(external_ips=(EXTERNAL,)), endpoints("dns", A))
        world.put(dns())
        world.sync()
        assert world.cleaned == [{udp(EXTERNAL): live()}]
        world.put(endpoints("dns", B))
        world.sync()
        assert world.cleaned[1:] == [{VIP: live(B)}]

    def test_a_port_turns_from_udp_to_tcp(self) -> None:
        world = started(dns(), endpoints("dns", A))
        world.put(dns(ports=(build.port(53, "http", "tcp"),)))
        world.sync()
        assert world.cleaned == [{VIP: live()}]

    def test_a_service_is_deleted(self) -> None:
        world = started(dns(node_port=30053), endpoints("dns", A))
        world.remove(dns())
        world.sync()
        assert world.cleaned == [{VIP: live(), udp(NODE_IP, 30053): live()}]

    @pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
    def test_a_frontend_moves_to_another_service(self, first: str, second: str) -> None:
        world = started(
            dns(first, 1, external_ips=(EXTERNAL,)), endpoints(first, A), dns(second, 2), endpoints(second, B)
        )
        world.put(dns(first, 1), dns(second, 2, external_ips=(EXTERNAL,)))
        world.sync()
        assert world.cleaned == [{udp(EXTERNAL): live(B)}]

    def test_a_conflict_is_lost_and_won_again(self) -> None:
        older = dns("older", 2, external_ips=(EXTERNAL,), created="2020-01-01T00:00:00Z")
        world = started(dns("newer", 1, external_ips=(EXTERNAL,)), endpoints("newer", A), endpoints("older", B))
        world.put(older)
        world.sync()
        assert world.cleaned.pop()[udp(EXTERNAL)] == live(B)
        world.remove(older)
        world.sync()
        assert world.cleaned == [{udp(EXTERNAL): live(A), udp("10.96.0.2"): live()}]

    def test_node_ports_follow_the_addresses_that_take_them(self) -> None:
        world = started(dns(node_port=30053), endpoints("dns", A))
        world.settings = build.settings(node_port_addresses=("192.0.2.12",))
        world.sync()
        assert world.cleaned == [{udp(NODE_IP, 30053): live(), udp("192.0.2.12", 30053): live(A)}]

    def test_an_address_of_its_own_goes_before_a_node_port(self) -> None:
        """An external IP that is the node's own, on the number of somebody's node port."""
        port = (build.port(30053, "dns", "udp"),)
        mine = dns("mine", 2, external_ips=(NODE_IP,), ports=port)
        world = started(dns(node_port=30053), endpoints("dns", A), mine, endpoints("mine", B))
        world.put(dns())
        world.sync()
        assert world.cleaned == [{udp(NODE_IP, 30053): live(B)}]
        world.put(dns(node_port=30053))
        world.remove(mine)
        world.sync()
        assert world.cleaned[1:] == [{udp(NODE_IP, 30053): live(A), udp("10.96.0.2", 30053): live()}]

    def test_a_node_port_on_every_address_comes_with_the_addresses_that_are_not_its(self) -> None:
        mine = dns("mine", 2, external_ips=(NODE_IP,), ports=(build.port(30053, "dns", "udp"),))
        world = World(dns(node_port=30053), endpoints("dns", A), mine, endpoints("mine", B), node_port_addresses=None)
        world.sync()
        world.cleaned.clear()
        world.put(dns())
        world.sync()
        assert world.cleaned == [
            {udp("", 30053): live(), udp(NODE_IP, 30053): live(B), udp("10.96.0.2", 30053): live(B)}
        ]

    def test_an_address_that_goes_comes_with_the_node_port_that_may_take_it(self) -> None:
        mine = dns("mine", 2, external_ips=(NODE_IP,), ports=(build.port(30053, "dns", "udp"),))
        world = World(dns(node_port=30053), endpoints("dns", A), mine, endpoints("mine", B), node_port_addresses=None)
        world.sync()
        world.cleaned.clear()
        world.put(endpoints("mine"))
        world.sync()
        nobody = {udp("", 30053): live(A), udp(NODE_IP, 30053): live(), udp("10.96.0.2", 30053): live()}
        assert world.cleaned == [nobody]
        world.remove(mine)
        world.sync()
        assert world.cleaned == [nobody, nobody]


class TestTrouble:
    def test_nothing_is_handed_over_before_the_rules_are_in(self) -> None:
        world = started(dns(), endpoints("dns", A))
        world.put(endpoints("dns", B))
        at_commits: list[int] = []
        world.ruleset.watchers.append(lambda: at_commits.append(len(world.cleaned)))
        world.sync()
        assert set(at_commits) == {0}
        assert len(world.cleaned) == 1

    def test_a_pass_that_failed_leaves_it_owed(self) -> None:
        world = started(dns(external_ips=(EXTERNAL,)), endpoints("dns", A))
        world.put(dns(), endpoints("dns", B))
        world.ruleset.refuse_next(9)
        assert not world.try_sync()
        assert world.cleaned == []
        world.ruleset.recover()
        world.sync()
        assert world.cleaned == [{VIP: live(B), udp(EXTERNAL): live()}]

    def test_a_refused_change_is_handed_over_with_the_full_pass_that_follows(self) -> None:
        world = started(dns(), endpoints("dns", A), dns("other", 2))
        world.remove(dns("other", 2))
        world.put(endpoints("dns", B))
        world.ruleset.refuse_next()
        world.sync()
        assert world.cleaned == [{VIP: live(B), udp("10.96.0.2"): live()}]

    def test_rules_that_are_written_anew_put_all_flows_in_doubt(self) -> None:
        """Somebody deleted our table: until it is back, flows begin that nobody translates."""
        world = started(dns(), endpoints("dns", A), build.service("web", ip="10.96.0.2"))
        world.reconciler.forget()
        world.sync()
        assert world.cleaned == [{VIP: live(A)}]

    def test_a_full_pass_knows_who_is_gone_although_nobody_said_so(self) -> None:
        world = started(dns(), endpoints("dns", A))
        world.remove(dns())
        world.store.take()
        world.reconciler.forget()
        world.sync()
        assert world.cleaned == [{VIP: live()}]

    def test_a_service_that_the_kernel_refuses_keeps_its_flows(self) -> None:
        world = started(dns(), endpoints("dns", A))
        world.put(endpoints("dns", B))
        world.ruleset.refuse_if(lambda t: any(each.key.startswith("10.96.0.1 ") for each in t.add_elements))
        world.sync()
        assert world.quarantined() == {build.key("dns")}
        assert world.cleaned == [{VIP: live(A)}]
        world.ruleset.recover()
        world.sync({build.key("dns")})
        assert world.cleaned[1:] == [{VIP: live(B)}]

    def test_a_service_that_cannot_be_worked_out_keeps_its_flows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = started(dns(), endpoints("dns", A))
        world.put(dns(ports=(build.port(None),)))  # type: ignore[arg-type]
        world.sync()
        assert world.cleaned == []

    def test_a_first_start_that_is_stopped_hands_over_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(full, "CHUNK", 1)
        world = World(dns(), endpoints("dns", A), dns("other", 2))
        world.stopped = True
        with pytest.raises(StoppedError):
            world.sync()
        assert world.cleaned == []

    def test_both_may_fail_and_the_flow_is_deleted_in_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Rules are refused once, then the tracker fails once: neither loses what the other still owes."""
        monkeypatch.setattr(cleaner, "RETRY_FIRST", 0.01)
        table, seen = FakeFlowTable(), Recorder()
        cleaning = FlowCleaner(table, seen)
        world = World(dns(), endpoints("dns", A), clean_flows=cleaning.give)
        world.sync()
        stale = Flow(Backend("198.51.100.7", 5353), Backend("10.96.0.1", 53), Backend(A, 5353))
        table.add(V4, stale)
        table.fail_next("busy")
        world.put(endpoints("dns", B))
        world.ruleset.refuse_next(9)
        assert not world.try_sync()
        cleaning.start()
        seen.wait(cleaned=1, failed=1)
        assert table.listed(V4) == {stale}
        table.fail_next("busy")
        world.ruleset.recover()
        world.sync()
        seen.wait(cleaned=2, failed=2)
        cleaning.stop()
        assert table.listed(V4) == set()


class TestTracker:
    P, Q = (Place(udp(address), node_port=False) for address in ("10.96.0.1", "10.96.0.2"))

    def note(self, tracker: FlowTracker, name: str, *where: Place, who: Iterable[str] = (A,)) -> None:
        tracker.note(build.key(name), dict.fromkeys(where, live(*who)))

    def test_changes_are_taken_once(self) -> None:
        tracker = FlowTracker()
        self.note(tracker, "a", self.P)
        assert tracker.take() == {self.P.key: live(A)}
        assert tracker.take() == {}

    def test_only_the_last_state_between_two_takes_matters(self) -> None:
        tracker = FlowTracker()
        for who in (A, B, A):
            self.note(tracker, "a", self.P, who=(who,))
        assert tracker.take() == {self.P.key: live(A)}

    def test_a_place_that_comes_and_goes_is_not_served(self) -> None:
        tracker = FlowTracker()
        self.note(tracker, "a", self.P)
        self.note(tracker, "a")
        assert tracker.take() == {self.P.key: live()}

    def test_the_new_owner_may_be_noted_before_the_old_one_lets_go(self) -> None:
        tracker = FlowTracker()
        self.note(tracker, "old", self.P, self.Q)
        tracker.take()
        self.note(tracker, "new", self.P, who=(B,))
        self.note(tracker, "old", self.Q)
        assert tracker.take() == {self.P.key: live(B)}
        self.note(tracker, "new")
        assert tracker.take() == {self.P.key: live()}

    def test_an_owner_that_never_let_go_takes_back_what_is_free_again(self) -> None:
        tracker = FlowTracker()
        self.note(tracker, "old", self.P)
        self.note(tracker, "new", self.P, who=(B,))
        self.note(tracker, "new")
        self.note(tracker, "old", self.P)
        assert tracker.take() == {self.P.key: live(A)}
        self.note(tracker, "old")
        assert tracker.take() == {self.P.key: live()}
