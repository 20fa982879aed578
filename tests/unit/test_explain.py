"""Every verdict and every reason that there is, each in the mode or modes that have it, and as the rules do it."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import pytest

from proxyd.desired.endpoints import LeftOut
from proxyd.desired.forwarding import Route
from proxyd.explain.answer import Explanation, Source, Verdict
from proxyd.explain.packet import explain_packet
from proxyd.explain.rules import NeedsInterfaceError
from proxyd.model import Endpoint, EndpointSlice, Family, LocalDetector, Reason, SlicePort
from tests import build
from tests.build import endpoint, endpoint_slice, port
from tests.explain_world import is_written, met, packet, told, view_of
from tests.fakes.packets import Packet
from tests.ipt_world import IptWorld
from tests.world import World

V = Verdict
BOTH = (World, IptWorld)
NODE_IP = build.NODE_IP[Family.IPV4]
POD, NODE, OUTSIDE = ("10.244.1.99", "veth9"), (NODE_IP, ""), ("203.0.113.9", "eth0")
HERE, AWAY = endpoint("10.244.1.2"), endpoint("10.244.2.2", "node2")
EXTERNAL, BALANCER = "203.0.113.5", "203.0.113.10"


def web(**fields: Any) -> Any:
    """A Service with every kind of frontend."""
    defaults = {"external_ips": (EXTERNAL,), "ingress_ips": (BALANCER,), "ports": (port(node_port=30080),)}
    return build.service(**{**defaults, **fields})


class Row(NamedTuple):
    """A question and its answer: ``ends`` has the endpoints that can be chosen, ``out`` those that are left out.

    ``says`` is a word of the reason or of a note.
    """

    title: str
    objects: tuple[Any, ...]
    who: tuple[str, str]
    to: str
    verdict: Verdict
    ends: dict[str, Source] = {}  # noqa: RUF012 - never changed
    out: dict[str, LeftOut] = {}  # noqa: RUF012
    says: str = ""
    port: int = 80
    protocol: str = "tcp"
    on: dict[str, Any] = {}  # noqa: RUF012
    modes: tuple[type[World] | type[IptWorld], ...] = BOTH


def pieces(*endpoints: Any, **fields: Any) -> EndpointSlice:
    return endpoint_slice("web", *endpoints, **fields)


NOT_READY, LEAVING = endpoint("10.244.1.3", ready=False), Endpoint("10.244.1.5", False, True, True, build.NODE)
GONE = Endpoint("10.244.1.4", False, False, True, build.NODE)
IN_ZONES = endpoint("10.244.1.2", zone_hints=("za",)), endpoint("10.244.1.3", zone_hints=("zb",))
FOR_NODES = endpoint("10.244.1.2", node_hints=("node1",)), endpoint("10.244.1.3", node_hints=("node2",))
KEPT = {"10.244.1.2": Source.LOCAL_POD}
# Its cluster IP is an endpoint of another Service, and it has none itself.
DNS = build.service("dns", ip="10.96.0.2")
SAME_PORT = (SlicePort("http", "tcp", 80),)
LOCAL = {"external_local": True}
ANY = pieces(HERE, AWAY)
NFT, IPT = (World,), (IptWorld,)
ROWS = [
    # -- delivered, and what becomes of the source
    Row("pod", (web(), ANY), POD, "10.96.0.1", V.DELIVERED, dict.fromkeys(("10.244.1.2", "10.244.2.2"), Source.LOCAL_POD)),
    Row("outside", (web(), pieces(HERE)), OUTSIDE, "10.96.0.1", V.DELIVERED, {"10.244.1.2": Source.NOT_A_LOCAL_POD}),
    Row("all", (web(), pieces(HERE)), POD, "10.96.0.1", V.DELIVERED, {"10.244.1.2": Source.MASQUERADE_ALL},
        on={"masquerade_all": True}),
    Row("no detector", (web(), pieces(HERE)), OUTSIDE, "10.96.0.1", V.DELIVERED, {"10.244.1.2": Source.NO_DETECTOR},
        on={"local": None}),
    Row("external", (web(), pieces(HERE)), POD, EXTERNAL, V.DELIVERED, {"10.244.1.2": Source.EXTERNAL_CLUSTER}),
    Row("itself", (web(), ANY), ("10.244.1.2", "veth2"), "10.96.0.1", V.DELIVERED,
        {"10.244.1.2": Source.HAIRPIN, "10.244.2.2": Source.LOCAL_POD}),
    Row("node, Local", (web(**LOCAL), ANY), NODE, EXTERNAL, V.DELIVERED,
        dict.fromkeys(("10.244.1.2", "10.244.2.2"), Source.NODE_TRAFFIC)),
    Row("pod, Local", (web(**LOCAL), pieces(AWAY)), POD, EXTERNAL, V.DELIVERED, {"10.244.2.2": Source.LOCAL_POD}),
    Row("outside, Local", (web(**LOCAL), ANY), OUTSIDE, EXTERNAL, V.DELIVERED, {"10.244.1.2": Source.EXTERNAL_LOCAL},
        {"10.244.2.2": LeftOut.OTHER_NODE}),
    Row("host network", (web(), pieces(endpoint(NODE_IP))), OUTSIDE, EXTERNAL, V.DELIVERED,
        {NODE_IP: Source.ENDPOINT_HERE}),
    Row("internal Local", (web(internal_local=True), ANY), POD, "10.96.0.1", V.DELIVERED,
        KEPT, {"10.244.2.2": LeftOut.OTHER_NODE}),
    Row("localhost", (web(), pieces(HERE)), ("127.0.0.1", ""), "127.0.0.1", V.DELIVERED, {"10.244.1.2": Source.RELAYED},
        port=30080, on={"localhost_node_ports": True}, modes=NFT),
    Row("localhost", (web(), pieces(HERE)), ("127.0.0.1", ""), "127.0.0.1", V.DELIVERED,
        {"10.244.1.2": Source.EXTERNAL_CLUSTER}, port=30080, modes=IPT),
    # -- endpoints that are left out
    Row("conditions", (web(), pieces(HERE, NOT_READY, GONE, LEAVING)), POD, "10.96.0.1", V.DELIVERED, KEPT,
        {"10.244.1.3": LeftOut.NOT_READY, "10.244.1.4": LeftOut.TERMINATED, "10.244.1.5": LeftOut.TERMINATING}),
    Row("zones", (web(), pieces(*IN_ZONES)), POD,
        "10.96.0.1", V.DELIVERED, KEPT, {"10.244.1.3": LeftOut.ZONE_HINT}),
    Row("nodes", (web(), pieces(*FOR_NODES)), POD,
        "10.96.0.1", V.DELIVERED, KEPT, {"10.244.1.3": LeftOut.NODE_HINT}),
    Row("twice", (web(), pieces(HERE), pieces(endpoint("10.244.1.2", ready=False), name="again")), POD, "10.96.0.1",
        V.DELIVERED, KEPT, {"10.244.1.2": LeftOut.DUPLICATE}),
    Row("other port", (web(), pieces(HERE), pieces(AWAY, name="dns", ports=(SlicePort("dns", "tcp", 53),))), POD,
        "10.96.0.1", V.DELIVERED, KEPT, {"10.244.2.2": LeftOut.OTHER_PORT}),
    Row("no address", (web(), pieces(HERE, refused=("127.0.0.9",))), POD, "10.96.0.1", V.DELIVERED,
        KEPT, {"127.0.0.9": LeftOut.REFUSED}, Reason.INVALID_ENDPOINT),
    # -- refused for want of endpoints
    Row("none", (web(), pieces(endpoint("10.244.1.2", ready=False))), POD, "10.96.0.1", V.REJECTED, {},
        {"10.244.1.2": LeftOut.NOT_READY}, "no endpoint that could be used"),
    Row("none, node port", (web(),), OUTSIDE, NODE_IP, V.REJECTED, says="no endpoint that could be used", port=30080),
    Row("none, node to external", (web(),), NODE, EXTERNAL, V.REJECTED, modes=NFT),
    Row("none, node to external", (web(),), NODE, EXTERNAL, V.UNSERVED, says="do not refuse", modes=IPT),
    Row("internal Local, none here", (web(internal_local=True), pieces(AWAY)), POD, "10.96.0.1", V.DROPPED, {},
        {"10.244.2.2": LeftOut.OTHER_NODE}, "internalTrafficPolicy"),
    Row("external Local, none here", (web(**LOCAL), pieces(AWAY)), OUTSIDE, EXTERNAL, V.DROPPED, {},
        {"10.244.2.2": LeftOut.OTHER_NODE}, "externalTrafficPolicy"),
    Row("localhost, none here", (web(**LOCAL), pieces(AWAY)), ("127.0.0.1", ""), "127.0.0.1", V.REJECTED, {},
        {"10.244.2.2": LeftOut.OTHER_NODE}, "does not listen", port=30080, on={"localhost_node_ports": True}, modes=NFT),
    Row("localhost, UDP", (web(ports=(port(protocol="udp", node_port=30080),)),), ("127.0.0.1", ""), "127.0.0.1",
        V.REJECTED, says="TCP only", port=30080, protocol="udp", on={"localhost_node_ports": True}, modes=NFT),
    # -- refused for other reasons
    Row("ranges", (web(source_ranges=("198.51.100.0/24",)), ANY), OUTSIDE, BALANCER, V.DROPPED,
        says="loadBalancerSourceRanges"),
    Row("ranges, none", (web(source_ranges=("198.51.100.0/24",)),), OUTSIDE, BALANCER, V.DROPPED, modes=NFT),
    Row("ranges, none", (web(source_ranges=("198.51.100.0/24",)),), OUTSIDE, BALANCER, V.REJECTED, modes=IPT),
    Row("ranges unreadable", (web(source_ranges=("nonsense",)), ANY), OUTSIDE, BALANCER, V.DROPPED,
        says=Reason.INVALID_SOURCE_RANGE),
    Row("other port of a cluster IP", (web(), ANY), POD, "10.96.0.1", V.REJECTED, says="no such port", port=81, modes=NFT),
    Row("other port of a cluster IP", (web(), ANY), POD, "10.96.0.1", V.UNSERVED, says="no port 81", port=81, modes=IPT),
    Row("a cluster IP for an endpoint", (web(), DNS, pieces(endpoint("10.96.0.2"), ports=SAME_PORT)), POD,
        "10.96.0.1", V.REJECTED, {"10.96.0.2": Source.LOCAL_POD}, says="refused on the way"),
    Row("and another", (web(), DNS, pieces(HERE, endpoint("10.96.0.2"), ports=SAME_PORT)), POD,
        "10.96.0.1", V.PARTLY, dict.fromkeys(("10.96.0.2", "10.244.1.2"), Source.LOCAL_POD)),
    # -- not served
    Row("external, other port", (web(), ANY), OUTSIDE, EXTERNAL, V.UNSERVED, says="no port 81", port=81),
    Row("node port elsewhere", (web(), ANY), OUTSIDE, NODE_IP, V.UNSERVED, says="node ports are taken on no address",
        port=30080, on={"node_port_addresses": ()}),
    Row("second address", (web(cluster_ips=("10.96.0.1", "10.96.0.9")), ANY), POD, "10.96.0.9", V.UNSERVED,
        says=Reason.INVALID_ADDRESS),
    Row("port twice", (web(ports=(port(), port(name="again"))), pieces(HERE)), POD, "10.96.0.1", V.DELIVERED,
        KEPT, says=Reason.DUPLICATE_PORT),
    Row("port too high", (web(ports=(port(), port(70000, "high"))), pieces(HERE)), POD, "10.96.0.1", V.DELIVERED,
        KEPT, says=Reason.INVALID_PORT),
    Row("affinity too long", (web(affinity_seconds=10**6), pieces(HERE)), POD, "10.96.0.1", V.DELIVERED,
        KEPT, says=Reason.INVALID_AFFINITY),
    Row("conflict", (web(), build.service("late", ip="10.96.0.2", external_ips=(EXTERNAL,), created=""), pieces(HERE)), POD,
        EXTERNAL, V.DELIVERED, {"10.244.1.2": Source.EXTERNAL_CLUSTER}, says="default/late claims 203.0.113.5:80/tcp too"),
    # -- nobody's
    Row("unknown", (web(), ANY), POD, "198.51.100.9", V.UNTOUCHED, says="no Service has the address"),
    Row("unknown port of the node", (web(), ANY), OUTSIDE, NODE_IP, V.UNTOUCHED, says="nor a node port 22/tcp", port=22),
    Row("health check", (web(**LOCAL, health_check_node_port=32001), ANY), OUTSIDE, NODE_IP, V.UNTOUCHED,
        says="proxyd answers there", port=32001),
    Row("node port of another node", (web(), ANY), POD, "192.0.2.99", V.UNTOUCHED, port=30080),
]  # fmt: skip
CASES = [pytest.param(row, mode, id=f"{row.title}-{mode.__name__}") for row in ROWS for mode in row.modes]


def ask(row: Row, mode: type[World] | type[IptWorld]) -> tuple[Explanation, World | IptWorld]:
    world = mode(*row.objects, **row.on)
    world.settle()
    return explain_packet(view_of(world), packet(row.who[0], row.to, row.port, row.protocol, row.who[1])), world


@pytest.mark.parametrize(("row", "mode"), CASES)
def test_the_answer_says_so_and_the_rules_do_it(row: Row, mode: type[World] | type[IptWorld]) -> None:
    answer, world = ask(row, mode)
    assert answer.verdict is row.verdict, answer
    assert {each.address: each.source_why for each in answer.endpoints} == row.ends
    assert {each.address: each.why for each in answer.left_out} == row.out
    assert row.says in "\n".join((answer.reason, *answer.notes))
    assert told(answer) == met(world, Packet(row.who[0], row.to, row.port, row.protocol, row.who[1]))


@pytest.mark.parametrize("mode", BOTH)
def test_the_table_has_every_verdict_and_every_reason(mode: type[World] | type[IptWorld]) -> None:
    answers = [ask(row, mode)[0] for row in ROWS if mode in row.modes]
    only_nft = {Source.RELAYED}
    assert {each.verdict for each in answers} == set(Verdict)
    sources = {end.source_why for each in answers for end in each.endpoints}
    assert sources == set(Source) - (only_nft if mode is IptWorld else set())
    assert {out.why for each in answers for out in each.left_out} == set(LeftOut)
    assert {each.route for each in answers} == {*Route, None}
    said = "\n".join(chain.from_iterable((each.reason, *each.notes) for each in answers))
    # About a kernel that refuses, and faults of ours: below. The others are about the node, or what cannot be read.
    of_services = [each for each in Reason if each.startswith(("invalid", "duplicate", "frontend"))]
    assert [each for each in of_services if each not in said] == []


@pytest.mark.parametrize("mode", BOTH)
def test_a_service_that_the_kernel_refuses_is_not_served(mode: type[World] | type[IptWorld]) -> None:
    world = mode(web(), ANY)
    world.settle()
    view = view_of(world, quarantined=(build.key(),))
    for to, number in (("10.96.0.1", 80), (NODE_IP, 30080)):
        answer = explain_packet(view, packet(OUTSIDE[0], to, number))
        assert (answer.verdict, answer.endpoints) == (Verdict.UNSERVED, ())
        assert "the kernel refused it" in answer.reason


@pytest.mark.parametrize("mode", BOTH)
def test_by_interface_it_has_to_be_said_which(mode: type[World] | type[IptWorld]) -> None:
    world = mode(web(), ANY, local=LocalDetector(interface="veth*"))
    world.settle()
    view = view_of(world)
    with pytest.raises(NeedsInterfaceError, match="--interface"):
        explain_packet(view, packet(POD[0], "10.96.0.1"))
    kept = explain_packet(view, packet(POD[0], "10.96.0.1", interface="veth3"))
    replaced = explain_packet(view, packet(POD[0], "10.96.0.1", interface="eth0"))
    assert [each.endpoints[0].source_replaced for each in (kept, replaced)] == [False, True]
    # Where it does not matter nobody has to say it.
    assert explain_packet(view, packet(POD[0], EXTERNAL)).verdict is Verdict.DELIVERED
    assert explain_packet(view, packet(NODE_IP, "10.96.0.1")).endpoints[0].source_why is Source.NOT_A_LOCAL_POD


@pytest.mark.parametrize("mode", BOTH)
def test_rules_of_a_frontend_that_was_lost_elsewhere_are_not_asked_for(mode: type[World] | type[IptWorld]) -> None:
    late = build.service("late", ip="10.96.0.2", external_ips=("10.96.0.1",))
    world = mode(build.service("first", ip="10.96.0.1"), late, endpoint_slice("late", HERE))
    world.settle()
    answer = explain_packet(view_of(world), packet(POD[0], "10.96.0.2", interface=POD[1]), verifiable=True)
    assert answer.written is not None
    assert is_written(world, answer.written)
