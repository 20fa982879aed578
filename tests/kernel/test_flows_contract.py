"""Which flows a connection tracker deletes: the same claims, tried on the one of the tests and on the real one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.kernel import conntrack
from proxyd.kernel.conntrack import Question, questions
from proxyd.kernel.flows import FlowsError
from proxyd.kernel.netlink import Netlink
from proxyd.model import FAMILIES, Family
from tests.fakes.flows import FakeFlowTable, Flow
from tests.netns import RealFlowTable, why_not

V4, V6 = FAMILIES
EitherTable = FakeFlowTable | RealFlowTable

CLIENT = {V4: "198.51.100.7", V6: "2001:db8:51::7"}
VIP = {V4: "10.96.0.10", V6: "fd00:10:96::10"}
OTHER_VIP = {V4: "10.96.0.11", V6: "fd00:10:96::11"}
A = {V4: Backend("10.244.1.11", 5353), V6: Backend("fd00:10:244:1::11", 5353)}
B = {V4: Backend("10.244.1.12", 5353), V6: Backend("fd00:10:244:1::12", 5353)}
LOCAL = {V4: "192.0.2.11", V6: "2001:db8:2::11"}
ELSEWHERE = {V4: "192.0.2.99", V6: "2001:db8:2::99"}


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kernel)])
def table(request: pytest.FixtureRequest) -> Iterator[EitherTable]:
    if request.param == "fake":
        yield FakeFlowTable()
        return
    yield from _real()


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.kernel)])
def real() -> Iterator[RealFlowTable]:
    yield from _real()


def _real() -> Iterator[RealFlowTable]:
    if reason := why_not():
        pytest.skip(reason)
    table = RealFlowTable()
    yield table
    table.close()


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return Family(request.param)


def udp(address: str = "10.96.0.10", port: int = 53) -> FrontendKey:
    return FrontendKey(address, "udp", port)


def flow(
    family: Family, number: int, to: str, answers: Backend | None, port: int = 53, protocol: str = "udp", zone: int = 0
) -> Flow:
    """A flow of the client from port ``number``; without ``answers`` it is not translated."""
    destination = Backend(to, port)
    return Flow(Backend(CLIENT[family], number), destination, answers or destination, protocol, zone)


def test_an_empty_tracker_has_nothing_to_delete(table: EitherTable, family: Family) -> None:
    assert table.delete_stale(family, {udp(VIP[family]): frozenset()}) == 0


def test_flows_to_an_endpoint_that_is_gone_go_and_those_of_the_others_stay(table: EitherTable, family: Family) -> None:
    gone, kept = flow(family, 1001, VIP[family], A[family]), flow(family, 1002, VIP[family], B[family])
    table.add(family, gone, kept)
    assert table.delete_stale(family, {udp(VIP[family]): frozenset({B[family]})}) == 1
    assert table.listed(family) == {kept}


def test_an_endpoint_is_its_address_and_port(table: EitherTable, family: Family) -> None:
    moved = A[family]._replace(port=5354)
    table.add(family, flow(family, 1001, VIP[family], A[family]))
    assert table.delete_stale(family, {udp(VIP[family]): frozenset({moved})}) == 1


def test_a_flow_that_began_before_there_were_endpoints_goes_when_there_are(table: EitherTable, family: Family) -> None:
    table.add(family, flow(family, 1001, VIP[family], None))
    assert table.delete_stale(family, {udp(VIP[family]): frozenset({A[family]})}) == 1
    assert table.listed(family) == set()


def test_without_endpoints_translated_flows_go_and_others_stay(table: EitherTable, family: Family) -> None:
    translated, plain = flow(family, 1001, VIP[family], A[family]), flow(family, 1002, VIP[family], None)
    table.add(family, translated, plain)
    assert table.delete_stale(family, {udp(VIP[family]): frozenset()}) == 1
    assert table.listed(family) == {plain}


def test_an_endpoint_at_the_very_address_of_its_frontend_keeps_its_flows(table: EitherTable, family: Family) -> None:
    table.add(family, flow(family, 1001, LOCAL[family], None))
    itself = Backend(LOCAL[family], 53)
    assert table.delete_stale(family, {udp(LOCAL[family]): frozenset({itself})}) == 0


def test_nothing_else_is_touched(table: EitherTable, family: Family) -> None:
    others = (
        flow(family, 1001, VIP[family], A[family], port=54),
        flow(family, 1002, OTHER_VIP[family], A[family]),
        flow(family, 1003, VIP[family], A[family], protocol="tcp"),
        Flow(Backend(VIP[family], 53), Backend(CLIENT[family], 1004), A[family]),
    )
    table.add(family, *others)
    assert table.delete_stale(family, {udp(VIP[family]): frozenset({B[family]})}) == 0
    assert table.listed(family) == set(others)


def test_the_other_family_is_not_touched(table: EitherTable) -> None:
    table.add(V6, flow(V6, 1001, VIP[V6], A[V6]))
    assert table.delete_stale(V4, {udp(VIP[V4]): frozenset(), udp("", 53): frozenset()}) == 0
    assert len(table.listed(V6)) == 1


@pytest.mark.parametrize("count", [2, 4, 5, 40])
def test_many_frontends_at_once(table: EitherTable, family: Family, count: int) -> None:
    ports = range(2000, 2000 + count)
    stale = [flow(family, port, VIP[family], A[family], port=port) for port in ports]
    live = [flow(family, port + 1000, VIP[family], B[family], port=port) for port in ports]
    foreign = flow(family, 1003, VIP[family], A[family], port=1999)
    table.add(family, *stale, *live, foreign)
    assert table.delete_stale(family, {udp(VIP[family], port): frozenset({B[family]}) for port in ports}) == count
    assert table.listed(family) == {*live, foreign}


def test_each_frontend_has_its_own_endpoints(table: EitherTable, family: Family) -> None:
    first, second = flow(family, 1001, VIP[family], A[family]), flow(family, 1002, OTHER_VIP[family], B[family])
    table.add(family, first, second)
    live = {udp(VIP[family]): frozenset({A[family]}), udp(OTHER_VIP[family]): frozenset({A[family]})}
    assert table.delete_stale(family, live) == 1
    assert table.listed(family) == {first}


def test_a_port_on_every_address_is_one_on_the_addresses_of_this_host(table: EitherTable, family: Family) -> None:
    table.add_address(family, LOCAL[family])
    mine = flow(family, 1001, LOCAL[family], A[family], port=30053)
    loopback = flow(family, 1002, "127.0.0.1" if family is V4 else "::1", A[family], port=30053)
    kept = (
        flow(family, 1003, LOCAL[family], B[family], port=30053),
        flow(family, 1004, LOCAL[family], A[family], port=30054),
        flow(family, 1005, ELSEWHERE[family], A[family], port=30053),
    )
    table.add(family, mine, loopback, *kept)
    assert table.delete_stale(family, {udp("", 30053): frozenset({B[family]})}) == 2
    assert table.listed(family) == set(kept)


def test_an_address_given_for_itself_goes_before_every_address(table: EitherTable, family: Family) -> None:
    table.add_address(family, LOCAL[family])
    kept = flow(family, 1001, LOCAL[family], A[family], port=30053)
    table.add(family, kept)
    frontends = {udp("", 30053): frozenset({B[family]}), udp(LOCAL[family], 30053): frozenset({A[family]})}
    assert table.delete_stale(family, frontends) == 0


def test_an_address_that_has_nobody_is_one_of_every_address_if_it_is_this_hosts(
    table: EitherTable, family: Family
) -> None:
    """An external IP goes that was the node's own, on the number of a node port."""
    table.add_address(family, LOCAL[family])
    kept = flow(family, 1001, LOCAL[family], A[family], port=30053)
    stale = [
        flow(family, 1002, LOCAL[family], B[family], port=30053),
        flow(family, 1003, ELSEWHERE[family], A[family], port=30053),
    ]
    table.add(family, kept, *stale)
    gone = {udp(LOCAL[family], 30053): frozenset[Backend](), udp(ELSEWHERE[family], 30053): frozenset[Backend]()}
    assert table.delete_stale(family, {**gone, udp("", 30053): frozenset({A[family]})}) == 2
    assert table.listed(family) == {kept}


