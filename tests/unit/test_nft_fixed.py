"""The fixed chains, by what they do to packets: whose source is replaced, who is refused, and what takes node ports."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from proxyd.model import FAMILIES, Family, LocalDetector, ServicePort
from proxyd.nft.fixed import base_chains, generation_chains, invalid_segments, node_port_elements
from proxyd.nft.layout import INVALID_DROPPED, LOCALHOST_REFUSED, TRANSLATED, Layout
from proxyd.nft.objects import Chain, Count, Drop, Element, Field, InSet, Jump, Match
from tests import build
from tests.fakes.packets import Host, Outcome, Packet, distribution
from tests.fakes.ruleset import FakeRuleset
from tests.world import HOST, ORIGINS, World, even

V4, V6 = FAMILIES
EXTERNAL_IP = {V4: "198.51.100.1", V6: "2001:db8:99::1"}
CLUSTER_IP = {V4: "10.96.0.1", V6: "2001:db8:96::1"}
LOCAL_POD = {V4: "10.244.1.1", V6: "fd00:10:244:1::1"}
REMOTE_POD = {V4: "10.244.2.1", V6: "fd00:10:244:2::1"}


def world(family: Family = V4, *, node: dict[str, Any] | None = None, endpoints: Any = None, **fields: Any) -> World:
    """A Service with a cluster IP, an external address and node port 30080, one endpoint on this node and one elsewhere."""
    fields.setdefault("ports", (ServicePort("http", "tcp", 80, 30080),))
    built = build.service(cluster_ips=(CLUSTER_IP[family],), external_ips=(EXTERNAL_IP[family],), **fields)
    if endpoints is None:
        endpoints = (LOCAL_POD[family], build.endpoint(REMOTE_POD[family], node="node2"))
    made = World(built, build.endpoint_slice("web", *endpoints, family=family), family=family, **(node or {}))
    made.sync()
    return made


def masquerades(world_: World, destination: str, port: int = 80) -> dict[str, bool]:
    """From which origins the source is replaced; all of them must get through."""
    found = {}
    for by in ORIGINS[world_.family]:
        outcomes = [outcome for _, outcome in world_.ask(destination, port, by=by)]
        assert {outcome.verdict for outcome in outcomes} == {"accept"}
        # The mark asks for it and is taken away with it, so that nobody after us sees it.
        assert {outcome.mark for outcome in outcomes} == {0}
        (found[by],) = {outcome.masqueraded for outcome in outcomes}
    return found


ALL = {"pod": True, "node": True, "outside": True}
NOT_PODS = {**ALL, "pod": False}
NONE = {"pod": False, "node": False, "outside": False}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({}, NOT_PODS),
        ({"local": LocalDetector(interface="veth9")}, NOT_PODS),
        ({"local": LocalDetector(interface="veth*")}, NOT_PODS),
        ({"local": LocalDetector(interface="cali*")}, ALL),
        ({"local": None}, NONE),
        ({"masquerade_all": True}, ALL),
        ({"masquerade_all": True, "local": None}, ALL),
    ],
    ids=str,
)
def test_cluster_ips_are_masqueraded_by_detector(
    family: Family, node: dict[str, Any], expected: dict[str, bool]
) -> None:
    assert masquerades(world(family, node=node), CLUSTER_IP[family]) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_external_addresses_and_node_ports_are_masqueraded_for_everyone(family: Family) -> None:
    made = world(family)
    assert masquerades(made, EXTERNAL_IP[family]) == ALL
    assert masquerades(made, build.NODE_IP[family], 30080) == ALL


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", ["pod", "node", "outside"])
def test_everyone_gets_each_endpoint_with_the_same_probability(family: Family, by: str) -> None:
    made = world(family)
    for destination, port in ((CLUSTER_IP[family], 80), (EXTERNAL_IP[family], 80), (build.NODE_IP[family], 30080)):
        assert made.reaches(destination, port, by=by) == even(LOCAL_POD[family], REMOTE_POD[family])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frontend", ["address", "node port"])
def test_external_policy_local_keeps_outsiders_and_their_source_here(family: Family, frontend: str) -> None:
    made = world(family, external_local=True)
    to = (EXTERNAL_IP[family], 80) if frontend == "address" else (build.NODE_IP[family], 30080)
    assert made.reaches(*to) == even(LOCAL_POD[family])
    for by in ("pod", "node"):
        assert made.reaches(*to, by=by) == even(LOCAL_POD[family], REMOTE_POD[family])
    assert masquerades(made, *to) == {"pod": False, "node": True, "outside": False}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("frontend", ["address", "node port"])
def test_external_policy_local_without_local_endpoints_drops_outsiders_only(family: Family, frontend: str) -> None:
    made = world(family, external_local=True, endpoints=(build.endpoint(REMOTE_POD[family], node="node2"),))
    to = (EXTERNAL_IP[family], 80) if frontend == "address" else (build.NODE_IP[family], 30080)
    assert made.reaches(*to) == even("drop")
    for by in ("pod", "node"):
        assert made.reaches(*to, by=by) == even(REMOTE_POD[family])


def test_without_a_detector_pods_are_outsiders_to_external_policy_local() -> None:
    made = world(external_local=True, node={"local": None})
    assert made.reaches(EXTERNAL_IP[V4], by="pod") == even(LOCAL_POD[V4])
    assert made.reaches(EXTERNAL_IP[V4], by="node") == even(LOCAL_POD[V4], REMOTE_POD[V4])


@pytest.mark.parametrize("by", ["pod", "node", "outside"])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_any_endpoint_everyone_is_refused_at_once(family: Family, by: str) -> None:
    made = world(family, endpoints=())
    assert made.reaches(CLUSTER_IP[family], by=by) == even("reject")
    assert made.reaches(EXTERNAL_IP[family], by=by) == even("reject")
    assert made.reaches(build.NODE_IP[family], 30080, by=by) == even("reject")


@pytest.mark.parametrize("by", ["pod", "node", "outside"])
def test_internal_policy_local_without_local_endpoints_drops(by: str) -> None:
    made = world(internal_local=True, endpoints=(build.endpoint(REMOTE_POD[V4], node="node2"),))
    assert made.reaches(CLUSTER_IP[V4], by=by) == even("drop")
    assert made.reaches(EXTERNAL_IP[V4], by=by) == even(REMOTE_POD[V4])


@pytest.mark.parametrize("by", ["pod", "node", "outside"])
def test_an_unknown_port_of_a_cluster_ip_is_refused(by: str) -> None:
    made = world()
    assert made.reaches(CLUSTER_IP[V4], 81, by=by) == even("reject")
    assert made.reaches(CLUSTER_IP[V4], 80, by=by, protocol="udp") == even("reject")


def test_an_unknown_port_of_an_external_address_is_left_alone() -> None:
    assert world().reaches(EXTERNAL_IP[V4], 81) == even(EXTERNAL_IP[V4])


def test_other_destinations_are_left_alone() -> None:
    made = world()
    assert made.ask("203.0.113.77") == [(Fraction(1), Outcome("accept", ("203.0.113.77", 80)))]
    assert made.reaches("192.0.2.11", 22) == even("192.0.2.11")


def test_an_endpoint_that_reaches_itself_is_masqueraded_and_reaches_others_as_itself() -> None:
    made = world()
    packet = Packet(LOCAL_POD[V4], CLUSTER_IP[V4], 80, iif="veth1")
    found = {o.destination[0]: o.masqueraded for _, o in distribution(made.ruleset, packet, HOST)}
    assert found == {LOCAL_POD[V4]: True, REMOTE_POD[V4]: False}


def test_who_calls_an_endpoint_directly_is_not_masqueraded() -> None:
    packet = Packet(LOCAL_POD[V4], LOCAL_POD[V4], 8080, iif="veth1")
    assert distribution(world().ruleset, packet, HOST) == [(Fraction(1), Outcome("accept", (LOCAL_POD[V4], 8080)))]


# Node ports


@pytest.mark.parametrize("family", FAMILIES)
def test_node_ports_are_taken_on_the_given_addresses_only(family: Family) -> None:
    other = {V4: "192.0.2.77", V6: "2001:db8:2::77"}[family]
    host = Host(frozenset({build.NODE_IP[family], other}))
    made = world(family)
    assert made.reaches(build.NODE_IP[family], 30080, host=host) == even(LOCAL_POD[family], REMOTE_POD[family])
    assert made.reaches(other, 30080, host=host) == even(other)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("by", ["pod", "node", "outside"])
def test_node_ports_on_all_addresses_mean_those_of_this_node_but_loopback(family: Family, by: str) -> None:
    other, loopback = {V4: ("192.0.2.77", "127.0.0.1"), V6: ("2001:db8:2::77", "::1")}[family]
    foreign = {V4: "203.0.113.5", V6: "2001:db8:77::5"}[family]
    host = Host(frozenset({build.NODE_IP[family], other}))
    made = world(family, node={"node_port_addresses": None})
    assert made.reaches(other, 30080, by=by, host=host) == even(LOCAL_POD[family], REMOTE_POD[family])
    assert made.reaches(foreign, 30080, by=by, host=host) == even(foreign)
    assert made.reaches(loopback, 30080, by="node", host=host) == even(loopback)


@pytest.mark.parametrize("addresses", [None, (build.NODE_IP[V4],)])
def test_node_ports_without_endpoints_are_refused_on_the_same_addresses(addresses: tuple[str, ...] | None) -> None:
    host = Host(frozenset({build.NODE_IP[V4], "192.0.2.77"}))
    made = world(endpoints=(), node={"node_port_addresses": addresses})
    expected = "reject" if addresses is None else "192.0.2.77"
    assert made.reaches(build.NODE_IP[V4], 30080, host=host) == even("reject")
    assert made.reaches("192.0.2.77", 30080, host=host) == even(expected)
    assert made.reaches("127.0.0.1", 30080, by="node", host=host) == even("127.0.0.1")


LOOPBACK = {V4: "127.0.0.1", V6: "::1"}
OTHER_PROTOCOLS = {
    "ports": (
        ServicePort("http", "tcp", 80, 30080),
        ServicePort("dns", "udp", 53, 30053),
        ServicePort("sig", "sctp", 7, 30007),
    )
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("addresses", [None, ()], ids=["all", "none"])
def test_on_localhost_udp_and_sctp_are_refused_and_tcp_is_left_to_whoever_listens(
    family: Family, addresses: Any
) -> None:
    node = {"localhost_node_ports": True, "node_port_addresses": addresses}
    made, to = world(family, node=node, **OTHER_PROTOCOLS), LOOPBACK[family]
    assert made.reaches(to, 30053, by="node", protocol="udp") == even("reject")
    assert made.reaches(to, 30007, by="node", protocol="sctp") == even("reject")
    assert made.reaches(to, 30080, by="node", protocol="tcp") == even(to)
    assert made.reaches(to, 30080, by="node", protocol="udp") == even(to)
    assert made.reaches(to, 53, by="node", protocol="udp") == even(to)
    if addresses == ():
        # Other addresses of the node, which take no node ports, are not meant.
        own = build.NODE_IP[family]
        assert (
            made.reaches(own, 30053, protocol="udp") == made.reaches(own, 30053, by="node", protocol="udp") == even(own)
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_localhost_is_left_alone_where_nobody_asked(family: Family) -> None:
    made, to = world(family, **OTHER_PROTOCOLS), LOOPBACK[family]
    for port, protocol in ((30053, "udp"), (30007, "sctp"), (30080, "tcp")):
        assert made.reaches(to, port, by="node", protocol=protocol) == even(to)
    # Nobody pays for it either.
    refused = Layout(family, 1, 0x4000).name(LOCALHOST_REFUSED)
    chains = generation_chains(Layout(family, 1, 0x4000), build.settings(family))
    assert not [each for chain in chains for rule in chain.rules for each in rule if refused in repr(each)]


def test_the_node_s_address_takes_them_as_ever() -> None:
    made = world(
        node={"localhost_node_ports": True},
        endpoints=(),
        **OTHER_PROTOCOLS,
    )
    assert made.reaches(build.NODE_IP[V4], 30053, protocol="udp") == even("reject")
    assert made.reaches(build.NODE_IP[V4], 30080) == even("reject")


def test_a_node_port_that_changes_its_protocol_is_not_refused_on_localhost_any_more() -> None:
    made = world(node={"localhost_node_ports": True}, **OTHER_PROTOCOLS)
    made.put(build.service(cluster_ips=(CLUSTER_IP[V4],), ports=(ServicePort("dns", "tcp", 53, 30053),)))
    made.sync()
    assert made.reaches("127.0.0.1", 30053, by="node", protocol="udp") == even("127.0.0.1")


def test_node_port_addresses_are_elements() -> None:
    layout = Layout(V4, 1, 0x4000)
    assert node_port_elements(layout, build.settings(node_port_addresses=("192.0.2.1", "192.0.2.2"))) == (
        Element("g1/nodeport-ips", "192.0.2.1"),
        Element("g1/nodeport-ips", "192.0.2.2"),
    )
    assert node_port_elements(layout, build.settings(node_port_addresses=None)) == ()


# Source ranges


def guarded(*ranges: str, **fields: Any) -> World:
    return world(ingress_ips=("198.51.100.9",), source_ranges=ranges, **fields)


def test_source_ranges_guard_load_balancer_addresses_only() -> None:
    made = guarded("203.0.113.0/24")
    both = even(LOCAL_POD[V4], REMOTE_POD[V4])
    assert made.reaches("198.51.100.9") == both
    assert made.reaches("198.51.100.9", by="pod") == even("drop")
    assert made.reaches("198.51.100.9", by="node") == even("drop")
    assert made.reaches(EXTERNAL_IP[V4], by="pod") == both
    assert made.reaches(CLUSTER_IP[V4], by="pod") == both
    assert made.reaches("192.0.2.11", 30080, by="node") == both


def test_the_firewall_comes_before_the_answer_of_who_has_no_endpoint() -> None:
    made = guarded("203.0.113.0/24", endpoints=())
    assert made.reaches("198.51.100.9") == even("reject")
    assert made.reaches("198.51.100.9", by="pod") == even("drop")


def test_ranges_that_are_all_unusable_close_the_address() -> None:
    made = guarded("nonsense")
    for by in ORIGINS[V4]:
        assert made.reaches("198.51.100.9", by=by) == even("drop")


# Affinity


def test_a_new_client_gets_any_endpoint_and_a_pin_for_it() -> None:
    made = world(affinity_seconds=600)
    outcomes = made.ask(CLUSTER_IP[V4], by="pod")
    assert [(p, o.destination[0], len(o.pins)) for p, o in outcomes] == [
        (Fraction(1, 2), LOCAL_POD[V4], 1),
        (Fraction(1, 2), REMOTE_POD[V4], 1),
    ]


@pytest.mark.parametrize("choice", [0, 1])
def test_a_pinned_client_stays_where_it_is_through_every_frontend(choice: int) -> None:
    made = world(affinity_seconds=600)
    _, chosen = made.ask(CLUSTER_IP[V4])[choice]
    host = HOST._replace(pins=frozenset(chosen.pins))
    for destination, port in ((CLUSTER_IP[V4], 80), (EXTERNAL_IP[V4], 80), ("192.0.2.11", 30080)):
        ((probability, outcome),) = made.ask(destination, port, host=host)
        assert (probability, outcome.destination, outcome.pins) == (Fraction(1), chosen.destination, chosen.pins)
    assert made.reaches(CLUSTER_IP[V4], by="pod", host=host) == even(LOCAL_POD[V4], REMOTE_POD[V4])


def test_a_pin_to_an_endpoint_that_is_gone_does_not_matter() -> None:
    made = world(affinity_seconds=600)
    pins = {o.destination[0]: o.pins for _, o in made.ask(CLUSTER_IP[V4])}
    made.put(build.endpoint_slice("web", LOCAL_POD[V4], "10.244.1.7"))
    made.sync()
    host = HOST._replace(pins=frozenset(pins[REMOTE_POD[V4]]))
    assert made.reaches(CLUSTER_IP[V4], host=host) == even(LOCAL_POD[V4], "10.244.1.7")


def test_a_full_affinity_set_costs_the_pin_and_no_connection() -> None:
    made = world(affinity_seconds=600)
    full = HOST._replace(affinity_full=True)
    assert made.reaches(CLUSTER_IP[V4], host=full) == even(LOCAL_POD[V4], REMOTE_POD[V4])
    assert all(o.pins == () for _, o in made.ask(CLUSTER_IP[V4], host=full))


def test_many_endpoints_with_affinity_have_the_same_probability() -> None:
    addresses = [f"10.244.1.{n}" for n in range(1, 101)]
    made = world(affinity_seconds=600, endpoints=addresses)
    assert made.reaches(CLUSTER_IP[V4]) == even(*addresses)


# The switch


def test_base_chains_only_jump_into_their_generation() -> None:
    bases = base_chains(Layout(V4, 7, 0x4000))
    assert all(each.hook is not None for each in bases)
    targets = {rule[-1].chain for each in bases for rule in each.rules}  # type: ignore[union-attr]
    assert all(target.startswith("g7/") for target in targets)


# Invalid segments


@pytest.mark.parametrize("family", FAMILIES)
def test_invalid_segments_are_looked_at_and_translated_connections_noted_unless_conntrack_is_liberal(
    family: Family,
) -> None:
    def chains(drop_invalid: bool) -> dict[str, Chain]:
        layout = Layout(family, 7, 0x4000, drop_invalid)
        return {each.name: each for each in base_chains(layout) + generation_chains(layout, build.settings(family))}

    strict, liberal = chains(True), chains(False)
    assert strict.keys() - liberal.keys() == {"g7/invalid", "g7/note-translated"}
    for name in ("filter-input", "filter-forward", "filter-output"):
        added = [rule for rule in strict[name].rules if rule not in liberal[name].rules]
        assert added == [
            (Match(Field.CT_STATE, "invalid"), Jump("g7/invalid")),
            (Match(Field.CT_STATE, "new"), Jump("g7/note-translated")),
        ]


def test_a_segment_is_dropped_only_if_it_comes_from_or_goes_to_what_was_translated() -> None:
    _, invalid = invalid_segments(Layout(V4, 7, 0x4000))
    drop = (Count(INVALID_DROPPED), Drop())
    assert [rule[1:] for rule in invalid.rules] == [
        (InSet((Field.SADDR, Field.SPORT), TRANSLATED), *drop),
        (InSet((Field.DADDR, Field.DPORT), TRANSLATED), *drop),
    ]
    assert all(rule[0] == Match(Field.L4PROTO, "tcp") for rule in invalid.rules)


def test_two_families_never_meet() -> None:
    made = world(V4)
    six = World(ruleset=made.ruleset, family=V6)
    six.sync()
    assert isinstance(made.ruleset, FakeRuleset)
    assert made.reaches(CLUSTER_IP[V4]) == even(LOCAL_POD[V4], REMOTE_POD[V4])
    assert six.reaches(CLUSTER_IP[V6]) == even(CLUSTER_IP[V6])
