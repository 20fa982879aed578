"""The real connection tracker, over ctnetlink (linux/netfilter/nfnetlink_conntrack.h).

pyroute2 makes the questions; the answers are read here. A tracker may hold hundreds of thousands of flows, and pyroute2's
objects need 42 s for 200,000. Looking at fixed places of their bytes costs 1 s, most of it the kernel's (``_Ends``).
"""

from __future__ import annotations

import errno
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.draining import Flow
from proxyd.desired.endpoints import Backend
from proxyd.desired.flows import Live, is_stale
from proxyd.kernel.addresses import every_address
from proxyd.kernel.flows import FlowsError, Newer
from proxyd.kernel.netlink import ATTRIBUTE, HEADER, KIND, NESTED, NETFILTER, NETFILTER_HEADER, Netlink
from proxyd.model import Family

# Up to this many questions the kernel looks for single frontends or ports, each of them a walk over its table (0.1 s at
# 200,000 flows); for more than that it is asked once for all flows of the protocol (1 s).
QUESTIONS = 4
# Flows deleted with one message to the kernel; its complaints about them must fit into the socket's buffer.
BATCH = 64

_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_NAMES = {socket.IPPROTO_TCP: "tcp", socket.IPPROTO_UDP: "udp"}
_PROTOCOLS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}

# Where the attributes of a message begin.
_START = NETFILTER_HEADER.size
_GET, _DELETE, _GET_STATISTICS = 1 << 8 | 1, 1 << 8 | 2, 1 << 8 | 5
# Attributes of a flow; of each of its two tuples; of the addresses in a tuple (both families) and of its ports.
_ORIGINAL, _REPLY, _STATE, _ID, _ZONE, _TIMES = 1, 2, 4, 12, 18, 20
_STATE_OF_TCP, _TCP_STATE, _BEGAN = 1, 1, 1
_IP, _PROTO = 1, 2
_SOURCES, _DESTINATIONS = (1, 3), (2, 4)
_NUMBER, _SOURCE_PORT, _DESTINATION_PORT = 1, 2, 3

# One end of a flow as the kernel writes it: protocol, address, port.
End = bytes
Spans = dict[int, tuple[int, int]]


class Question(NamedTuple):
    """What the kernel is asked for: flows of a protocol, to a port, to an address (0 and "" are: to any)."""

    protocol: int
    port: int = 0
    address: str = ""


class Conntrack:
    """Implements ``FlowTable`` for the network namespace of the thread that calls it."""

    def delete_stale(self, family: Family, frontends: Mapping[FrontendKey, Live], newer: Newer = dict) -> int:
        """See ``FlowTable``."""
        try:
            stale = _Stale(family)
            stale.learn(frontends)
            # Two sockets, so that flows are deleted while others are still being read, and never all in memory.
            with Netlink(NETFILTER) as asking, Netlink(NETFILTER) as deleting:
                found = (
                    name
                    for question in questions(family, frontends)
                    for messages in asking.batches(_GET, _filtered(family, question), dump=True)
                    for name in stale.names(messages, newer())
                )
                return _delete(deleting, family, found)
        except OSError as error:
            hint = " (CAP_NET_ADMIN is needed)" if error.errno == errno.EPERM else ""
            raise FlowsError(f"{error.strerror or error}{hint}") from error

    def answered_by(self, family: Family, frontend: FrontendKey) -> Counter[Backend]:
        """How many tracked flows to a frontend (with an address) each endpoint answers. Raises ``FlowsError``.

        A flow that is not translated is answered by the frontend's own address.
        """
        ends, wanted = _Ends(4 if family is Family.IPV4 else 16), _end(_AF[family], *frontend)
        found: Counter[Backend] = Counter()
        try:
            with Netlink(NETFILTER) as asking:
                for question in questions(family, (frontend,)):
                    for message in asking.ask(_GET, _filtered(family, question), dump=True):
                        with suppress(KeyError):
                            destination, answers = ends.read(message)
                            found[_backend(answers)] += destination == wanted
        except OSError as error:
            hint = " (CAP_NET_ADMIN is needed)" if error.errno == errno.EPERM else ""
            raise FlowsError(f"{error.strerror or error}{hint}") from error
        return +found

    def translated(self, family: Family, frontends: Iterable[FrontendKey]) -> Iterator[Flow]:
        """The tracked flows to these frontends that are answered by somebody else, as the kernel lists them.

        Never all in memory. A frontend without an address stands for its port on every local address that no frontend
        has for itself. Raises ``FlowsError``.
        """
        keys = tuple(frontends)
        ends, wanted = _Ends(4 if family is Family.IPV4 else 16), _ends_of(family, keys)
        try:
            with Netlink(NETFILTER) as asking:
                for question in questions(family, keys):
                    for message in asking.ask(_GET, _filtered(family, question), dump=True):
                        with suppress(KeyError):
                            destination, answers = ends.read(message)
                            frontend = wanted.get(destination)
                            if frontend is not None and answers != destination:
                                yield _tracked(message, frontend, _backend(answers))
        except OSError as error:
            hint = " (CAP_NET_ADMIN is needed)" if error.errno == errno.EPERM else ""
            raise FlowsError(f"{error.strerror or error}{hint}") from error


