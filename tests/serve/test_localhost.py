"""Node ports on the loopback address, over real sockets: who is connected to whom, what ends when, and what it costs."""

from __future__ import annotations

import asyncio
import copy
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from proxyd.desired.endpoints import Backend
from proxyd.desired.localhost import LocalhostPort
from proxyd.model import FAMILIES, Family
from proxyd.serve import relay
from proxyd.serve.http import Server
from proxyd.serve.localhost import ATTEMPTS, HOST, Listener, LocalhostRelay
from proxyd.serve.localhost_metrics import OWN, UPSTREAM, LocalhostMetrics
from proxyd.sync.status import FamilyStatus, Status
from tests.build import key
from tests.program import until

V4, V6 = FAMILIES
WEB, API = key("web"), key("api")
PATIENCE = 10.0


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as each:
        each.bind((host, 0))
        port: int = each.getsockname()[1]
        return port


def echo(connection: socket.socket) -> None:
    """Sends back what comes, and ends when the other side has."""
    while data := connection.recv(1 << 16):
        connection.sendall(data)


class Pod:
    """An endpoint: says its name to each client, and then does with the connection what it is told."""

    def __init__(self, name: str, then: Callable[[socket.socket], object] = echo, host: str = "127.0.0.1") -> None:
        self.name = name
        self.connections: list[socket.socket] = []
        self._then = then
        self._sock = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.backend = Backend(*self._sock.getsockname()[:2])
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.sendall(f"{self.name}\n".encode())
                self._then(connection)
        except OSError:
            pass  # the client is gone

    def close(self) -> None:
        """Ends listening, but no connection."""
        self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


class Client:
    """A connection to a node port, of which the name of its endpoint has been read."""

    def __init__(self, port: int, family: Family = V4) -> None:
        self.sock = socket.create_connection((HOST[family], port), timeout=PATIENCE)
        self._file = self.sock.makefile("rb")
        self.pod = self._file.readline().decode().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def say(self, text: bytes) -> bytes:
        self.sock.sendall(text)
        return self._file.read(len(text))

    def rest(self) -> bytes:
        return self._file.read()


class Node:
    """A relay, and node ports of it. All ports are free again at the end."""

    def __init__(self, **options: Any) -> None:
        self.server = Server()
        self.server.start()
        self.registry = CollectorRegistry()
        options = {"retry_first": 0.02, **options}
        self.relay = LocalhostRelay(self.server, LocalhostMetrics(self.registry, FAMILIES), **options)

    def update(self, *ports: LocalhostPort, family: Family = V4) -> None:
        """Takes a status."""
        self.relay.update(Status("nftables", (FamilyStatus(family, localhost_ports=ports),)))

    def listen(self, *ports: LocalhostPort, family: Family = V4) -> None:
        """Takes a status and waits until there is a listener for each port."""
        self.update(*ports, family=family)
        until(lambda: self.metric(f"{UPSTREAM}listeners", family) == len(ports), "listeners")

    def metric(self, name: str, family: Family = V4) -> float:
        page = generate_latest(self.registry).decode()
        found = re.search(rf'^{name}{{ip_family="{family}"}} (\S+)$', page, re.MULTILINE)
        assert found, page
        return float(found[1])

    def connections(self) -> float:
        return self.metric(f"{OWN}open_connections")

    def settle(self) -> None:
        """Waits until everything that was asked for has been done."""
        done = threading.Event()
        self.server.call(done.set)
        assert done.wait(PATIENCE)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.server.stop()


def port_of(*pods: Pod, port: int = 0, service: Any = WEB, affinity: int = 0) -> LocalhostPort:
    return LocalhostPort(service, port or free_port(), tuple(each.backend for each in pods), affinity)


def fails(port: int, family: Family = V4) -> str:
    """What happens to a connection that nobody serves."""
    try:
        with Client(port, family) as client:
            return f"served by {client.pod!r}" if client.pod else "closed"
    except ConnectionRefusedError:
        return "refused"
    except ConnectionResetError:
        return "reset"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_client_reaches_each_of_the_endpoints(node: Node, family: Family) -> None:
    pods = [Pod(name, host=HOST[family]) for name in ("a", "b", "c")]
    port = port_of(*pods, port=free_port(HOST[family]))
    node.listen(port, family=family)
    seen: Counter[str] = Counter()
    for _ in range(90):
        with Client(port.port, family) as client:
            assert client.say(b"hello") == b"hello"
            seen[client.pod] += 1
    # Each with a third of the chance: fewer than 10 of 90 come once in a hundred million times.
    assert min(seen[each.name] for each in pods) >= 10
    assert node.metric(f"{OWN}connections_total", family) == 90
    other = V6 if family is V4 else V4
    assert fails(port.port, other) == "refused"


def test_nobody_listens_on_other_addresses(node: Node) -> None:
    port = port_of(Pod("a"))
    node.listen(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port.port), timeout=PATIENCE)


# -- bytes -------------------------------------------------------------------------------------------------------------


