"""The bytes of a connection to a node port on localhost: all of them, both ways, and how each way ends."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from proxyd.serve import relay
from proxyd.serve.localhost_metrics import UPSTREAM
from tests.program import until
from tests.relays import API, PATIENCE, Client, Node, Pod, port_of


def test_much_is_carried_both_ways_at_once_and_unchanged(relaying: Node) -> None:
    port = port_of(Pod("a"))
    relaying.listen(port)
    sent = b"".join(n.to_bytes(4, "big") for n in range(4_000_000))
    with Client(port.port) as client:
        sender = threading.Thread(target=lambda: (client.sock.sendall(sent), client.sock.shutdown(socket.SHUT_WR)))
        sender.start()
        assert client.rest() == sent
        sender.join()
    until(lambda: relaying.connections() == 0, "the connection has ended")


def test_the_end_of_what_the_client_says_is_told_and_the_answer_still_comes(relaying: Node) -> None:
    heard: list[bytes] = []

    def answer_at_the_end(connection: socket.socket) -> None:
        while data := connection.recv(1 << 16):
            heard.append(data)
        connection.sendall(b"thanks")

    port = port_of(Pod("a", answer_at_the_end))
    relaying.listen(port)
    with Client(port.port) as client:
        client.sock.sendall(b"all of it")
        client.sock.shutdown(socket.SHUT_WR)
        assert client.rest() == b"thanks"
    assert b"".join(heard) == b"all of it"


def test_the_end_of_what_the_endpoint_says_is_told_and_it_still_hears_the_client(relaying: Node) -> None:
    heard: list[bytes] = []
    ended = threading.Event()

    def only_listen(connection: socket.socket) -> None:
        connection.shutdown(socket.SHUT_WR)
        while data := connection.recv(1 << 16):
            heard.append(data)
        ended.set()

    port = port_of(Pod("a", only_listen))
    relaying.listen(port)
    with Client(port.port) as client:
        assert client.rest() == b""
        client.sock.sendall(b"still here")
        client.sock.shutdown(socket.SHUT_WR)
        assert ended.wait(PATIENCE)
    assert b"".join(heard) == b"still here"
    until(lambda: relaying.connections() == 0, "the connection has ended")


def test_an_endpoint_that_breaks_off_is_no_regular_end(relaying: Node) -> None:
    port = port_of(Pod("a", relay.reset))
    relaying.listen(port)
    with pytest.raises(ConnectionResetError), Client(port.port) as client:
        client.rest()


def test_a_client_that_breaks_off_ends_the_connection_to_the_endpoint(relaying: Node) -> None:
    ended = threading.Event()

    def wait(connection: socket.socket) -> None:
        try:
            connection.recv(1)
        except ConnectionResetError:
            ended.set()

    port = port_of(Pod("a", wait))
    relaying.listen(port)
    with Client(port.port) as client:
        relay.reset(client.sock)
        client._file.close()
        assert ended.wait(PATIENCE)
    until(lambda: relaying.connections() == 0, "the connection has ended")


@pytest.mark.parametrize("slow", ["client", "endpoint"])
def test_who_does_not_read_stops_the_other_and_nothing_is_piled_up(relaying: Node, slow: str) -> None:
    sent, stalled = [0], threading.Event()

    def send_without_end(connection: socket.socket) -> None:
        connection.settimeout(0.5)
        try:
            while sent[0] < 1 << 30:
                sent[0] += connection.send(bytes(1 << 16))
        except TimeoutError:
            stalled.set()

    port = port_of(Pod("a", send_without_end if slow == "client" else lambda _: stalled.wait(PATIENCE)))
    relaying.listen(port)
    with Client(port.port) as client:
        if slow == "endpoint":
            send_without_end(client.sock)
        assert stalled.wait(PATIENCE)
        # What the kernel keeps in four sockets; without a stop all of the gigabyte would have gone.
        assert sent[0] < 1 << 26
        # Others are served meanwhile.
        other = port_of(Pod("b"), service=API)
        relaying.update(port, other)
        until(lambda: relaying.metric(f"{UPSTREAM}listeners") == 2, "listeners")
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
