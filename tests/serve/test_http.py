"""The HTTP server, over real sockets on loopback."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from proxyd.serve.http import ANY_PATH, Request, Response, Server
from tests.serve.web import HELLO, client, connect, get, listen, raw, read_to_end, wait_until


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server(retry_seconds=0.02)
    server.start()
    yield server
    server.stop()


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
        assert seen == [Request("GET", "/x", "verbose&a=b%20c", f"{connection.host}:{connection.port}")]
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
