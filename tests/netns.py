"""A real kernel's nftables and connection tracker, each in a network namespace of its own.

The namespace has no name: a thread that lives for a moment makes it, and the netlink sockets that were opened in that
thread keep it until they are closed. So nothing can be left behind, and the test's own namespace is never touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, TypeVar

from pyroute2 import IPRoute, NFCTSocket
from pyroute2.netlink.nfnetlink.nfctsocket import IPS_CONFIRMED, NFCTAttrTuple

from proxyd.desired.endpoints import Backend
from proxyd.kernel.conntrack import Conntrack
from proxyd.kernel.flows import Newer
from proxyd.kernel.nft.libnftables import LibNftables
from proxyd.kernel.nft.ruleset import Contents
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft.layout import TABLE
from proxyd.nft.objects import Element, Transaction
from proxyd.nft.script import FAMILY_WORD
from tests.fakes.flows import Flow, Given
from tests.fakes.ruleset import FakeRuleset

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}


def why_not() -> str:
    """Why no namespace can be made here; empty where one can."""
    return "" if os.geteuid() == 0 else "needs root: makes a network namespace and writes nftables rules in it"


def leave() -> None:
    """Takes this thread into a new namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "unshare")


class RealRuleset:
    """A ``LibNftables`` in a namespace of its own, that can also be asked for elements as a FakeRuleset can."""

    def __init__(self, also: Callable[[RealRuleset], None] = lambda _: None) -> None:
        """``also`` opens more sockets in the namespace; it is called there."""
        failures: list[Exception] = []
        thread = threading.Thread(target=self._open, args=(failures, also))
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def _open(self, failures: list[Exception], also: Callable[[RealRuleset], None]) -> None:
        from nftables import Nftables  # noqa: PLC0415  (Debian's binding: absent in a plain virtual environment)

        try:
            leave()
            self.library = LibNftables()
            self._lister: Any = Nftables()
            self._lister.set_json_output(True)
            also(self)
        except Exception as error:  # noqa: BLE001  (for the thread that waits)
            failures.append(error)

    def commit(self, transaction: Transaction) -> None:
        self.library.commit(transaction)

    def contents(self, family: Family) -> Contents:
        return self.library.contents(family)

    def other(self, text: str) -> None:
        """Has somebody else write: another library context, with a socket of its own."""
        self._lister.set_json_output(False)
        code, _, error = self._lister.cmd(text)
        self._lister.set_json_output(True)
        assert code == 0, error

    def elements(self, family: Family) -> dict[str, dict[str, str]]:
        """Keys and values of all elements by container, in the words in which they were added."""
        return {each["name"]: elements_of(each) for kind, each in self.listed(family) if kind in ("set", "map")}

    def counters(self, family: Family) -> dict[str, int]:
        """What the named counters have counted."""
        return {each["name"]: each["packets"] for kind, each in self.listed(family) if kind == "counter"}

    def has_counted(self, family: Family, counter: str, packets: int) -> None:
        """Makes a named counter that has counted already."""
        self.other(f"add counter {FAMILY_WORD[family]} {TABLE} {counter} {{ packets {packets} bytes 0 }}")

    def has_passed(self, family: Family, element: Element, packets: int) -> None:
        """Has the counter of an element that is there stand at this."""
        place = f"element {FAMILY_WORD[family]} {TABLE} {element.container}"
        comment = f'comment "{element.comment}"' if element.comment else ""
        counted = f"{element.key} counter packets {packets} bytes 0 {comment} : {element.value}"
        self.other(f"delete {place} {{ {element.key} }}\nadd {place} {{ {counted} }}")

    def rules(self, family: Family) -> dict[str, int]:
        """How many rules each chain has."""
        listed = list(self.listed(family))
        counts = {each["name"]: 0 for kind, each in listed if kind == "chain"}
        for kind, each in listed:
            if kind == "rule":
                counts[each["chain"]] += 1
        return counts

    def listed(self, family: Family) -> Iterator[tuple[str, dict[str, Any]]]:
        """What our table has, each thing with its kind, in nft's JSON."""
        code, output, error = self._lister.cmd(f"list table {FAMILY_WORD[family]} {TABLE}")
        if code:
            assert "No such file" in error, error
            return
        for entry in json.loads(output)["nftables"]:
            yield from entry.items()


def elements_of(container: dict[str, Any]) -> dict[str, str]:
    """Keys and values of a set or map that nft listed."""
    return dict(map(_element, container.get("elem", ())))


def _element(listed: Any) -> tuple[str, str]:
    """One element as nft lists it: a key, or key and value; a key with a comment or counter is wrapped in "elem"."""
    key, value = listed if isinstance(listed, list) else (listed, "")
    return _text(key), _text(value)


def _text(listed: Any) -> str:
    if not isinstance(listed, dict):
        return str(listed)
    ((kind, value),) = listed.items()
    match kind:
        case "elem":
            return _text(value["val"])
        case "concat":
            return " . ".join(map(_text, value))
        case "prefix":
            return f"{value['addr']}/{value['len']}"
        case "goto" | "jump":
            return f"{kind} {value['target']}"
        case _:
            return str(kind)