def test_tcp_is_possible_too(table: EitherTable, family: Family) -> None:
    gone, kept = flow(family, 1001, VIP[family], A[family], 80, "tcp"), flow(family, 1002, VIP[family], A[family], 80)
    table.add(family, gone, kept)
    assert table.delete_stale(family, {FrontendKey(VIP[family], "tcp", 80): frozenset({B[family]})}) == 1
    assert table.listed(family) == {kept}


def test_zones_are_told_apart(table: EitherTable, family: Family) -> None:
    zoned, other = (
        flow(family, 1001, VIP[family], A[family], zone=7),
        flow(family, 1001, VIP[family], B[family], zone=8),
    )
    table.add(family, zoned, other)
    assert table.delete_stale(family, {udp(VIP[family]): frozenset({B[family]})}) == 1
    assert table.listed(family) == {other}


def test_what_comes_meanwhile_holds(table: EitherTable, family: Family) -> None:
    """A new endpoint has flows before the look at the old state is over."""
    table.add_address(family, LOCAL[family])
    new, old = flow(family, 1001, VIP[family], A[family]), flow(family, 1002, VIP[family], B[family])
    node_port = flow(family, 1003, LOCAL[family], A[family], port=30053)
    table.add(family, new, old, node_port)
    news = [{udp(VIP[family]): frozenset({A[family]}), udp("", 30053): frozenset({A[family]})}]
    given = {udp(VIP[family]): frozenset({B[family]}), udp("", 30053): frozenset({B[family]})}
    assert table.delete_stale(family, given, lambda: news.pop() if news else {}) == 1
    assert table.listed(family) == {new, node_port}


