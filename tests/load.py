"""Steady connections from one namespace, or servers for connections that are held; a program of its own, like agent.py.

``load.py ask JSON`` connects to all targets over and over until its input ends, then prints what came of it as JSON; for
each line of input it says ``done`` once every target has been tried some more.
``load.py serve PORT`` echoes, on connections that stay open, until its input ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections import Counter

# Seconds between two tries of one target.
PAUSE = 0.03
TIMEOUT = 5.0
# Tries that are some.
MORE = 10


def family_of(ip: str) -> int:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


def new_connection(ip: str, port: int) -> str:
    """Connects, and gives who answers."""
    with socket.create_connection((ip, port), TIMEOUT) as made:
        return made.recv(2048).decode().split(" ")[0] or "closed"


def datagram(ip: str, port: int) -> str:
    """Sends a datagram from a new port, and gives who answers."""
    with socket.socket(family_of(ip), socket.SOCK_DGRAM) as made:
        made.settimeout(TIMEOUT)
        made.connect((ip, port))
        made.send(b"?")
        return made.recv(2048).decode().split(" ")[0]


class Held:
    """A connection on which data goes to and fro."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None

    def echo(self, ip: str, port: int) -> str:
        """Sends and receives once more."""
        if self._connection is None:
            self._connection = socket.create_connection((ip, port), TIMEOUT)
        self._connection.sendall(b"x")
        return "echoed" if self._connection.recv(1) == b"x" else "closed"


class Load:
    """All targets, each from a thread of its own, all counting."""

    def __init__(self, targets: list[tuple[str, str, int]]) -> None:
        self._targets = targets
        self._enough = threading.Event()
        self._counts: dict[str, Counter[str]] = {" ".join(map(str, target)): Counter() for target in targets}

    def run(self) -> dict[str, dict[str, int]]:
        threads = [threading.Thread(target=self._repeat, args=target) for target in self._targets]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        for _ in sys.stdin:
            self._wait_more()
            print("done", flush=True)
        self._enough.set()
        for thread in threads:
            thread.join()
        return {target: dict(counts) for target, counts in self._counts.items()}

    def _wait_more(self) -> None:
        """Waits until each target has been tried some more."""
        wanted = {target: counts.total() + MORE for target, counts in self._counts.items()}
        while any(self._counts[target].total() < count for target, count in wanted.items() if self._goes_on(target)):
            time.sleep(PAUSE)

    def _goes_on(self, target: str) -> bool:
        return not (target.startswith("held") and any(" at " in outcome for outcome in self._counts[target]))

    def _repeat(self, kind: str, ip: str, port: int) -> None:
        one = {"tcp": new_connection, "udp": datagram, "held": Held().echo}[kind]
        counts = self._counts[f"{kind} {ip} {port}"]
        while not self._enough.wait(PAUSE):
            try:
                counts[one(ip, port)] += 1
            except OSError as error:
                counts[f"{type(error).__name__} at {time.time():.3f}"] += 1
                if kind == "held":
                    return


def serve(port: int) -> None:
    with socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        print("ready", flush=True)
        threading.Thread(target=_accept, args=(server,), daemon=True).start()
        sys.stdin.read()


def _accept(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_echo, args=(connection,), daemon=True).start()


def _echo(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionError):
        while data := connection.recv(2048):
            connection.sendall(data)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        print(json.dumps(Load([tuple(each) for each in json.loads(sys.argv[2])]).run()), flush=True)
