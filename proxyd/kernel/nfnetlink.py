"""Asks the kernel's nftables without the library: lists of objects by name, single elements, counters.

What libnftables lists, it holds whole and as text; a node with tens of thousands of foreign chains would feel that.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from typing import Self

NETLINK_NETFILTER = 12
SUBSYSTEM_NFTABLES = 10
GET_TABLE, GET_CHAIN, GET_SET, GET_ELEMENT, GET_OBJECT = 1, 4, 10, 13, 19
NESTED = 0x8000

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_REQUEST, _ACKNOWLEDGE, _DUMP = 0x1, 0x4, 0x300
_ERROR, _DONE = 2, 3
_INTERRUPTED = 0x10
# The two highest bits of an attribute's kind are flags.
_KIND = 0x3FFF
_RECEIVE = 1 << 17
_ATTEMPTS = 5

Attributes = dict[int, bytes]


class Netlink:
    """A socket to nftables in the namespace of the thread that makes it. One question at a time."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._number = 0
        self.whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def ask(
        self, message: int, family: int = 0, request: bytes = b"", *, dump: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """The answers to a question, as they come: family number and attributes of each. Raises ``OSError``.

        ``request`` are attributes. ``dump``: all objects that these fit. Afterwards, ``whole`` tells whether the list did
        not change while it was read.
        """
        self.whole = True
        self._number += 1
        flags = _REQUEST | (_DUMP if dump else _ACKNOWLEDGE)
        header = _HEADER.pack(
            _HEADER.size + 4 + len(request), SUBSYSTEM_NFTABLES << 8 | message, flags, self._number, 0
        )
        # After the header: family, version 0, no resource.
        self._socket.send(header + bytes((family, 0, 0, 0)) + request)
        while True:
            data = self._socket.recv(_RECEIVE)
            offset = 0
            while offset + _HEADER.size <= len(data):
                length, kind, flags, number, _ = _HEADER.unpack_from(data, offset)
                body = data[offset + _HEADER.size : offset + length]
                offset += (length + 3) & ~3
                if number != self._number:
                    continue  # of a question whose answers nobody wanted to the end
                self.whole = self.whole and not flags & _INTERRUPTED
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    if code:
                        raise OSError(code, os.strerror(code))
                    return
                yield body[0], body[4:]


def dump(message: int) -> list[tuple[int, Attributes]]:
    """All objects of one kind in this network namespace, each as (family number, attributes). Raises ``OSError``.

    A list that changed while it was read is read again, a few times; then what came is given.
    """
    found: list[tuple[int, Attributes]] = []
    with Netlink() as netlink:
        for _ in range(_ATTEMPTS):
            found = [(family, attributes(data)) for family, data in netlink.ask(message, dump=True)]
            if netlink.whole:
                break
    return found


def attributes(data: bytes) -> Attributes:
    """The attributes in ``data`` by kind; of a kind that comes more than once, the last."""
    return dict(walk(data))


def text(value: bytes) -> str:
    """A string attribute."""
    return value.rstrip(b"\0").decode("utf-8", "replace")


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute as it is sent; one with others in it has ``NESTED`` in its kind."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def walk(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes in ``data``, one after the other."""
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _KIND, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
