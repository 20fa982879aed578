"""What is said of a Service by its name."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from proxyd.desired.endpoints import LeftOut
from proxyd.explain.answer import Answer, Connections, ServiceExplanation, Verdict, Verified
from proxyd.explain.answering import NoAnswerError, Words, answer
from proxyd.explain.question import Named
from proxyd.explain.service import explain_service
from proxyd.explain.text import SHOWN, answer_text
from proxyd.model import Family, Finding, Reason
from tests import build
from tests.build import endpoint, endpoint_slice, port
from tests.explain_world import view_of
from tests.ipt_world import IptWorld
from tests.world import World

BOTH = pytest.mark.parametrize("mode", [World, IptWorld])
Mode = type[World] | type[IptWorld]
EXTERNAL, BALANCER = "203.0.113.5", "203.0.113.10"
HERE, AWAY = endpoint("10.244.1.2"), endpoint("10.244.2.2", "node2")


def ask(
    mode: Mode, *objects: Any, name: str = "web", port: str = "", source: str = "", **on: Any
) -> ServiceExplanation:
    world = mode(*objects, **on)
    world.settle()
    return explain_service(view_of(world), Named(build.key(name), port), source)


def web(**fields: Any) -> Any:
    defaults = {"external_ips": (EXTERNAL,), "ingress_ips": (BALANCER,), "ports": (port(node_port=30080),)}
    return build.service(**{**defaults, **fields})


@BOTH
@pytest.mark.parametrize(
    ("fields", "endpoints", "internal", "external"),
    [
        ({}, (HERE,), Verdict.DELIVERED, Verdict.DELIVERED),
        ({}, (), Verdict.REJECTED, Verdict.REJECTED),
        ({"external_local": True}, (HERE,), Verdict.DELIVERED, Verdict.DELIVERED),
        ({"external_local": True}, (AWAY,), Verdict.DELIVERED, Verdict.PARTLY),
        ({"internal_local": True}, (AWAY,), Verdict.DROPPED, Verdict.DELIVERED),
    ],
    ids=str,
)
def test_every_frontend_has_its_verdict(
    mode: Mode, fields: dict[str, Any], endpoints: tuple[Any, ...], internal: Verdict, external: Verdict
) -> None:
    told = ask(mode, web(**fields), endpoint_slice("web", *endpoints))
    (only,) = told.ports
    assert {each.kind: each.verdict for each in only.places} == {
        "cluster IP": internal,
        "load balancer address": external,
        "external IP": external,
        "node port": external,
    }
    assert told.verdict is (internal if internal is external else Verdict.PARTLY)


@BOTH
def test_each_list_tells_its_endpoints_and_what_it_leaves_out(mode: Mode) -> None:
    gone = endpoint("10.244.1.3", ready=False)
    (only,) = ask(mode, web(external_local=True), endpoint_slice("web", HERE, AWAY, gone)).ports
    assert [(each.address, each.node) for each in only.cluster] == [("10.244.1.2", "node1"), ("10.244.2.2", "node2")]
    assert [each.address for each in only.local] == ["10.244.1.2"]
    assert {each.address: each.why for each in only.cluster_left_out} == {"10.244.1.3": LeftOut.NOT_READY}
    assert {each.address: each.why for each in only.local_left_out} == {
        "10.244.1.3": LeftOut.NOT_READY,
        "10.244.2.2": LeftOut.OTHER_NODE,
    }


@BOTH
def test_a_list_that_no_frontend_uses_is_not_told(mode: Mode) -> None:
    (only,) = ask(mode, build.service(), endpoint_slice("web", HERE, AWAY)).ports
    assert (len(only.cluster), only.local, only.local_left_out) == (2, (), ())


@BOTH
def test_conflicts_that_were_lost_are_told_with_the_winner(mode: Mode) -> None:
    late = build.service("late", ip="10.96.0.2", external_ips=(BALANCER,), created="", ports=(port(node_port=30080),))
    told = ask(mode, web(), late, endpoint_slice("web", HERE), endpoint_slice("late", HERE), name="late")
    (only,) = told.ports
    lost = {each.frontend: each.how for each in only.places if each.verdict is Verdict.UNSERVED}
    winner = "conflict lost: served for default/web instead"
    assert lost == {f"{BALANCER}:80/tcp": winner, "node port 30080/tcp": winner}
    assert told.verdict is Verdict.PARTLY
    assert sum("frontend-conflict" in note for note in told.notes) == 2


@BOTH
def test_only_the_port_that_is_asked_for(mode: Mode) -> None:
    service = build.service(ports=(port(), port(53, "dns", "udp")))
    assert [each.name for each in ask(mode, service).ports] == ["http", "dns"]
    assert [each.name for each in ask(mode, service, port="dns").ports] == ["dns"]
    assert [each.name for each in ask(mode, service, port="80").ports] == ["http"]
    told = ask(mode, service, port="nothing")
    assert (told.verdict, told.reason) == (Verdict.UNTOUCHED, "it has no port nothing")


@BOTH
def test_with_a_source_each_frontend_is_a_packet(mode: Mode) -> None:
    told = ask(
        mode,
        web(external_local=True, source_ranges=("198.51.100.0/24",)),
        endpoint_slice("web", AWAY),
        source="10.244.1.9",
    )
    verdicts = {each.asked.destination: each.verdict for each in told.packets}
    assert verdicts == {
        "10.96.0.1": Verdict.DELIVERED,
        EXTERNAL: Verdict.DELIVERED,
        BALANCER: Verdict.DROPPED,
        build.NODE_IP[Family.IPV4]: Verdict.DELIVERED,
    }
    assert told.verdict is Verdict.PARTLY


@BOTH
def test_what_is_not_in_the_kernel_is_not_served(mode: Mode) -> None:
    world = mode(web())
    world.settle()
    refused = Finding("Service", "default/web", Reason.KERNEL_REFUSED, "no room")
    fault = Finding("Service", "default/web", Reason.INTERNAL_ERROR, "KeyError('x')")
    in_the_other_family = explain_service(view_of(world, findings=(refused,)), Named(build.key()))
    assert in_the_other_family.verdict is Verdict.REJECTED
    for fields, says in (
        ({"findings": (refused,), "quarantined": (build.key(),)}, "kernel-refused: no room"),
        ({"findings": (fault,)}, "internal-error: KeyError('x')"),
    ):
        told = explain_service(view_of(world, **fields), Named(build.key()))
        assert told.verdict is Verdict.UNSERVED
        assert says in told.reason


@BOTH
def test_services_that_are_not_here(mode: Mode) -> None:
    world = mode(build.service("bad", ip="10.96.0.999"))
    unreadable = Finding("Service", "default/odd", Reason.UNREADABLE_OBJECT, "Expected `int`")
    view = view_of(world, findings=(unreadable,))
    found = {name: explain_service(view, Named(build.key(name))) for name in ("nothing", "odd", "bad")}
    assert {name: each.verdict for name, each in found.items()} == {
        "nothing": Verdict.UNTOUCHED,
        "odd": Verdict.UNTOUCHED,
        "bad": Verdict.UNSERVED,
    }
    assert "headless" in found["nothing"].reason
    assert "Expected `int`" in found["odd"].reason
    assert any("10.96.0.999" in note for note in found["bad"].notes)


@BOTH
def test_a_place_that_nobody_is_let_in_at_is_dropped_and_a_node_port_without_addresses_unserved(mode: Mode) -> None:
    told = ask(
        mode,
        web(source_ranges=("nonsense",)),
        endpoint_slice("web", HERE),
        node_port_addresses=(),
    )
    verdicts = {place.kind: place.verdict for place in told.ports[0].places}
    assert verdicts["load balancer address"] is Verdict.DROPPED
    # In iptables mode localhost takes them all the same.
    assert verdicts["node port"] is (Verdict.UNSERVED if mode is World else Verdict.DELIVERED)


# -- over families, and as text ------------------------------------------------------------------------------------------


def both_families(*objects: Any, **of_view: Any) -> dict[Family, Any]:
    return {family: view_of(World(*objects, family=family), **of_view) for family in Family}


def test_a_family_that_a_service_does_not_have_says_nothing() -> None:
    views = both_families(web(), endpoint_slice("web", HERE))
    assert [each.family for each in answer(views, Words("web")).services] == [Family.IPV4]
    told = answer(views, Words("nothing"))
    assert (told.verdict, len(told.services)) == (Verdict.UNTOUCHED, 1)
    dual = both_families(build.service(cluster_ips=("10.96.0.1", "fd00:10:96::1")), endpoint_slice("web", HERE))
    told = answer(dual, Words("web"))
    assert [each.verdict for each in told.services] == [Verdict.DELIVERED, Verdict.REJECTED]
    assert told.verdict is Verdict.PARTLY


def test_a_family_that_is_not_written_has_no_answer() -> None:
    only_v4 = {Family.IPV4: both_families()[Family.IPV4]}
    with pytest.raises(NoAnswerError, match="IPv6"):
        answer(only_v4, Words(source="fd00::1", to="[fd00::2]:80"))


def lines(told: Answer) -> list[str]:
    return answer_text(told).splitlines()


def test_text_shows_no_more_endpoints_than_can_be_read() -> None:
    many = [endpoint(f"10.244.3.{n}", "node2") for n in range(1, 61)]
    views = both_families(
        build.service(), endpoint_slice("web", *many[:30]), endpoint_slice("web", *many, name="again")
    )
    for words in (Words("web"), Words(source="10.244.1.9", to="10.96.0.1:80")):
        shown = lines(answer(views, words))
        assert sum("10.244.3." in line for line in shown) == SHOWN * 2  # those that are used, and duplicates
        assert sum("and 40 more" in line for line in shown) == 1
        assert sum("and 10 more" in line for line in shown) == 1


def test_text_of_mixed_ends_says_for_each_what_becomes_of_it() -> None:
    views = both_families(build.service(), endpoint_slice("web", HERE, AWAY))
    shown = lines(answer(views, Words(source="10.244.1.2", to="10.96.0.1:80")))
    assert any("10.244.1.2:8080" in line and "replaced: the endpoint is the client" in line for line in shown)
    assert any("10.244.2.2:8080" in line and "kept: the client is a pod" in line for line in shown)


def test_text_of_ipv6_and_of_notes() -> None:
    views = both_families(
        build.service(cluster_ips=("fd00:10:96::1",), affinity_seconds=60),
        endpoint_slice("web", endpoint("fd00:10:244:1::2"), family=Family.IPV6),
        notes=("a note",),
    )
    shown = lines(answer(views, Words(source="fd00:10:244:1::9", to="[fd00:10:96::1]:80/tcp")))
    assert shown[0] == "fd00:10:244:1::9 -> [fd00:10:96::1]:80/tcp: DELIVERED"
    assert any("[fd00:10:244:1::2]:8080 on node1: 1" in line for line in shown)
    assert any("ClientIP, 60 s" in line for line in shown)
    assert shown[-1] == "note: a note"


def test_text_of_what_the_kernel_says() -> None:
    views = both_families(build.service(), endpoint_slice("web", HERE))
    told = answer(views, Words(source="10.244.1.9", to="10.96.0.1:80"))
    assert told.packet is not None
    found = (Connections("10.244.1.2", 8080, 1, chosen=True), Connections("10.244.1.3", 8080, 2, chosen=False))
    for differences, says in (((), "all as it should be"), (("a is missing",), "differences: 1")):
        verified = replace(told.packet, verified=Verified(7, differences, found))
        shown = lines(replace(told, packet=verified))
        assert f"  kernel     things compared: 7; {says}" in shown
        assert ("  DIFFERS    a is missing" in shown) == bool(differences)
    assert shown[-2:] == [
        "  tracked    1 connection with 10.244.1.2:8080",
        "  tracked    2 connections with 10.244.1.3:8080, which new ones do not go to from there",
    ]
