"""What the rules have counted, read from the kernel without the library: its text of 50,000 elements would cost 180 MB.

Answers are read as they come, so memory does not follow their number.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterable
from itertools import count
from typing import NamedTuple, Protocol

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.kernel.netlink import NETFILTER, Attributes, Netlink, attribute, attributes, nested, text, walk
from proxyd.kernel.nft import nfnetlink
from proxyd.model import Family
from proxyd.nft.layout import LOCAL_BASE, TABLE, Layout, generation_of

_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_NUMBERS = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP, "sctp": socket.IPPROTO_SCTP}
_NAMES = {number: name for name, number in _NUMBERS.items()}
# Keys of elements that are asked for with one message.
_AT_ONCE = 32
# Attributes (linux/netfilter/nf_tables.h): of questions about sets, of elements, of values, of expressions, of objects.
_TABLE, _NAME, _ELEMENTS = 1, 2, 3
_KEY, _DATA, _USER_DATA, _EXPRESSION = 1, 2, 6, 7
_VALUE, _VERDICT, _VERDICT_CHAIN = 1, 2, 2
_EXPRESSION_DATA, _COUNTER_PACKETS = 2, 2
_OBJECT_TYPE, _OBJECT_DATA, _OBJECT_COUNTER = 3, 4, 1
_LIST_ELEMENT = 1


class CountersError(Exception):
    """The kernel's counters cannot be read now; the text says why."""


class FrontendCount(NamedTuple):
    """Connections that an element of a frontend has counted since it was added.

    ``leads_to`` is the chain that it leads to; ``comment`` is the name of the ServicePort, cut at 128 bytes.
    """

    generation: int
    key: FrontendKey
    leads_to: str
    comment: str
    packets: int


class EndpointCount(NamedTuple):
    """Connections that an element of a frontend's list of endpoints has counted since it was added.

    ``place`` is its index in the maps.
    """

    generation: int
    key: FrontendKey
    place: int
    endpoint: Backend
    packets: int


class Counters(Protocol):
    """Counters of one network namespace. Every method raises ``CountersError``; not for several threads at once."""

    def generations(self, family: Family) -> frozenset[int]:
        """The generations that there are; old ones stay for a while."""

    def frontends(self, family: Family, generation: int, take: Callable[[FrontendCount], None]) -> bool:
        """Hands each counter of a frontend over; False: there were changes meanwhile, so some may be missing."""

    def endpoints(self, family: Family, generation: int, key: FrontendKey, most: int) -> list[EndpointCount]:
        """The counters of a frontend's endpoints, at most so many of each list; none for ClientIP affinity."""

    def named(self, family: Family, name: str) -> int:
        """How many packets a named counter has counted; 0 where there is no such counter."""