def load_tracker() -> None:
    """Has the kernel load the connection tracker where that is a module: before the first rule that needs it, nobody did.

    Asking it anything does that (nfnetlink requests the module of a subsystem); what it answers does not matter.
    """
    with Netlink(NETFILTER) as asking, suppress(OSError):
        any(asking.ask(_GET_STATISTICS, NETFILTER_HEADER.pack(socket.AF_UNSPEC, 0, 0)))


def questions(family: Family, frontends: Iterable[FrontendKey]) -> list[Question]:
    """What to ask the kernel for, to see all flows of these frontends: as few flows as few questions can bring.

    Never for an IPv6 address: up to 6.18 at least, the kernel takes the comparison the wrong way round and gives the
    flows to all other addresses (ctnetlink_filter_match_tuple).
    """
    keys = [(_PROTOCOLS[key.protocol], key.port, key.address) for key in frontends]
    exact = {Question(*each) for each in keys}
    # A port on any address includes the port on one.
    single = exact - {each for each in exact if each.address and each._replace(address="") in exact}
    ports = {Question(*each[:2]) for each in keys}
    for asked in (single, ports) if family is Family.IPV4 else (ports,):
        if len(asked) <= QUESTIONS:
            return sorted(asked)
    return sorted({Question(each[0]) for each in keys})


class _Ends:
    """Reads both ends of a flow out of a message: where it was sent, and where its answers come from.

    Nearly all messages have the same two tuples at the same place; looking there costs a tenth of reading attributes.
    """

    def __init__(self, address_size: int) -> None:
        length = 44 + 2 * address_size
        first, second = _START, _START + length
        self._heads = (
            (slice(first, first + 4), ATTRIBUTE.pack(length, _ORIGINAL | NESTED)),
            (slice(second, second + 4), ATTRIBUTE.pack(length, _REPLY | NESTED)),
        )
        source, destination, number, source_port, destination_port = (
            12,
            16 + address_size,
            24 + 2 * address_size,
            32 + 2 * address_size,
            40 + 2 * address_size,
        )
        self._sent = _cuts(first, (number, 1), (destination, address_size), (destination_port, 2))
        self._answered = _cuts(second, (number, 1), (source, address_size), (source_port, 2))

    def read(self, message: bytes) -> tuple[End, End]:
        """Raises ``KeyError`` where there is no such thing: the protocol has no ports."""
        (first, original), (second, reply) = self._heads
        if message[first] == original and message[second] == reply:
            a, b, c = self._sent
            d, e, f = self._answered
            return message[a] + message[b] + message[c], message[d] + message[e] + message[f]
        parts = _spans(message, _START, len(message))
        return (
            _read_end(message, parts[_ORIGINAL], _DESTINATIONS, _DESTINATION_PORT),
            _read_end(message, parts[_REPLY], _SOURCES, _SOURCE_PORT),
        )


def _cuts(start: int, *each: tuple[int, int]) -> tuple[slice, ...]:
    return tuple(slice(start + offset, start + offset + size) for offset, size in each)