def test_much_is_carried_both_ways_at_once_and_unchanged(node: Node) -> None:
    port = port_of(Pod("a"))
    node.listen(port)
    sent = b"".join(n.to_bytes(4, "big") for n in range(4_000_000))
    with Client(port.port) as client:
        sender = threading.Thread(target=lambda: (client.sock.sendall(sent), client.sock.shutdown(socket.SHUT_WR)))
        sender.start()
        assert client.rest() == sent
        sender.join()
    until(lambda: node.connections() == 0, "the connection has ended")


def test_the_end_of_what_the_client_says_is_told_and_the_answer_still_comes(node: Node) -> None:
    heard: list[bytes] = []

    def answer_at_the_end(connection: socket.socket) -> None:
        while data := connection.recv(1 << 16):
            heard.append(data)
        connection.sendall(b"thanks")

    port = port_of(Pod("a", answer_at_the_end))
    node.listen(port)
    with Client(port.port) as client:
        client.sock.sendall(b"all of it")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.rest() == b"thanks"
    assert b"".join(heard) == b"all of it"


def test_the_end_of_what_the_endpoint_says_is_told_and_it_still_hears_the_client(node: Node) -> None:
    heard: list[bytes] = []
    ended = threading.Event()

    def only_listen(connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            heard.append(data)
        ended.set()

    port = port_of(Pod("a", only_listen))
    node.listen(port)
    with Client(port.port) as client:
        assert client.rest() == b""
        client.sock.sendall(b"still here")
        client.sock.shutdown(socket.SHUT_WR)
        assert ended.wait(PATIENCE)
    assert b"".join(heard) == b"still here"
    until(lambda: node.connections() == 0, "the connection has ended")


def test_an_endpoint_that_breaks_off_is_no_regular_end(node: Node) -> None:
    port = port_of(Pod("a", relay.reset))
    node.listen(port)
    with pytest.raises(ConnectionResetError), Client(port.port) as client:
        client.rest()


def test_a_client_that_breaks_off_ends_the_connection_to_the_endpoint(node: Node) -> None:
    ended = threading.Event()

    def wait(connection: socket.socket) -> None:
        try:
            connection.recv(1)
        except ConnectionResetError:
            ended.set()

    port = port_of(Pod("a", wait))
    node.listen(port)
    with Client(port.port) as client:
        relay.reset(client.sock)
        client._file.close()
        assert ended.wait(PATIENCE)
    until(lambda: node.connections() == 0, "the connection has ended")


@pytest.mark.parametrize("slow", ["client", "endpoint"])
def test_who_does_not_read_stops_the_other_and_nothing_is_piled_up(node: Node, slow: str) -> None:
    sent, stalled = [0], threading.Event()

    def send_without_end(connection: socket.socket) -> None:
        connection.settimeout(0.5)
        try:
            while sent[0] < 1 << 30:
                sent[0] += connection.send(bytes(1 << 16))
        except TimeoutError:
            stalled.set()

    port = port_of(Pod("a", send_without_end if slow == "client" else lambda _: stalled.wait(PATIENCE)))
    node.listen(port)
    with Client(port.port) as client:
        if slow == "endpoint":
            send_without_end(client.sock)
        assert stalled.wait(PATIENCE)
        # What the kernel keeps in four sockets; without a stop all of the gigabyte would have gone.
        assert sent[0] < 1 << 26
        # Others are served meanwhile.
        other = port_of(Pod("b"), service=API)
        node.update(port, other)
        until(lambda: node.metric(f"{UPSTREAM}listeners") == 2, "listeners")
        with Client(other.port) as second:
            assert second.say(b"hello") == b"hello"


def test_bytes_that_flow_without_a_stop_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "CHUNK", 1024)

    async def turns_of_others() -> int:
        (sender, source), (sink, reader) = socket.socketpair(), socket.socketpair()
        for sock in (source, sink):
            sock.setblocking(False)
        sender.sendall(bytes(64 * 1024))
        sender.close()
        carrying = asyncio.create_task(relay._carry(source, sink))
        turns = 0
        while not carrying.done():
            await asyncio.sleep(0)
            turns += 1
        for sock in (source, sink, reader):
            sock.close()
        return turns

    assert asyncio.run(turns_of_others()) >= 64


# -- endpoints ---------------------------------------------------------------------------------------------------------


def test_endpoints_that_change_are_for_new_connections_only(node: Node) -> None:
    a, b = Pod("a"), Pod("b")
    port = port_of(a)
    node.listen(port)
    with Client(port.port) as old:
        node.update(port_of(b, port=port.port))
        node.settle()
        with Client(port.port) as new:
            assert new.pod == "b"
        assert old.say(b"still") == b"still"


def test_an_endpoint_that_cannot_be_reached_costs_no_connection(node: Node) -> None:
    gone = [Backend("127.0.0.1", free_port()) for _ in range(ATTEMPTS - 1)]
    pod = Pod("a")
    port = LocalhostPort(WEB, free_port(), (*gone, pod.backend))
    node.listen(port)
    for _ in range(20):
        with Client(port.port) as client:
            assert client.pod == "a"
    assert node.metric(f"{OWN}dial_failures_total") > 0


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


