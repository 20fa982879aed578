"""Node ports on the loopback address, over real sockets: who is connected to whom, what ends when, and what it costs."""

from __future__ import annotations

import copy
import socket
import threading
from collections import Counter

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.desired.localhost import LocalhostPort
from proxyd.model import FAMILIES, Family
from proxyd.serve.localhost import ATTEMPTS, HOST, Listener
from proxyd.serve.localhost_metrics import OWN, UPSTREAM
from proxyd.sync.status import FamilyStatus, Status
from tests.build import key
from tests.program import until
from tests.relays import API, PATIENCE, V4, V6, WEB, Client, Node, Pod, fails, free_port, port_of


@pytest.mark.parametrize("family", FAMILIES)
def test_a_client_reaches_each_of_the_endpoints(relaying: Node, family: Family) -> None:
    pods = [Pod(name, host=HOST[family]) for name in ("a", "b", "c")]
    port = port_of(*pods, port=free_port(HOST[family]))
    relaying.listen(port, family=family)
    seen: Counter[str] = Counter()
    for _ in range(90):
        with Client(port.port, family) as client:
            assert client.say(b"hello") == b"hello"
            seen[client.pod] += 1
    # Each with a third of the chance: fewer than 10 of 90 come once in a hundred million times.
    assert min(seen[each.name] for each in pods) >= 10
    assert relaying.metric(f"{OWN}connections_total", family) == 90
    other = V6 if family is V4 else V4
    assert fails(port.port, other) == "refused"


def test_nobody_listens_on_other_addresses(relaying: Node) -> None:
    port = port_of(Pod("a"))
    relaying.listen(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port.port), timeout=PATIENCE)


# -- endpoints ---------------------------------------------------------------------------------------------------------


def test_endpoints_that_change_are_for_new_connections_only(relaying: Node) -> None:
    a, b = Pod("a"), Pod("b")
    port = port_of(a)
    relaying.listen(port)
    with Client(port.port) as old:
        relaying.update(port_of(b, port=port.port))
        relaying.settle()
        with Client(port.port) as new:
            assert new.pod == "b"
        assert old.say(b"still") == b"still"


def test_an_endpoint_that_cannot_be_reached_costs_no_connection(relaying: Node) -> None:
    gone = [Backend("127.0.0.1", free_port()) for _ in range(ATTEMPTS - 1)]
    pod = Pod("a")
    port = LocalhostPort(WEB, free_port(), (*gone, pod.backend))
    relaying.listen(port)
    for _ in range(20):
        with Client(port.port) as client:
            assert client.pod == "a"
    assert relaying.metric(f"{OWN}dial_failures_total") > 0


def test_an_endpoint_that_says_nothing_is_given_up_after_a_time() -> None:
    node = Node(dial_seconds=0.1)
    try:
        # Its queue is full, so it answers no more.
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(0)
            waiting = [socket.socket() for _ in range(3)]
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(silent.getsockname())
            pod = Pod("a")
            port = LocalhostPort(WEB, free_port(), (Backend(*silent.getsockname()), pod.backend))
            node.listen(port)
            for _ in range(10):
                with Client(port.port) as client:
                    assert client.pod == "a"
            for each in waiting:
                each.close()
    finally:
        node.server.stop()


def test_a_client_is_turned_away_when_no_endpoint_can_be_reached(relaying: Node) -> None:
    port = LocalhostPort(WEB, free_port(), tuple(Backend("127.0.0.1", free_port()) for _ in range(5)))
    relaying.listen(port)
    assert fails(port.port) == "reset"
    assert relaying.metric(f"{OWN}dial_failures_total") == ATTEMPTS
    until(lambda: relaying.connections() == 0, "the connection has ended")


# -- affinity ----------------------------------------------------------------------------------------------------------


def test_with_affinity_all_clients_go_to_one_endpoint(relaying: Node) -> None:
    pods = [Pod(name) for name in "abcde"]
    port = port_of(*pods, affinity=600)
    relaying.listen(port)
    seen = set()
    for _ in range(20):
        with Client(port.port) as client:
            seen.add(client.pod)
    assert len(seen) == 1
    # Other endpoints come and go.
    relaying.update(
        port_of(*(each for each in pods if each.name in seen), Pod("f"), Pod("g"), port=port.port, affinity=600)
    )
    relaying.settle()
    for _ in range(20):
        with Client(port.port) as client:
            assert {client.pod} == seen


