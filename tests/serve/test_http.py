"""The HTTP server, over real sockets on loopback."""

from __future__ import annotations

import functools
import http.client
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from proxyd.serve import http as serving
from proxyd.serve.http import ANY_PATH, Listener, Request, Response, Routes, Server

PATIENCE = 10.0


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(retry_seconds=0.02)
    server.start()
    yield server
    server.stop()


def hello(_request: Request) -> Response:
    return Response(body=b"hello")


HELLO: Routes = {"/hello": hello}


def listen(server: Server, routes: Routes = HELLO, host: str = "127.0.0.1", port: int = 0) -> Listener:
    listener = server.add_listener(host, port, routes)
    assert listener.listening.wait(PATIENCE)
    return listener


def port_of(listener: Listener) -> int:
    assert listener.address is not None
    return listener.address[1]


def connect(listener: Listener, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port_of(listener)), timeout=PATIENCE)


def client(listener: Listener, host: str = "127.0.0.1") -> http.client.HTTPConnection:
    return http.client.HTTPConnection(host, port_of(listener), timeout=PATIENCE)


def get(listener: Listener, path: str = "/hello", host: str = "127.0.0.1") -> tuple[int, bytes]:
    connection = client(listener, host)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def read_to_end(sock: socket.socket) -> bytes:
    """Everything until the server closes; a reset counts as an end too."""
    received = b""
    try:
        while chunk := sock.recv(1 << 16):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def raw(path: str = "/hello", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/{version}", "Host: test", *headers, "", ""]).encode()


class TestAnswers:
    def test_get(self, server: Server) -> None:
        seen: list[Request] = []

        def handler(request: Request) -> Response:
            seen.append(request)
            return Response(503, "application/json", b"{}", (("X-Load-Balancing-Endpoint-Weight", "3"),))

        connection = client(listen(server, {"/x": handler}))
        connection.request("GET", "/x?verbose&a=b%20c")
        response = connection.getresponse()
        assert (response.status, response.reason, response.read()) == (503, "Service Unavailable", b"{}")
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["X-Load-Balancing-Endpoint-Weight"] == "3"
        assert response.headers["Content-Length"] == "2"
        assert response.headers["Date"].endswith("GMT")
        assert seen == [Request("GET", "/x", "verbose&a=b%20c")]
        connection.close()

    def test_head_has_the_length_but_no_body(self, server: Server) -> None:
        with connect(listen(server)) as sock:
            sock.sendall(raw(method="HEAD") + raw("/hello", "Connection: close"))
            answers = read_to_end(sock)
        first, second, body = answers.split(b"\r\n\r\n")
        assert b"Content-Length: 5" in first
        assert second.startswith(b"HTTP/1.1 200")
        assert body == b"hello"

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "get"])
    def test_other_methods_are_refused(self, server: Server, method: str) -> None:
        connection = client(listen(server))
        connection.request(method, "/hello", body=b"x" * 10 if method in ("POST", "PUT") else None)
        response = connection.getresponse()
        assert response.status == 405
        assert response.headers["Allow"] == "GET, HEAD"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        connection.close()

    def test_a_body_is_read_past_or_ends_the_connection(self, server: Server) -> None:
        listener = listen(server)
        with connect(listener) as sock:
            sock.sendall(raw("/hello", "Content-Length: 3") + b"abc" + raw("/hello", "Connection: close"))
            assert read_to_end(sock).count(b"200 OK") == 2
        with connect(listener) as sock:
            sock.sendall(raw("/hello", "Content-Length: 1000000000", method="POST"))
            answer = sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 405")
            assert b"connection: close" in answer.lower()
            sock.shutdown(socket.SHUT_WR)
            assert read_to_end(sock) in (b"", b"Method Not Allowed\n")

    def test_unknown_paths(self, server: Server) -> None:
        listener = listen(server)
        assert get(listener, "/") == (404, b"404 page not found\n")
        assert get(listener, "/hello/")[0] == 404

    def test_a_route_for_any_path(self, server: Server) -> None:
        listener = listen(server, {**HELLO, ANY_PATH: lambda request: Response(body=request.path.encode())})
        assert get(listener) == (200, b"hello")
        assert get(listener, "/some/where") == (200, b"/some/where")

    def test_a_failing_handler_is_500_and_harms_nothing_else(self, server: Server) -> None:
        def fail(_request: Request) -> Response:
            raise LookupError("broken")

        listener = listen(server, {**HELLO, "/fail": fail})
        connection = client(listener)
        for _ in range(2):
            connection.request("GET", "/fail")
            response = connection.getresponse()
            assert (response.status, response.read()) == (500, b"Internal Server Error\n")
        connection.request("GET", "/hello")
        assert connection.getresponse().read() == b"hello"
        connection.close()