class MirroredRuleset(FakeRuleset):
    """The in-memory kernel, with a real one that is told the same and must answer the same."""

    def __init__(self) -> None:
        super().__init__()
        self._real = RealRuleset()

    def _carry_out(self, transaction: Transaction) -> None:
        refused = ""
        try:
            self._real.commit(transaction)
        except KernelRefusedError as error:
            refused = str(error)
        try:
            super()._carry_out(transaction)
        except KernelRefusedError as error:
            if not refused:
                raise AssertionError("only the in-memory kernel refuses") from error
            raise
        assert not refused, f"only the real kernel refuses: {refused}"

    def contents(self, family: Family) -> Contents:
        contents = super().contents(family)
        assert contents == self._real.contents(family)
        return contents

    def has_counted(self, family: Family, counter: str, packets: int) -> None:
        super().has_counted(family, counter, packets)
        self._real.has_counted(family, counter, packets)

    def check(self) -> None:
        """Compares everything that both hold."""
        for family in Family:
            assert self.elements(family) == self._real.elements(family)
            assert self.counters(family) == self._real.counters(family)
            table = self.tables.get(family)
            assert self._real.rules(family) == (
                {name: len(chain.rules) for name, chain in table.chains.items()} if table is not None else {}
            )


class RealFlowTable:
    """A ``Conntrack`` in a namespace of its own, which can also be filled and listed as a FakeFlowTable can.

    That is done with pyroute2's own objects, so that one reads what the other wrote. A thread holds the namespace.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "namespace", leave)
        self.conntrack = Conntrack()

    def close(self) -> None:
        self._thread.shutdown()

    def inside(self, call: Callable[..., T], *arguments: Any) -> T:
        """Calls something in the namespace."""
        return self._thread.submit(call, *arguments).result()

    def delete_stale(self, family: Family, frontends: Given, newer: Newer = dict) -> int:
        return self.inside(self.conntrack.delete_stale, family, frontends, newer)

    def add(self, family: Family, *flows: Flow) -> None:
        self.inside(_add_flows, family, flows)

    def listed(self, family: Family) -> set[Flow]:
        return self.inside(list_flows, family)

    def add_address(self, family: Family, address: str) -> None:
        """Gives the loopback interface one more address."""
        length = 32 if family is Family.IPV4 else 128
        self.inside(lambda: _with_routes(lambda routes: routes.addr("add", index=1, address=address, prefixlen=length)))


def _with_routes(use: Callable[[Any], object]) -> None:
    with IPRoute() as routes:
        routes.link("set", index=1, state="up")
        use(routes)


def _add_flows(family: Family, flows: tuple[Flow, ...]) -> None:
    for flow in flows:
        there = NFCTAttrTuple(_AF[family], *_ends(flow.source, flow.destination, flow))
        back = NFCTAttrTuple(_AF[family], *_ends(flow.answers, flow.source, flow))
        with NFCTSocket(nfgen_family=_AF[family]) as tracker:
            zone = {"zone": flow.zone} if flow.zone else {}
            tracker.entry("add", timeout=600, status=IPS_CONFIRMED, tuple_orig=there, tuple_reply=back, **zone)


def _ends(source: Backend, destination: Backend, flow: Flow) -> tuple[Any, ...]:
    return source.address, destination.address, _PROTOCOLS[flow.protocol], source.port, destination.port


def list_flows(family: Family) -> set[Flow]:
    """The flows of this thread's namespace whose protocols have ports."""
    with NFCTSocket(nfgen_family=_AF[family]) as tracker:
        return {flow for entry in tracker.dump() if (flow := _flow(family, entry))}


def _flow(family: Family, entry: Any) -> Flow | None:
    there = NFCTAttrTuple.from_netlink(_AF[family], entry.get_attr("CTA_TUPLE_ORIG"))
    if there.proto not in _PROTOCOLS.values():
        return None
    back = NFCTAttrTuple.from_netlink(_AF[family], entry.get_attr("CTA_TUPLE_REPLY"))
    return Flow(
        source=Backend(there.saddr, there.sport),
        destination=Backend(there.daddr, there.dport),
        answers=Backend(back.saddr, back.sport),
        protocol=next(name for name, number in _PROTOCOLS.items() if number == there.proto),
        zone=entry.get_attr("CTA_ZONE") or 0,
    )


def forget_flows() -> None:
    """Deletes all flows of this thread's namespace."""
    with NFCTSocket() as tracker:
        tracker.flush()


def add_many_flows(flows: Iterable[Flow]) -> None:
    """Adds IPv4 flows to this thread's namespace, a hundred times as fast as one by one."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12) as tracker:
        tracker.settimeout(10)
        remaining = iter(flows)
        while batch := list(islice(remaining, 200)):
            last = len(batch) - 1
            tracker.send(b"".join(_new_flow(flow, acknowledge=n == last) for n, flow in enumerate(batch)))
            answer = tracker.recv(1 << 16)
            assert struct.unpack_from("=i", answer, 16) == (0,), "a flow was refused"


def _new_flow(flow: Flow, *, acknowledge: bool) -> bytes:
    confirmed = struct.pack("!I", 8)
    body = struct.pack("=BBH", socket.AF_INET, 0, 0)
    body += _tuple(1, flow.source, flow.destination, flow) + _tuple(2, flow.answers, flow.source, flow)
    body += _attribute(3, confirmed) + _attribute(7, struct.pack("!I", 600))
    return struct.pack("=IHHII", 16 + len(body), 1 << 8, 0x601 | (4 if acknowledge else 0), 0, 0) + body


def _tuple(kind: int, source: Backend, destination: Backend, flow: Flow) -> bytes:
    addresses = (socket.inet_aton(each.address) for each in (source, destination))
    ports = (each.port.to_bytes(2, "big") for each in (source, destination))
    ip = b"".join(_attribute(n, each) for n, each in enumerate(addresses, 1))
    proto = b"".join(_attribute(n, each) for n, each in enumerate((bytes([_PROTOCOLS[flow.protocol]]), *ports), 1))
    return _attribute(kind | 0x8000, _attribute(1 | 0x8000, ip) + _attribute(2 | 0x8000, proto))


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)