# The real one only


def test_more_flows_than_one_batch(real: RealFlowTable) -> None:
    stale = [flow(V4, number, VIP[V4], A[V4]) for number in range(1001, 1001 + 3 * conntrack.BATCH + 1)]
    kept = [flow(V4, number, VIP[V4], B[V4]) for number in range(5001, 5003)]
    real.add(V4, *stale, *kept)
    assert real.delete_stale(V4, {udp(): frozenset({B[V4]})}) == len(stale)
    assert real.listed(V4) == set(kept)


def test_a_flow_that_ended_meanwhile_is_no_failure_and_not_counted(
    real: RealFlowTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each flow is named twice: the second time it is gone already."""
    real.add(V4, *(flow(V4, number, VIP[V4], A[V4]) for number in (1001, 1002, 1003)))
    asked = Netlink.batches
    monkeypatch.setattr(Netlink, "batches", lambda *args, dump: ([*m, *m] for m in asked(*args, dump=dump)))
    assert real.delete_stale(V4, {udp(): frozenset()}) == 3
    assert real.listed(V4) == set()


def test_a_kernel_that_cannot_filter_gives_the_same(real: RealFlowTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 5.8 the filter is not known, and flows of all protocols come."""
    filtered = conntrack._filtered
    monkeypatch.setattr(conntrack, "_filtered", lambda *question: filtered(*question)[:4])
    kept = (flow(V4, 1002, VIP[V4], A[V4], protocol="tcp"), flow(V4, 1003, OTHER_VIP[V4], A[V4]))
    real.add(V4, flow(V4, 1001, VIP[V4], A[V4]), *kept)
    assert real.delete_stale(V4, {udp(): frozenset({B[V4]})}) == 1
    assert real.listed(V4) == set(kept)


def test_without_the_privilege_it_says_so(real: RealFlowTable) -> None:
    def unprivileged() -> None:
        child = os.fork()
        if not child:
            try:
                os.setresuid(65534, 65534, 65534)
                conntrack.Conntrack().delete_stale(V4, {udp(): frozenset()})
            except FlowsError as error:
                os._exit(0 if str(error) == "Operation not permitted (CAP_NET_ADMIN is needed)" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    real.inside(unprivileged)


def test_a_closed_socket_is_a_failure_of_its_own_kind(real: RealFlowTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(errno.ENOBUFS, "no room")

    monkeypatch.setattr(conntrack, "_filtered", broken)
    with pytest.raises(FlowsError, match="no room"):
        real.delete_stale(V4, {udp(): frozenset()})


# What the kernel is asked


def test_few_frontends_are_asked_for_one_by_one() -> None:
    asked = questions(V4, [udp("10.96.0.10", 53), udp("203.0.113.10", 53)])
    assert asked == [Question(17, 53, "10.96.0.10"), Question(17, 53, "203.0.113.10")]


def test_a_port_on_every_address_is_one_question_for_all_of_them() -> None:
    assert questions(V4, [udp("", 30053), udp("192.0.2.11", 30053)]) == [Question(17, 30053)]


def test_ipv6_is_asked_for_by_port_since_kernels_look_for_all_other_addresses() -> None:
    assert questions(V6, [udp("fd00:10:96::10", 53)]) == [Question(17, 53)]


def test_many_addresses_with_few_ports_are_asked_for_by_port() -> None:
    assert questions(V4, [udp(f"192.0.2.{n}", 30053) for n in range(9)]) == [Question(17, 30053)]


def test_many_frontends_are_asked_for_at_once() -> None:
    many = [udp(f"10.96.0.{n}", 53 + n) for n in range(conntrack.QUESTIONS + 1)]
    assert questions(V4, many) == [Question(17)]
    assert questions(V4, [*many, FrontendKey("10.96.0.1", "tcp", 80)]) == [Question(6), Question(17)]
