"""Segments that conntrack finds out of its window: an answer that is not translated makes the client reset its connection.

Each connection lives through one such segment, made by hand on the endpoint's side, or it does not.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from proxyd.kernel import host as host_facts
from proxyd.model import Endpoint, Family, SlicePort
from proxyd.nft.layout import INVALID_DROPPED, TRANSLATED
from tests import build
from tests.cluster.cases import FAMILIES, Target, service, slices, target
from tests.cluster.namespaces import inside
from tests.cluster.rules import Rules
from tests.program import until
from tests.topology import ADDRESSES, NODE, V4, Host, Topology

PORT = 9000
# What Linux calls them; Python has no names for these.
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ, OFF_WITHOUT_PROBE = 19, 20, 21, -1
RECEIVED, SENT = 1, 2
IPV6_CHECKSUM = 7
OUT_OF_WINDOW = 1 << 30
PATIENCE = 10.0


class Way(NamedTuple):
    """Who connects to which frontend ("" for the endpoint itself), who answers, and who would reset ("": the client)."""

    client: str
    frontend: str
    server: str
    resetting: str = ""


# By the hook of the node that the answers pass.
WAYS = {
    "forward": Way("pod2", "cluster ip", "pod3"),
    "input, masqueraded": Way("client1", "node port", "pod3", resetting="node"),
    "input, from the node": Way("node", "cluster ip", "pod1"),
    "output": Way("client1", "cluster ip", "node"),
}
EVERY_WAY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


class Connection:
    """An open connection through the node; both ends are held here."""

    def __init__(self, world: Topology, family: Family, way: Way) -> None:
        self._server_host = world.hosts[way.server]
        address = ADDRESSES[way.server][family]
        to = target(way.frontend, family) if way.frontend else Target(address, PORT)
        kind = socket.AF_INET if family is V4 else socket.AF_INET6
        with inside(self._server_host, lambda: socket.create_server((address, PORT), family=kind)) as listening:
            self.client = inside(world.hosts[way.client], lambda: socket.create_connection(to, PATIENCE))
            self.server, _ = listening.accept()
        self.server.settimeout(PATIENCE)
        assert self.works(), "the connection does not work to begin with"

    def works(self) -> bool:
        """Whether bytes get through both ways."""
        for sender, receiver in ((self.client, self.server), (self.server, self.client)):
            sender.sendall(b"x")
            if receiver.recv(1) != b"x":
                return False
        return True

    def is_reset(self) -> bool:
        """Waits until the server's end has something to say, which must be that it was reset."""
        readable, _, _ = select.select([self.server], [], [], PATIENCE)
        try:
            return bool(readable) and self.server.recv(1) == b"never sent"
        except ConnectionResetError:
            return True

    def send_out_of_window(self) -> None:
        """A segment of this connection, as from the server, far beyond what the client can have asked for."""
        inside(self._server_host, self._send)

    def _send(self) -> None:
        here, there = self.server.getsockname(), self.server.getpeername()
        sequence = (_sequence(self.server, SENT) + OUT_OF_WINDOW) % 2**32
        acknowledged = _sequence(self.server, RECEIVED)
        offset_and_flags = 5 << 12 | 0x18  # ACK, PSH
        header = struct.pack("!HHIIHHHH", here[1], there[1], sequence, acknowledged, offset_and_flags, 1000, 0, 0)
        with socket.socket(self.server.family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
            raw.bind((here[0], 0))
            segment = header + b"stray"
            if self.server.family == socket.AF_INET6:
                raw.setsockopt(socket.IPPROTO_IPV6, IPV6_CHECKSUM, 16)
            else:
                segment = _with_checksum(segment, here[0], there[0])
            # A host is told when it drops its own segment.
            with contextlib.suppress(PermissionError):
                raw.sendto(segment, (there[0], 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.server.close()


def _sequence(end: socket.socket, queue: int) -> int:
    """The next number that an end sends, or expects."""
    end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
    number = end.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ)
    end.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF_WITHOUT_PROBE)
    return number % 2**32


def _with_checksum(segment: bytes, source: str, destination: str) -> bytes:
    pseudo = socket.inet_aton(source) + socket.inet_aton(destination) + struct.pack("!HH", 6, len(segment))
    words = pseudo + segment + bytes(len(segment) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return segment[:16] + struct.pack("!H", ~total & 0xFFFF) + segment[18:]


@pytest.fixture(autouse=True)
def strict(world: Topology) -> Iterator[None]:
    yield
    _set_liberal(world.node, "0")


def _set_liberal(node: Host, value: str) -> None:
    node.call("sysctl", settings={"netfilter/nf_conntrack_tcp_be_liberal": value})


def serve(rules: Rules, way: Way, **settings: Any) -> None:
    port = (SlicePort("http", "tcp", PORT),)
    if way.server == "node":
        objects = [
            build.endpoint_slice(
                "web", Endpoint(NODE[each], node=build.NODE), name=f"web-{each}", family=each, ports=port
            )
            for each in Family
        ]
    else:
        objects = list(slices(way.server, ports=port))
    rules.serve(service(), *objects, **settings)


def dropped(rules: Rules, family: Family) -> int:
    word = "ip" if family is V4 else "ip6"
    listed = rules.node.run("nft", "list", "counter", word, "proxyd", INVALID_DROPPED).stdout
    return int(listed.split("packets ")[1].split()[0])


def resets_sent(world: Topology, way: Way) -> int:
    """How many resets the host that would make one has sent, in both families."""
    text = inside(world.hosts[way.resetting or way.client], Path("/proc/thread-self/net/snmp").read_text)
    names, values = (line.split() for line in text.splitlines() if line.startswith("Tcp:"))
    return int(values[names.index("OutRsts")])


@EVERY_WAY
@FAMILIES
def test_a_connection_survives_a_segment_out_of_window(world: Topology, rules: Rules, family: Family, way: Way) -> None:
    serve(rules, way)
    with Connection(world, family, way) as connection:
        before = resets_sent(world, way)
        connection.send_out_of_window()
        until(lambda: dropped(rules, family) >= 1, "the segment is dropped")
        assert connection.works()
        # Not even a reset was made, which would have been dropped in turn.
        assert resets_sent(world, way) == before


@EVERY_WAY
@FAMILIES
def test_without_the_drop_such_a_segment_has_the_client_reset_it(
    world: Topology, rules: Rules, family: Family, way: Way
) -> None:
    serve(rules, way, drop_invalid=False)
    with Connection(world, family, way) as connection:
        before = resets_sent(world, way)
        connection.send_out_of_window()
        assert connection.is_reset()
        assert resets_sent(world, way) == before + 1
        assert dropped(rules, family) == 0


@EVERY_WAY
@FAMILIES
def test_where_conntrack_is_liberal_it_survives_without_the_drop(
    world: Topology, rules: Rules, family: Family, way: Way
) -> None:
    _set_liberal(rules.node, "1")
    assert inside(rules.node, host_facts.tcp_be_liberal)
    serve(rules, way, drop_invalid=False)
    with Connection(world, family, way) as connection:
        connection.send_out_of_window()
        assert connection.works()
        assert connection.works()


@FAMILIES
def test_what_was_not_translated_here_is_let_through(world: Topology, rules: Rules, family: Family) -> None:
    """As with routes that lead there and back another way, where conntrack has never seen the beginning."""
    serve(rules, WAYS["forward"])
    with Connection(world, family, Way("pod2", "", "pod4")) as connection:
        assert connection.works()
        connection.send_out_of_window()
        assert connection.works()
        assert dropped(rules, family) == 0


@FAMILIES
def test_both_ends_of_what_was_translated_are_remembered_through_everything_written_anew(
    world: Topology, rules: Rules, family: Family
) -> None:
    way = WAYS["forward"]
    serve(rules, way)
    with Connection(world, family, way) as connection:
        rules.write_anew()
        rules.cleanup()
        word = "ip" if family is V4 else "ip6"
        listed = rules.node.run("nft", "list", "set", word, "proxyd", TRANSLATED).stdout
        address, port = target(way.frontend, family)
        assert f"{address} . {port} " in listed
        assert f"{ADDRESSES[way.server][family]} . {PORT} " in listed
        connection.send_out_of_window()
        until(lambda: dropped(rules, family) == 1, "the segment is dropped")
        assert connection.works()
