"""Listeners of the HTTP server: ports that are taken, removal, wildcards, and the end of the server."""

from __future__ import annotations

import functools
import queue
import socket
import threading
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from proxyd.serve import http as serving
from proxyd.serve.http import Response, Server
from tests.serve.web import HELLO, PATIENCE, connect, get, listen, port_of, raw, read_to_end, wait_until


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(retry_seconds=0.02)
    server.start()
    yield server
    server.stop()


class TestListeners:
    def test_a_taken_port_is_tried_until_it_is_free(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        # A logger of its own, since one that was used before may have been cached with another setup.
        monkeypatch.setattr(serving, "log", structlog.get_logger())
        other = listen(server)
        taken = socket.create_server(("127.0.0.1", 0))
        with capture_logs() as logs:
            listener = server.add_listener("127.0.0.1", taken.getsockname()[1], HELLO)
            wait_until(lambda: listener.failed)
            assert not listener.listening.is_set()
            assert get(other) == (200, b"hello")
            taken.close()
            assert listener.listening.wait(PATIENCE)
            wait_until(lambda: len(logs) == 2)
        assert get(listener) == (200, b"hello")
        warning, success = logs
        assert (warning["event"], warning["log_level"]) == ("cannot listen yet", "warning")
        assert warning["address"] == success["address"] == str(listener)
        assert (success["event"], success["after_failure"]) == ("listening", True)

    def test_an_address_that_is_not_there(self, server: Server) -> None:
        listener = server.add_listener("192.0.2.1", 0, HELLO)
        wait_until(lambda: listener.failed)
        server.remove_listener(listener)

    def test_hard_fail(self, server: Server) -> None:
        failures: queue.Queue[str] = queue.Queue()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            told: list[str] = []
            listener = server.add_listener("127.0.0.1", port, HELLO, failures.put, told.append)
            message = failures.get(timeout=PATIENCE)
        assert told == [message]
        assert message.startswith(f"cannot listen on {listener}: ")
        # Given up, not tried again: the next listener gets the port.
        assert get(listen(server, port=port)) == (200, b"hello")
        assert not listener.listening.is_set()

    def test_an_address_that_is_taken_for_long_is_told_once(self, server: Server) -> None:
        told: list[str] = []
        tries: list[int] = []
        with socket.create_server(("127.0.0.1", 0)) as taken:
            listener = server.add_listener("127.0.0.1", taken.getsockname()[1], HELLO, told=told.append)
            bind = listener.bind
            listener.bind = lambda: (tries.append(1), bind())[1]
            wait_until(lambda: len(tries) > 3)
        assert listener.listening.wait(PATIENCE)
        assert [each.partition(": ")[0] for each in told] == [f"cannot listen on {listener}"]

    def test_removal_closes_the_port_and_its_connections(self, server: Server) -> None:
        other, listener = listen(server), listen(server)
        with connect(listener) as idle, connect(listener) as used:
            used.sendall(raw())
            assert used.recv(4096).endswith(b"hello")
            server.remove_listener(listener)
            assert read_to_end(idle) == b""
            assert read_to_end(used) == b""
        assert not listener.listening.is_set()
        with pytest.raises(ConnectionRefusedError):
            connect(listener)
        server.remove_listener(listener)
        assert get(other) == (200, b"hello")

    def test_a_port_can_be_taken_over_at_once(self, server: Server) -> None:
        listener = listen(server)
        for number in range(20):
            answer = Response(body=str(number).encode())
            server.remove_listener(listener)
            listener = listen(
                server, {"/": functools.partial(lambda answer, _: answer, answer)}, port=port_of(listener)
            )
            assert not listener.failed
            assert get(listener, "/") == (200, answer.body)

    def test_added_and_removed_before_anything_happened(self, server: Server) -> None:
        port = port_of(listen(server, host="127.0.0.2"))
        for _ in range(50):
            server.remove_listener(server.add_listener("127.0.0.1", port, HELLO))
        listener = listen(server, port=port)
        assert not listener.failed
        assert get(listener) == (200, b"hello")

    def test_removed_while_it_is_being_retried(self, server: Server) -> None:
        taken = socket.create_server(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        given_up = server.add_listener("127.0.0.1", port, HELLO)
        wait_until(lambda: given_up.failed)
        server.remove_listener(given_up)
        taken.close()
        listener = listen(server, port=port)
        assert get(listener) == (200, b"hello")
        assert not given_up.listening.is_set()

    def test_hundreds_of_listeners_share_the_thread(self, server: Server) -> None:
        threads = threading.active_count()
        listeners = [server.add_listener("127.0.0.1", 0, HELLO) for _ in range(300)]
        for listener in listeners:
            assert listener.listening.wait(PATIENCE)
        assert threading.active_count() == threads
        for listener in listeners[::30]:
            assert get(listener) == (200, b"hello")

    def test_ipv4_wildcard_is_ipv4_only(self, server: Server) -> None:
        listener = listen(server, host="0.0.0.0")
        assert get(listener) == (200, b"hello")
        if socket.has_dualstack_ipv6():
            with pytest.raises(ConnectionRefusedError):
                connect(listener, "::1")

    @pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
    def test_ipv6(self, server: Server) -> None:
        both, one = listen(server, host="::"), listen(server, host="::1")
        assert get(both) == get(both, host="::1") == get(one, host="::1") == (200, b"hello")
        with pytest.raises(ConnectionRefusedError):
            connect(one)
        assert str(both) == "[::]:0"


class TestLife:
    def test_stop_closes_everything(self) -> None:
        server = Server()
        server.start()
        listener = listen(server)
        with connect(listener) as sock:
            sock.sendall(raw())
            assert sock.recv(4096).endswith(b"hello")
            server.stop()
            assert read_to_end(sock) == b""
        with pytest.raises(ConnectionRefusedError):
            connect(listener)
        assert not any(thread.name == "serve" for thread in threading.enumerate())
        # Others may still be ending their own work.
        server.remove_listener(listener)
        server.add_listener("127.0.0.1", 0, HELLO)
        server.stop()

    def test_not_started(self) -> None:
        server = Server()
        server.stop()
        with pytest.raises(RuntimeError):
            server.add_listener("127.0.0.1", 0, HELLO)