def test_a_client_is_turned_away_when_no_endpoint_can_be_reached(node: Node) -> None:
    port = LocalhostPort(WEB, free_port(), tuple(Backend("127.0.0.1", free_port()) for _ in range(5)))
    node.listen(port)
    assert fails(port.port) == "reset"
    assert node.metric(f"{OWN}dial_failures_total") == ATTEMPTS
    until(lambda: node.connections() == 0, "the connection has ended")


# -- affinity ----------------------------------------------------------------------------------------------------------


def test_with_affinity_all_clients_go_to_one_endpoint(node: Node) -> None:
    pods = [Pod(name) for name in "abcde"]
    port = port_of(*pods, affinity=600)
    node.listen(port)
    seen = set()
    for _ in range(20):
        with Client(port.port) as client:
            seen.add(client.pod)
    assert len(seen) == 1
    # Other endpoints come and go.
    node.update(
        port_of(*(each for each in pods if each.name in seen), Pod("f"), Pod("g"), port=port.port, affinity=600)
    )
    node.settle()
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
def test_a_port_that_is_taken_away_cuts_its_connections_and_no_others(node: Node, how: str) -> None:
    a, b = Pod("a"), Pod("b")
    first, second = port_of(a), port_of(b, service=API)
    node.listen(first, second)
    with Client(first.port) as cut, Client(second.port) as kept:
        moved = (port_of(b, port=first.port, service=API),) if how != "gone" else ()
        node.update(second, *moved)
        with pytest.raises(ConnectionResetError):
            cut.rest()
        assert kept.say(b"still") == b"still"
        until(lambda: fails(first.port) == ("served by 'b'" if moved else "refused"), "the port's new state")
    assert node.metric(f"{UPSTREAM}listeners") == 1 + len(moved)


def test_a_port_that_somebody_else_has_is_taken_when_it_is_free_and_others_are_served(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = port_of(Pod("a"), port=other.getsockname()[1])
        free = port_of(Pod("b"), service=API)
        node.update(taken, free)
        until(lambda: node.metric(f"{UPSTREAM}listener_creation_failures_total") >= 2, "tried again")
        with Client(free.port) as client:
            assert client.pod == "b"
        assert node.metric(f"{UPSTREAM}listeners") == 1
    until(lambda: node.metric(f"{UPSTREAM}listeners") == 2, "the other listener")
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


def test_a_status_without_news_costs_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = (port_of(Pod("a")),)
    node.relay.update(Status("nftables", (FamilyStatus(V4, localhost_ports=ports),)))
    until(lambda: node.metric(f"{UPSTREAM}listeners") == 1, "a listener")
    asked: list[object] = []
    monkeypatch.setattr(node.server, "call", lambda *call: asked.append(call))
    node.relay.update(Status("nftables", (FamilyStatus(V4, localhost_ports=ports),)))
    monkeypatch.undo()
    assert not asked


def test_hundreds_of_ports_are_served(node: Node) -> None:
    pod = Pod("a")
    ports = {free_port() for _ in range(300)}
    wanted = [port_of(pod, port=each, service=key(f"s{each}")) for each in ports]
    node.listen(*wanted)
    for each in wanted:
        with Client(each.port) as client:
            assert client.say(b"x") == b"x"
    node.update()
    until(lambda: node.metric(f"{UPSTREAM}listeners") == 0, "no listener")
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


def test_at_the_end_nobody_new_is_served_and_who_is_there_may_finish(node: Node) -> None:
    port = port_of(Pod("a"))
    node.listen(port)
    with Client(port.port) as client:
        node.relay.close()
        node.settle()
        assert fails(port.port) == "refused"
        late = port_of(Pod("b"), service=API)
        node.update(port_of(Pod("a"), port=port.port), late)
        node.settle()
        assert fails(port.port) == "refused"
        draining = threading.Thread(target=node.relay.drain, args=(3600.0,), daemon=True)
        draining.start()
        assert client.say(b"the rest") == b"the rest"
        client.sock.shutdown(socket.SHUT_WR)
        assert client.rest() == b""
    draining.join(PATIENCE)
    assert not draining.is_alive()
    assert fails(late.port) == "refused"


def test_at_the_end_who_goes_on_and_on_is_cut(node: Node) -> None:
    port = port_of(Pod("a"))
    node.listen(port)
    with Client(port.port) as client:
        node.relay.close()
        node.relay.drain(0.05)
        node.server.stop()
        with pytest.raises(ConnectionResetError):
            client.rest()


def test_without_connections_the_end_waits_for_nobody(node: Node) -> None:
    node.listen(port_of(Pod("a")))
    node.relay.close()
    draining = threading.Thread(target=node.relay.drain, args=(3600.0,), daemon=True)
    draining.start()
    draining.join(PATIENCE)
    assert not draining.is_alive()
