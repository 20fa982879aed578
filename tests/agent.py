"""The process inside one namespace of a topology: holds it open, runs its echo servers, and asks others.

Started by tests.topology as ``unshare --net python agent.py NAME``. It takes one JSON request a line on standard input and
gives one JSON answer a line on standard output; when its input ends, it ends, and its namespace with it. Standard library
only, so that it starts quickly.
"""

from __future__ import annotations

import errno
import json
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
# What becomes of a connection that nobody answers, by errno.
OUTCOMES = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.ECONNRESET: "reset",
    errno.EPERM: "prohibited",
}
IPPROTO_SCTP = 132
SILENCES = 5


class EchoServer:
    """Answers each connection and each datagram with ``<name> <source address seen>``, in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._selector = selectors.DefaultSelector()
        self._wake, waker = socket.socketpair()
        self._selector.register(waker, selectors.EVENT_READ, "wake")
        threading.Thread(target=self._run, daemon=True).start()

    def serve(self, protocol: str, port: int) -> None:
        """Answers on a port, of both families."""
        sock = socket.socket(socket.AF_INET6, KINDS[protocol])
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::", port))
        if protocol == "tcp":
            sock.listen(512)
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, protocol)
        self._wake.send(b"x")

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock: Any = key.fileobj
                try:
                    self._answer(sock, key.data)
                except OSError:
                    continue  # the client went away, or another event took it

    def _answer(self, sock: socket.socket, kind: str) -> None:
        if kind == "wake":
            sock.recv(64)
        elif kind == "tcp":
            connection, client = sock.accept()
            with connection:
                connection.sendall(self._text(client))
        else:
            _, client = sock.recvfrom(2048)
            sock.sendto(self._text(client), client)

    def _text(self, client: Any) -> bytes:
        return f"{self._name} {client[0].removeprefix('::ffff:')}".encode()


def ask(ip: str, port: int, protocol: str, timeout: float, source_port: int, source_ip: str) -> str:
    """Connects once (UDP: sends one datagram); gives the answer, or what happened instead of one."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, KINDS[protocol]) as sock:
        sock.settimeout(timeout)
        if source_port or source_ip:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((source_ip, source_port))
        if source_port and protocol == "tcp":
            # Ends with a reset, so that the port is free for the next connection.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        try:
            sock.connect((ip, port))
            if protocol == "udp":
                sock.send(b"?")
            return sock.recv(2048).decode() or "closed"
        except TimeoutError:
            return "timeout"
        except OSError as error:
            return OUTCOMES.get(error.errno or 0, str(error))


class Sctp:
    """SCTP by hand, where the kernel has no sockets for it: INIT chunks are sent and seen through raw sockets."""

    def __init__(self) -> None:
        self._seen: socket.socket | None = None

    def listen(self) -> None:
        """Begins to see what arrives."""
        self._seen = socket.socket(socket.AF_INET, socket.SOCK_RAW, IPPROTO_SCTP)

    def seen(self, timeout: float) -> list[Any]:
        """The next packet that arrived, as source address and destination port; empty if there was none."""
        assert self._seen is not None
        self._seen.settimeout(timeout)
        try:
            packet, (source, _) = self._seen.recvfrom(2048)
        except TimeoutError:
            return []
        start = (packet[0] & 15) * 4
        return [source, struct.unpack_from("!H", packet, start + 2)[0]]

    def send(self, ip: str, port: int, source_port: int) -> None:
        """Asks for an association."""
        chunk = struct.pack("!BBHIIHHI", 1, 0, 20, 0x1234, 65535, 1, 1, 1)
        head = struct.pack("!HHI", source_port, port, 0)
        packet = head + struct.pack("<I", crc32c(head + bytes(4) + chunk)) + chunk
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, IPPROTO_SCTP) as sock:
            sock.sendto(packet, (ip, 0))