A, B, C = (Backend(f"10.244.1.{n}", 80) for n in (1, 2, 3))


def pinned(backends: tuple[Backend, ...] = (A, B, C), seconds: int = 60) -> tuple[Listener, Backend]:
    listener = Listener(V4, LocalhostPort(WEB, 30080, backends, seconds))
    return listener, listener.candidates(0.0)[0]


def firsts(listener: Listener, now: float, times: int = 60) -> set[Backend]:
    """The endpoints that are tried first, if each connection were the first one after what was before."""
    return {copy.copy(listener).candidates(now)[0] for _ in range(times)}


def test_a_pin_lasts_for_its_time_after_the_last_connection() -> None:
    listener, first = pinned()
    assert firsts(listener, 60.0) == {first}
    listener.candidates(60.0)
    assert firsts(listener, 120.0) == {first}
    assert firsts(listener, 120.1) == {A, B, C}


@pytest.mark.parametrize("leaves", ["the pinned one", "another"])
def test_a_pin_ends_when_its_endpoint_leaves_also_if_that_comes_back(leaves: str) -> None:
    listener, first = pinned()
    others = tuple({A, B, C} - {first})
    stay = others if leaves == "the pinned one" else (first, others[0])
    listener.change(LocalhostPort(WEB, 30080, stay, 60))
    listener.change(LocalhostPort(WEB, 30080, (A, B, C), 60))
    assert firsts(listener, 1.0) == ({A, B, C} if leaves == "the pinned one" else {first})


@pytest.mark.parametrize("seconds", [0, 30, 90])
def test_another_timeout_ends_a_pin(seconds: int) -> None:
    listener, _ = pinned()
    listener.change(LocalhostPort(WEB, 30080, (A, B, C), seconds))
    assert firsts(listener, 1.0) == {A, B, C}


def test_who_was_served_elsewhere_stays_there() -> None:
    listener, first = pinned()
    (other, *_) = {A, B, C} - {first}
    listener.pin(other, 1.0)
    assert firsts(listener, 2.0) == {other}


def test_without_affinity_each_connection_is_for_itself() -> None:
    listener, _ = pinned(seconds=0)
    assert firsts(listener, 0.0) == {A, B, C}


# -- listeners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gone", "another Service's"])
def test_a_port_that_is_taken_away_cuts_its_connections_and_no_others(relaying: Node, how: str) -> None:
    a, b = Pod("a"), Pod("b")
    first, second = port_of(a), port_of(b, service=API)
    relaying.listen(first, second)
    with Client(first.port) as cut, Client(second.port) as kept:
        moved = (port_of(b, port=first.port, service=API),) if how != "gone" else ()
        relaying.update(second, *moved)
        with pytest.raises(ConnectionResetError):
            cut.rest()
        assert kept.say(b"still") == b"still"
        until(lambda: fails(first.port) == ("served by 'b'" if moved else "refused"), "the port's new state")
    assert relaying.metric(f"{UPSTREAM}listeners") == 1 + len(moved)


