"""How netlink messages are cut into parts (linux/netlink.h): the same for every kind of netlink."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

# Length, type, flags, sequence number, port.
HEADER = struct.Struct("=IHHII")
ERROR, DONE = 2, 3
REQUEST, DUMP = 0x1, 0x300
# In the flags of an answer: something changed while it was being put together.
INTERRUPTED = 0x10
# As much as the kernel puts into one answer.
RECEIVE = 1 << 16

_ATTRIBUTE = struct.Struct("=HH")
_ERROR_CODE = struct.Struct("=i")
_KIND = 0x3FFF


class Message(NamedTuple):
    """One message without its header."""

    kind: int
    flags: int
    body: bytes


def request(kind: int, flags: int, body: bytes) -> bytes:
    """A message to the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, 0, 0) + body


def messages(data: bytes) -> Iterator[Message]:
    """The messages in what one read of a socket gave."""
    start = 0
    while start + HEADER.size <= len(data):
        length, kind, flags, _, _ = HEADER.unpack_from(data, start)
        if length < HEADER.size:
            return
        yield Message(kind, flags, data[start + HEADER.size : start + length])
        start += _aligned(length)


def attributes(body: bytes, start: int) -> dict[int, bytes]:
    """The attributes that begin at an offset of a message's body, by number."""
    found = {}
    while start + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, start)
        if length < _ATTRIBUTE.size:
            break
        found[kind & _KIND] = body[start + _ATTRIBUTE.size : start + length]
        start += _aligned(length)
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def refusal(message: Message) -> OSError:
    """What a message of kind ``ERROR`` says."""
    (code,) = _ERROR_CODE.unpack_from(message.body)
    return OSError(-code, os.strerror(-code))


def _aligned(length: int) -> int:
    return (length + 3) & ~3