class _Stale:
    """Picks the stale flows out of what the kernel tells. Old kernels (before 5.8) tell more than they are asked for."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._ends = _Ends(4 if family is Family.IPV4 else 16)
        self._live: dict[End, frozenset[End]] = {}
        # Frontends with an address and an endpoint. One without any may be a node port on every address.
        self._single: set[End] = set()

    def learn(self, frontends: Mapping[FrontendKey, Live]) -> None:
        """Takes states of frontends; they replace older ones."""
        af = _AF[self._family]
        # Frontends of one Service share their endpoints.
        packed: dict[tuple[str, Live], frozenset[End]] = {}
        for key, live in frontends.items():
            if (key.protocol, live) not in packed:
                packed[key.protocol, live] = frozenset(_end(af, b.address, key.protocol, b.port) for b in live)
            if key.address:
                self._live[end := _end(af, *key)] = packed[key.protocol, live]
                (self._single.add if live else self._single.discard)(end)
        if anywhere := [key for key in frontends if not key.address]:
            for address in every_address(self._family):
                for key in anywhere:
                    if (end := _end(af, address, key.protocol, key.port)) not in self._single:
                        self._live[end] = packed[key.protocol, frontends[key]]

    def names(self, messages: Iterable[bytes], newer: Mapping[FrontendKey, Live]) -> Iterator[bytes]:
        """What the kernel knows each stale flow by."""
        if newer:
            self.learn(newer)
        return filter(None, map(self._name, messages))

    def _name(self, message: bytes) -> bytes:
        """Empty for a flow that may stay."""
        try:
            destination, answers = self._ends.read(message)
        except KeyError:
            return b""
        live = self._live.get(destination)
        if live is None or not is_stale(_NAMES.get(destination[0], ""), destination, answers, live):
            return b""
        # Tuple, zone and id as the kernel wrote them: no other flow can be meant, not even a later one with this tuple.
        parts = _spans(message, _START, len(message))
        return b"".join(_padded(message[slice(*parts[kind])]) for kind in (_ORIGINAL, _ZONE, _ID) if kind in parts)


def _filtered(family: Family, question: Question) -> bytes:
    """The body of a dump that brings only the flows asked for (kernel 5.8 or later)."""
    # Costs 11 MB, and there may be no UDP Service.
    from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, nfct_msg  # noqa: PLC0415

    flows = NFCTAttrTuple(
        _AF[family], daddr=question.address or None, proto=question.protocol, dport=question.port or None
    )
    flows.attrs()  # works the flags out
    request = nfct_msg.create_from(tuple_orig=flows, cta_filter={"attrs": [["CTA_FILTER_ORIG_FLAGS", flows.flags]]})
    request["nfgen_family"] = _AF[family]
    request.encode()
    return bytes(request.data)[HEADER.size :]


def _delete(deleting: Netlink, family: Family, names: Iterator[bytes]) -> int:
    """Deletes flows; gives how many of them there still were. What is refused keeps no other from being deleted."""
    deleted = 0
    refused: OSError | None = None
    about = NETFILTER_HEADER.pack(_AF[family], 0, 0)
    while batch := [about + name for name in islice(names, BATCH)]:
        deleted += len(batch)
        for error in deleting.order(_DELETE, batch):
            deleted -= 1
            if error.errno != errno.ENOENT:
                refused = error
    if refused is not None:
        raise refused
    return deleted


def _spans(message: bytes, start: int, end: int) -> Spans:
    """Where each attribute between two offsets begins and ends."""
    found = {}
    while start + ATTRIBUTE.size <= end:
        length, kind = ATTRIBUTE.unpack_from(message, start)
        if length < ATTRIBUTE.size:
            break
        found[kind & KIND] = (start, start + length)
        start += length + 3 & ~3
    return found


def _inside(message: bytes, span: tuple[int, int]) -> Spans:
    return _spans(message, span[0] + ATTRIBUTE.size, span[1])


def _value(message: bytes, span: tuple[int, int]) -> bytes:
    return message[span[0] + ATTRIBUTE.size : span[1]]


def _read_end(message: bytes, span: tuple[int, int], addresses: tuple[int, int], port: int) -> End:
    """One end of a tuple. Raises ``KeyError`` where it has no such thing."""
    parts = _inside(message, span)
    ip, proto = _inside(message, parts[_IP]), _inside(message, parts[_PROTO])
    address = next((_value(message, ip[kind]) for kind in addresses if kind in ip), b"")
    return _value(message, proto[_NUMBER]) + address + _value(message, proto[port])


def _ends_of(family: Family, keys: Iterable[FrontendKey]) -> dict[End, FrontendKey]:
    """The packed destinations of frontends; an address of its own goes before a node port on every address."""
    af = _AF[family]
    anywhere = [key for key in keys if not key.address]
    found = {_end(af, each, key.protocol, key.port): key for each in every_address(family) for key in anywhere}
    return found | {_end(af, *key): key for key in keys if key.address}


def _tracked(message: bytes, frontend: FrontendKey, answers: Backend) -> Flow:
    parts = _spans(message, _START, len(message))
    state, began = 0, None
    if _STATE in parts and _STATE_OF_TCP in (info := _inside(message, parts[_STATE])):
        state = _value(message, _inside(message, info[_STATE_OF_TCP])[_TCP_STATE])[0]
    if _TIMES in parts:
        began = int.from_bytes(_value(message, _inside(message, parts[_TIMES])[_BEGAN])) / 1e9
    return Flow(frontend, answers, state, began)


def _backend(end: End) -> Backend:
    af = socket.AF_INET if len(end) == 7 else socket.AF_INET6
    return Backend(socket.inet_ntop(af, end[1:-2]), int.from_bytes(end[-2:], "big"))


def _padded(attribute: bytes) -> bytes:
    return attribute + bytes(-len(attribute) % 4)


def _end(af: int, address: str, protocol: str, port: int) -> End:
    return bytes([_PROTOCOLS[protocol]]) + socket.inet_pton(af, address) + port.to_bytes(2, "big")
