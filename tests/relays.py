"""Relays of node ports on real sockets of the loopback address, with endpoints and clients that tests can hold on to."""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Callable
from typing import Any, Self

from prometheus_client import CollectorRegistry, generate_latest

from proxyd.desired.endpoints import Backend
from proxyd.desired.localhost import LocalhostPort
from proxyd.model import FAMILIES, Family
from proxyd.serve.http import Server
from proxyd.serve.localhost import HOST, LocalhostRelay
from proxyd.serve.localhost_metrics import OWN, UPSTREAM, LocalhostMetrics
from proxyd.sync.status import FamilyStatus, Status
from tests.build import key
from tests.program import until

V4, V6 = FAMILIES
WEB, API = key("web"), key("api")
PATIENCE = 10.0


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has. None of those that connections get by themselves: one that is free would meet itself."""
    while True:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as each:
            port = random.randrange(20000, 32000)
            try:
                each.bind((host, port))
            except OSError:
                continue
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
