"""What tests of the HTTP server do again and again: listeners, connections, whole requests."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable

from proxyd.serve.http import Listener, Request, Response, Routes, Server

PATIENCE = 10.0


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
