"""What of the host's changes reaches the sync thread, and what it makes of them."""

from __future__ import annotations

from typing import Any

from proxyd.desired.settings import NodePolicy
from proxyd.kube.store import Store
from proxyd.model import Family, Node
from proxyd.sync.facts import NodeFacts
from tests import build
from tests.fakes.host import FakeHost

V4, V6 = Family.IPV4, Family.IPV6


class Facts:
    """Facts that follow a host in memory."""

    def __init__(self, **policy: Any) -> None:
        self.host = FakeHost()
        self.host.add(FakeHost.A, "192.0.2.11", "2001:db8:2::11")
        self.host.default(FakeHost.A, V4)
        self.host.default(FakeHost.A, V6)
        self.calls = 0
        self.facts = NodeFacts(NodePolicy(build.NODE, **policy), self.host.read(), self._changed)
        self.host.start(self.facts.take)

    def _changed(self) -> None:
        self.calls += 1

    def takes_node_ports(self, family: Family = V4, node: Node | None = None) -> tuple[str, ...] | None:
        return self.facts.settings(family, node).node_port_addresses


def test_an_address_in_a_range_takes_node_ports_as_long_as_it_is_there() -> None:
    facts = Facts(node_port_addresses=("10.0.0.0/8",))
    assert facts.takes_node_ports(node=build.node()) == ()
    facts.host.add(FakeHost.B, "10.0.0.100")
    assert facts.calls == 1
    assert facts.takes_node_ports(node=build.node()) == ("10.0.0.100",)
    facts.host.delete(FakeHost.B, "10.0.0.100")
    assert facts.calls == 2
    assert facts.takes_node_ports(node=build.node()) == ()


def test_without_a_node_the_default_routes_address_is_the_primary_one_and_followed() -> None:
    facts = Facts()
    assert (facts.takes_node_ports(V4), facts.takes_node_ports(V6)) == (("192.0.2.11",), ("2001:db8:2::11",))
    facts.host.add(FakeHost.B, "198.51.100.1")
    assert facts.calls == 0
    facts.host.default(FakeHost.B)
    assert facts.calls == 1
    assert facts.takes_node_ports(V4) == ("198.51.100.1",)


def test_a_family_whose_addresses_go_takes_no_node_ports_until_they_come_back() -> None:
    facts = Facts()
    facts.host.switch_ipv6(on=False)
    assert (facts.takes_node_ports(V4), facts.takes_node_ports(V6)) == (("192.0.2.11",), ())
    facts.host.switch_ipv6(on=True)
    facts.host.add(FakeHost.A, "2001:db8:2::11")
    assert facts.takes_node_ports(V6) == ("2001:db8:2::11",)


def test_what_pods_bring_and_take_wakes_nobody() -> None:
    facts = Facts(node_port_addresses=("primary", "192.0.2.0/24"))
    for n in range(100):
        facts.host.add(FakeHost.B, f"10.244.1.{n + 1}")
    facts.host.remove(FakeHost.B)
    assert facts.calls == 0


def test_the_node_object_decides_where_it_says_something() -> None:
    facts = Facts()
    assert facts.takes_node_ports(node=build.node(addresses=("192.0.2.77",))) == ("192.0.2.77",)
    assert facts.takes_node_ports(node=build.node(addresses=("192.0.2.78",))) == ("192.0.2.78",)
    assert facts.facts.settings(V4, build.node(zone="zb")).zone == "zb"


def test_without_a_change_nothing_is_worked_out_again() -> None:
    facts = Facts(node_port_addresses=("192.0.2.0/24",))
    node = build.node()
    first = facts.facts.settings(V4, node)
    assert facts.facts.settings(V4, build.node()) is first
    facts.host.add(FakeHost.B, "192.0.2.12")
    assert facts.facts.settings(V4, node) is not first


def test_the_sync_thread_is_woken_by_way_of_the_store() -> None:
    store: Store = build.store()
    store.take()
    facts = NodeFacts(NodePolicy(build.NODE), FakeHost().read(), store.host_changed)
    host = FakeHost()
    host.start(facts.take)
    assert not store.wait(0)
    host.add(FakeHost.A, "192.0.2.11")
    assert store.wait(0)
    assert store.take().node