def crc32c(data: bytes) -> int:
    """The checksum of SCTP (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class ElementWatch:
    """Sees what the kernel reports about nftables of this namespace: when was an element with certain bytes added?"""

    GROUP = 7  # NFNLGRP_NFTABLES
    NEW_ELEMENT = 10 << 8 | 12  # NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWSETELEM

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: list[tuple[float, bytes]] = []
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)  # NETLINK_NETFILTER
        self._socket.bind((0, 1 << self.GROUP - 1))
        threading.Thread(target=self._run, daemon=True).start()

    def added(self, wanted: bytes, since: float, timeout: float) -> float:
        """The time (Unix) of the first addition after ``since``, which is waited for; 0 if it did not come."""

        def found() -> float:
            return next((at for at, message in self._seen if at >= since and wanted in message), 0.0)

        with self._changed:
            return self._changed.wait_for(found, timeout)

    def _run(self) -> None:
        while True:
            data = self._socket.recv(1 << 20)
            at = time.time()
            with self._changed:
                while len(data) >= 16:
                    length, kind = struct.unpack_from("=IH", data)
                    if kind == self.NEW_ELEMENT:
                        self._seen.append((at, data[:length]))
                    data = data[(length + 3) & ~3 :]
                self._changed.notify_all()


class Agent:
    """The requests that can be made; each public method is one."""

    def __init__(self, name: str) -> None:
        self._server = EchoServer(name)
        self._sctp = Sctp()
        self._watch: ElementWatch | None = None

    def sysctl(self, settings: dict[str, str]) -> None:
        """Writes settings of this namespace."""
        for key, value in settings.items():
            with open(f"/proc/sys/net/{key}", "w") as file:
                file.write(value)

    def serve(self, tcp: Iterable[int] = (), udp: Iterable[int] = ()) -> None:
        """Runs echo servers."""
        for protocol, ports in (("tcp", tcp), ("udp", udp)):
            for port in ports:
                self._server.serve(protocol, port)

    def ask(
        self,
        ip: str,
        port: int,
        protocol: str = "tcp",
        count: int = 1,
        timeout: float = 5.0,
        source_port: int = 0,
        source_ip: str = "",
    ) -> list[str]:
        """Connects ``count`` times, one after the other; after five silences the rest is not asked any more."""
        answers: list[str] = []
        while len(answers) < count and answers.count("timeout") < SILENCES:
            answers.append(ask(ip, port, protocol, timeout, source_port, source_ip))
        return answers

    def ask_until(self, ip: str, port: int, answer: str, protocol: str = "tcp", timeout: float = 10.0) -> float:
        """Connects until ``answer`` is the first word of an answer; gives the time of that (Unix), 0 if it never came."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            if ask(ip, port, protocol, 1.0, 0, "").split(" ")[0] == answer:
                return time.time()
        return 0.0

    def watch_elements(self) -> None:
        """Begins to watch the elements of nftables' sets and maps."""
        self._watch = ElementWatch()

    def endpoint_added(self, ip: str, port: int, since: float, timeout: float = 10.0) -> float:
        """When an element was added that leads to this address (IPv4) and port: Unix time, 0 if never."""
        assert self._watch is not None
        return self._watch.added(socket.inet_aton(ip) + struct.pack("!H", port), since, timeout)

    def http_get(self, host: str, port: int, path: str) -> list[Any]:
        """Fetches a page; gives status and body, status 0 where nobody answers."""
        import http.client  # noqa: PLC0415 - slow to import, and only one agent needs it

        connection = http.client.HTTPConnection(host, port, timeout=5)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return [response.status, response.read().decode()]
        except (OSError, http.client.HTTPException) as error:
            return [0, str(error)]
        finally:
            connection.close()

    def sctp_listen(self) -> None:
        """Begins to see SCTP packets."""
        self._sctp.listen()

    def sctp_seen(self, timeout: float) -> list[Any]:
        """See ``Sctp.seen``."""
        return self._sctp.seen(timeout)

    def sctp_send(self, ip: str, port: int, source_port: int) -> None:
        """See ``Sctp.send``."""
        self._sctp.send(ip, port, source_port)


def main() -> None:
    agent = Agent(sys.argv[1])
    print(json.dumps({"result": None}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": getattr(agent, request.pop("do"))(**request)}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