def test_a_port_that_somebody_else_has_is_taken_when_it_is_free_and_others_are_served(relaying: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = port_of(Pod("a"), port=other.getsockname()[1])
        free = port_of(Pod("b"), service=API)
        relaying.update(taken, free)
        until(lambda: relaying.metric(f"{UPSTREAM}listener_creation_failures_total") >= 2, "tried again")
        with Client(free.port) as client:
            assert client.pod == "b"
        assert relaying.metric(f"{UPSTREAM}listeners") == 1
    until(lambda: relaying.metric(f"{UPSTREAM}listeners") == 2, "the other listener")
    with Client(taken.port) as client:
        assert client.pod == "a"


def test_a_port_that_could_not_be_had_is_tried_again_with_the_next_status() -> None:
    node = Node(retry_first=3600.0)
    try:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = port_of(Pod("a"), port=other.getsockname()[1])
            node.update(port)
            until(lambda: node.metric(f"{UPSTREAM}listener_creation_failures_total") == 1, "tried")
        node.listen(port)
    finally:
        node.server.stop()


def test_more_ports_than_there_may_be_wait_until_others_go() -> None:
    node = Node(max_listeners=1, retry_first=0.01)
    try:
        first, second = port_of(Pod("a")), port_of(Pod("b"), service=API)
        node.listen(first)
        node.update(first, second)
        until(lambda: node.metric(f"{UPSTREAM}listener_creation_failures_total") >= 2, "tried again")
        assert node.metric(f"{UPSTREAM}listeners") == 1
        assert fails(second.port) == "refused"
        node.update(second)
        until(lambda: fails(second.port) == "served by 'b'", "its turn")
    finally:
        node.server.stop()


def test_a_status_without_news_costs_nothing(relaying: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = (port_of(Pod("a")),)
    relaying.relay.update(Status("nftables", (FamilyStatus(V4, localhost_ports=ports),)))
    until(lambda: relaying.metric(f"{UPSTREAM}listeners") == 1, "a listener")
    asked: list[object] = []
    monkeypatch.setattr(relaying.server, "call", lambda *call: asked.append(call))
    relaying.relay.update(Status("nftables", (FamilyStatus(V4, localhost_ports=ports),)))
    monkeypatch.undo()
    assert not asked


def test_hundreds_of_ports_are_served(relaying: Node) -> None:
    pod = Pod("a")
    ports = {free_port() for _ in range(200)}
    wanted = [port_of(pod, port=each, service=key(f"s{each}")) for each in ports]
    relaying.listen(*wanted)
    for each in wanted:
        with Client(each.port) as client:
            assert client.say(b"x") == b"x"
    relaying.update()
    until(lambda: relaying.metric(f"{UPSTREAM}listeners") == 0, "no listener")
    assert {fails(each.port) for each in wanted} == {"refused"}


def test_beyond_the_limit_connections_are_refused_until_others_end() -> None:
    node = Node(max_connections=3)
    try:
        port = port_of(Pod("a"))
        node.listen(port)
        open_ = [Client(port.port) for _ in range(3)]
        assert fails(port.port) == "reset"
        assert node.metric(f"{OWN}connections_refused_total") == 1
        assert [each.say(b"still") for each in open_] == [b"still"] * 3
        open_[0].__exit__()
        until(lambda: node.connections() == 2, "one has ended")
        with Client(port.port) as client:
            assert client.pod == "a"
        for each in open_[1:]:
            each.__exit__()
    finally:
        node.server.stop()


# -- the end -----------------------------------------------------------------------------------------------------------


def test_at_the_end_nobody_new_is_served_and_who_is_there_may_finish(relaying: Node) -> None:
    port = port_of(Pod("a"))
    relaying.listen(port)
    with Client(port.port) as client:
        relaying.relay.close()
        relaying.settle()
        assert fails(port.port) == "refused"
        late = port_of(Pod("b"), service=API)
        relaying.update(port_of(Pod("a"), port=port.port), late)
        relaying.settle()
        assert fails(port.port) == "refused"
        draining = threading.Thread(target=relaying.relay.drain, args=(3600.0,), daemon=True)
        draining.start()
        assert client.say(b"the rest") == b"the rest"
        client.sock.shutdown(socket.SHUT_WR)
        assert client.rest() == b""
    draining.join(PATIENCE)
    assert not draining.is_alive()
    assert fails(late.port) == "refused"


def test_at_the_end_who_goes_on_and_on_is_cut(relaying: Node) -> None:
    port = port_of(Pod("a"))
    relaying.listen(port)
    with Client(port.port) as client:
        relaying.relay.close()
        relaying.relay.drain(0.05)
        relaying.server.stop()
        with pytest.raises(ConnectionResetError):
            client.rest()


def test_without_connections_the_end_waits_for_nobody(relaying: Node) -> None:
    relaying.listen(port_of(Pod("a")))
    relaying.relay.close()
    draining = threading.Thread(target=relaying.relay.drain, args=(3600.0,), daemon=True)
    draining.start()
    draining.join(PATIENCE)
    assert not draining.is_alive()