class NetlinkCounters:
    """The kernel's counters in the namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._netlink = Netlink(NETFILTER)

    def close(self) -> None:
        """Closes the socket."""
        self._netlink.close()

    def generations(self, family: Family) -> frozenset[int]:
        """See ``Counters``."""
        try:
            answers = self._netlink.ask(nfnetlink.GET_SET, nfnetlink.about(_AF[family], TABLE), dump=True)
            sets = [attributes(each, nfnetlink.START) for each in answers]
        except FileNotFoundError:
            return frozenset()
        except OSError as error:
            raise _told(error) from error
        found = (generation_of(text(each[_NAME])) for each in sets if text(each[_TABLE]) == TABLE)
        return frozenset(each for each in found if each is not None)

    def frontends(self, family: Family, generation: int, take: Callable[[FrontendCount], None]) -> bool:
        """See ``Counters``."""
        whole = True
        layout = Layout(family, generation, 0)
        for name in (layout.name("service-ips"), layout.name("service-nodeports")):
            try:
                question = nfnetlink.about(_AF[family], TABLE, name)
                for answer in self._netlink.ask(nfnetlink.GET_ELEMENT, question, dump=True):
                    for element in _elements(answer):
                        take(_frontend_count(family, generation, element))
            except FileNotFoundError:
                whole = False  # this generation has gone meanwhile
            except OSError as error:
                raise _told(error) from error
            whole = whole and self._netlink.whole
        return whole

    def endpoints(self, family: Family, generation: int, key: FrontendKey, most: int) -> list[EndpointCount]:
        """See ``Counters``."""
        container = Layout(family, generation, 0).endpoints(key.protocol, node_port=not key.address)
        place = (socket.inet_pton(_AF[family], key.address) if key.address else b"") + struct.pack("!Hxx", key.port)
        found = []
        for base in (0, LOCAL_BASE):
            for start in count(base, _AT_ONCE):
                wanted = range(start, min(start + _AT_ONCE, base + most))
                counts = self._get(family, container, [place + struct.pack("=I", index) for index in wanted])
                found += [
                    EndpointCount(generation, key, index, _backend(family, element), _packets(element))
                    for index, element in zip(wanted, counts, strict=False)
                ]
                if len(counts) < _AT_ONCE:
                    break
        return found

    def named(self, family: Family, name: str) -> int:
        """See ``Counters``."""
        counter = attribute(_OBJECT_TYPE, struct.pack("!I", _OBJECT_COUNTER))
        try:
            for answer in self._netlink.ask(nfnetlink.GET_OBJECT, nfnetlink.about(_AF[family], TABLE, name) + counter):
                return _count(attributes(answer, nfnetlink.START)[_OBJECT_DATA])
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _told(error) from error
        return 0

    def _get(self, family: Family, container: str, keys: Iterable[bytes]) -> list[Attributes]:
        """The elements of these keys up to the first that is not there."""
        wanted = [nested(_LIST_ELEMENT, nested(_KEY, attribute(_VALUE, each))) for each in keys]
        if not wanted:
            return []
        found: list[Attributes] = []
        question = nfnetlink.about(_AF[family], TABLE, container) + nested(_ELEMENTS, *wanted)
        try:
            for answer in self._netlink.ask(nfnetlink.GET_ELEMENT, question):
                found += _elements(answer)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _told(error) from error
        return found


def _told(error: OSError) -> CountersError:
    hint = " (CAP_NET_ADMIN is needed)" if error.errno == errno.EPERM else ""
    return CountersError(f"{error.strerror or error}{hint}")


def _elements(answer: bytes) -> Iterable[Attributes]:
    elements = attributes(answer, nfnetlink.START).get(_ELEMENTS, b"")
    return [attributes(element) for _, element in walk(elements)]


def _frontend_count(family: Family, generation: int, element: Attributes) -> FrontendCount:
    key = attributes(element[_KEY])[_VALUE]
    # Each part of a key takes whole words: address, protocol, port.
    protocol, port = _NAMES[key[-8]], int.from_bytes(key[-4:-2], "big")
    address = socket.inet_ntop(_AF[family], key[:-8]) if len(key) > 8 else ""
    verdict = attributes(attributes(element[_DATA])[_VERDICT])
    frontend = FrontendKey(address, protocol, port)
    leads_to = text(verdict.get(_VERDICT_CHAIN, b""))
    return FrontendCount(generation, frontend, leads_to, _comment(element.get(_USER_DATA, b"")), _packets(element))


def _backend(family: Family, element: Attributes) -> Backend:
    value = attributes(element[_DATA])[_VALUE]
    size = 4 if family is Family.IPV4 else 16
    return Backend(socket.inet_ntop(_AF[family], value[:size]), int.from_bytes(value[size : size + 2], "big"))


def _packets(element: Attributes) -> int:
    expression = attributes(element.get(_EXPRESSION, b""))
    return _count(expression[_EXPRESSION_DATA]) if _EXPRESSION_DATA in expression else 0


def _count(counter: bytes) -> int:
    return int.from_bytes(attributes(counter)[_COUNTER_PACKETS], "big")


def _comment(user_data: bytes) -> str:
    """nft's own notes on an element, each with a kind and a length of one byte; kind 0 is the comment."""
    offset = 0
    while offset + 2 <= len(user_data):
        kind, length = user_data[offset], user_data[offset + 1]
        if kind == 0:
            return text(user_data[offset + 2 : offset + 2 + length])
        offset += 2 + length
    return ""
