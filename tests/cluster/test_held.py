"""TCP connections that stay open while their endpoint goes: reset only if that is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, TextIO

import pytest

from proxyd.model import Family
from tests.cluster.cases import FAMILIES, VIP, Target
from tests.cluster.flows import DEAD, READY, TCP, Bench, service, slices
from tests.program import until
from tests.topology import Topology

# Holds a connection: says so, and after each line of its input sends a byte and says what became of it.
HOLD = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 5) as held:
    held.settimeout(5)
    print("connected", flush=True)
    for _ in sys.stdin:
        try:
            held.sendall(b"x")
            print("echoed" if held.recv(1) == b"x" else "closed", flush=True)
        except OSError as error:
            print(type(error).__name__, flush=True)
"""
ECHO = """
import socket, threading
def echo(each):
    while data := each.recv(4096):
        each.sendall(data)
with socket.create_server(("::", 8090), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=echo, args=(server.accept()[0],), daemon=True).start()
"""


class Held:
    """A connection from client1 to an echo server in pod1 that stays open, as a program of its own on each side."""

    def __init__(self, world: Topology) -> None:
        self._world = world
        self._programs: list[subprocess.Popen[str]] = []
        assert self._start("pod1", ECHO).readline() == "listening\n"

    def _start(self, host: str, script: str, *arguments: str) -> TextIO:
        words = self._world.hosts[host].command(sys.executable, "-c", script, *arguments)
        program = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._programs.append(program)
        assert program.stdout is not None
        return program.stdout

    def connect(self, to: Target) -> None:
        """Connects, as soon as the Service is served."""

        def connected() -> bool:
            self._said = self._start("client1", HOLD, to.address, str(to.port))
            return self._said.readline() == "connected\n"

        until(connected, f"{to} is served")

    def send(self) -> str:
        """Sends a byte; gives what became of it."""
        stdin = self._programs[-1].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()
        return self._said.readline().strip()

    def close(self) -> None:
        for program in self._programs:
            program.kill()
            program.communicate()


@pytest.fixture
def held(world: Topology) -> Iterator[Held]:
    held = Held(world)
    yield held
    held.close()


def web(**pods: dict[str, bool]) -> list[dict[str, Any]]:
    """A TCP Service in front of the echo server, and its slices."""
    built = slices(**pods)
    for each in built:
        each["ports"] = [{"name": "web", "port": 8090}]
    return [service(ports=[TCP], type="ClusterIP"), *built]


@FAMILIES
def test_a_connection_to_an_endpoint_in_no_slice_is_reset_if_asked_for(
    bench: Bench, held: Held, family: Family
) -> None:
    bench.put(*web(pod1=READY))
    bench.start("--feature-gates", "ResetGoneTCP=true")
    held.connect(Target(VIP[family], 80))
    assert held.send() == "echoed"
    bench.put_and_wait(family, *web(pod1=DEAD | {"terminating": True}, pod3=READY))
    assert held.send() == "echoed", "terminating endpoints keep their connections"
    bench.put_and_wait(family, *web(pod3=READY))
    assert held.send() == "ConnectionResetError"


@FAMILIES
def test_a_connection_to_an_endpoint_in_no_slice_is_left_alone_otherwise(
    bench: Bench, held: Held, family: Family
) -> None:
    bench.start()
    bench.put(*web(pod1=READY))
    held.connect(Target(VIP[family], 80))
    bench.put(*web(pod3=READY))
    until(lambda: {each.by for each in bench.world.ask("client1", VIP[family], 80)} == {"refused"}, "the change is in")
    assert held.send() == "echoed"