class TestConnections:
    def test_keep_alive(self, server: Server) -> None:
        connection = client(listen(server))
        connection.connect()
        sock = connection.sock
        for _ in range(5):
            connection.request("GET", "/hello")
            assert connection.getresponse().read() == b"hello"
            assert connection.sock is sock
        connection.close()

    @pytest.mark.parametrize("request_bytes", [raw("/hello", "Connection: close"), raw(version="1.0")])
    def test_closed_when_the_client_wants_it(self, server: Server, request_bytes: bytes) -> None:
        with connect(listen(server)) as sock:
            sock.sendall(request_bytes)
            assert read_to_end(sock).endswith(b"\r\n\r\nhello")

    def test_pipelined_requests_are_answered_in_order(self, server: Server) -> None:
        listener = listen(server, {ANY_PATH: lambda request: Response(body=request.path.encode())})
        with connect(listener) as sock:
            sock.sendall(b"".join(raw(f"/{number}") for number in range(200)))
            # Half closed: what was asked before is still answered.
            sock.shutdown(socket.SHUT_WR)
            answers = read_to_end(sock).split(b"HTTP/1.1 200 OK")[1:]
        assert [answer.split(b"\r\n\r\n")[1] for answer in answers] == [f"/{number}".encode() for number in range(200)]

    def test_one_byte_at_a_time(self, server: Server) -> None:
        with connect(listen(server)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in raw("/hello", "Connection: close"):
                sock.sendall(bytes([byte]))
            assert read_to_end(sock).endswith(b"hello")

    def test_many_clients_at_once(self, server: Server) -> None:
        listener = listen(server)
        answers: queue.Queue[tuple[int, bytes]] = queue.Queue()

        def ask() -> None:
            for _ in range(20):
                answers.put(get(listener))

        threads = [threading.Thread(target=ask) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers.qsize() == 320
        assert {answers.get() for _ in range(320)} == {(200, b"hello")}

    def test_a_slow_client_does_not_hold_up_others(self, server: Server) -> None:
        listener = listen(server)
        whole = raw("/hello", "Connection: close")
        with connect(listener) as slow:
            slow.sendall(whole[:20])
            assert get(listener) == (200, b"hello")
            slow.sendall(whole[20:])
            assert read_to_end(slow).endswith(b"hello")

    def test_a_client_that_does_not_read_gets_no_more_written(self, server: Server) -> None:
        calls = []

        def large(_request: Request) -> Response:
            calls.append(1)
            return Response(body=b"x" * 2_000_000)

        listener = listen(server, {**HELLO, "/large": large})
        with connect(listener) as sock:
            sock.sendall(raw("/large") * 99 + raw("/large", "Connection: close"))
            wait_until(lambda: len(calls) > 0)
            for _ in range(50):
                assert get(listener) == (200, b"hello")
            assert len(calls) < 50
            received = 0
            while chunk := sock.recv(1 << 20):
                received += len(chunk)
        assert received > 200_000_000
        assert len(calls) == 100

    def test_idle_and_slow_connections_are_closed(self) -> None:
        server = Server(idle_seconds=0.05)
        server.start()
        listener = listen(server)
        with connect(listener) as silent, connect(listener) as slow, connect(listener) as done:
            slow.sendall(raw()[:-2])
            done.sendall(raw())
            assert read_to_end(silent) == b""
            assert read_to_end(slow) == b""
            assert read_to_end(done).endswith(b"hello")
        server.stop()

    def test_the_least_useful_connection_makes_room(self) -> None:
        server = Server(max_connections=3)
        server.start()
        listener = listen(server)
        connections = [connect(listener) for _ in range(3)]
        for sock in (connections[1], connections[0], connections[2]):
            sock.sendall(raw())
            assert sock.recv(4096).endswith(b"hello")
        newcomer = connect(listener)
        newcomer.sendall(raw())
        assert newcomer.recv(4096).endswith(b"hello")
        assert read_to_end(connections[1]) == b""
        for sock in (connections[0], connections[2]):
            sock.sendall(raw())
            assert sock.recv(4096).endswith(b"hello")
        for sock in (*connections, newcomer):
            sock.close()
        server.stop()


class TestHostileInput:
    @pytest.mark.parametrize(
        ("sent", "status"),
        [
            (b"garbage\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100), 400),
            (b"GET /hello HTTP/1.1\r\n\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
            (b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
            (b"GET /hello HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 200_000, 431),
            (b"A" * 1_000_000, 431),
        ],
    )
    def test_is_refused_and_the_connection_closed(self, server: Server, sent: bytes, status: int) -> None:
        listener = listen(server)
        with connect(listener) as sock:
            sock.sendall(sent)
            answer = read_to_end(sock)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"X-Content-Type-Options: nosniff" in answer
        assert get(listener) == (200, b"hello")

    def test_clients_that_vanish(self, server: Server) -> None:
        listener = listen(server)
        for sent in (b"", b"GET /he", raw(), raw() * 100):
            for _ in range(20):
                with connect(listener) as sock:
                    # Closing then resets the connection.
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    sock.sendall(sent)
        assert get(listener) == (200, b"hello")


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
