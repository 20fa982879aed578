"""Reads lists of nftables objects from the kernel, name by name: no library, so no elements and little memory.

What libnftables lists, it holds whole and as text; a node with tens of thousands of foreign chains would feel that.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

NETLINK_NETFILTER = 12
SUBSYSTEM_NFTABLES = 10
GET_TABLE, GET_CHAIN, GET_SET = 1, 4, 10

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_INTERRUPTED = 0x10
# The two highest bits of an attribute's kind are flags.
_KIND = 0x3FFF
_RECEIVE = 1 << 17
_ATTEMPTS = 5

Attributes = dict[int, bytes]


def dump(message: int) -> list[tuple[int, Attributes]]:
    """All objects of one kind in this network namespace, each as (family number, attributes). Raises ``OSError``.

    A list that changed while it was read is read again, a few times; then what came is given.
    """
    found: list[tuple[int, Attributes]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        netlink.bind((0, 0))
        for _ in range(_ATTEMPTS):
            found, whole = _dump_once(netlink, message)
            if whole:
                break
    return found


def attributes(data: bytes) -> Attributes:
    """The attributes in ``data`` by kind; of a kind that comes more than once, the last."""
    return dict(_walk(data))


def text(value: bytes) -> str:
    """A string attribute."""
    return value.rstrip(b"\0").decode("utf-8", "replace")


def _dump_once(netlink: socket.socket, message: int) -> tuple[list[tuple[int, Attributes]], bool]:
    kind = SUBSYSTEM_NFTABLES << 8 | message
    # After the header: any family, version 0, no resource.
    netlink.send(_HEADER.pack(_HEADER.size + 4, kind, _REQUEST | _DUMP, 1, 0) + bytes(4))
    found: list[tuple[int, Attributes]] = []
    whole = True
    while True:
        data = netlink.recv(_RECEIVE)
        offset = 0
        while offset + _HEADER.size <= len(data):
            length, kind, flags, _, _ = _HEADER.unpack_from(data, offset)
            body = data[offset + _HEADER.size : offset + length]
            offset += (length + 3) & ~3
            whole = whole and not flags & _INTERRUPTED
            if kind == _DONE:
                return found, whole
            if kind == _ERROR:
                code = -struct.unpack_from("=i", body)[0]
                raise OSError(code, os.strerror(code))
            found.append((body[0], attributes(body[4:])))


def _walk(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _KIND, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
