"""Netlink itself (linux/netlink.h): messages and attributes, put together and cut, and a socket that asks the kernel."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Self

# Length, type, flags, sequence number, port.
HEADER = struct.Struct("=IHHII")
# Before the attributes of everything about netfilter: family, version, resource.
NETFILTER_HEADER = struct.Struct("=BBH")
NETFILTER = 12
ERROR, DONE = 2, 3
REQUEST, ACKNOWLEDGE, DUMP = 0x1, 0x4, 0x300
# In the kind of an attribute that has others in it; the kernel wants it there, and its highest two bits are no number.
NESTED = 0x8000
KIND = 0x3FFF
# In the flags of an answer: something changed while it was being put together.
INTERRUPTED = 0x10
# As much as the kernel puts into one answer.
RECEIVE = 1 << 16
# Seconds after which the kernel is taken not to answer.
PATIENCE = 10
# Times that a list is read which changes while it is read.
ATTEMPTS = 5

ATTRIBUTE = struct.Struct("=HH")
_ERROR_CODE = struct.Struct("=i")

Attributes = dict[int, bytes]


# One message: its kind, flags, number (of the question that it answers), port (of its author), and what follows its header.
# A bare tuple, since taking half a million of them apart is felt.
Message = tuple[int, int, int, int, bytes]


class Netlink:
    """A socket to one part of the kernel, in the namespace of the thread that makes it. One question at a time."""

    def __init__(self, protocol: int) -> None:
        """Raises ``OSError``, as every method does."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.settimeout(PATIENCE)
        self._number = 0
        # Whether the last list that was read to its end did not change meanwhile.
        self.whole = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def ask(self, kind: int, body: bytes, *, dump: bool = False) -> Iterator[bytes]:
        """The bodies of the answers to a question, as they come; ``dump``: about all objects that it fits."""
        return chain.from_iterable(self.batches(kind, body, dump=dump))

    def batches(self, kind: int, body: bytes, *, dump: bool = False) -> Iterator[Sequence[bytes]]:
        """What ``ask`` gives, as many at a time as the kernel sends together."""
        self.whole = True
        self._number += 1
        self._socket.send(request(kind, DUMP if dump else ACKNOWLEDGE, body, self._number))
        done, error = False, OSError()
        while not done:
            answers = []
            for kind_of_answer, flags, number, _, answer in messages(self._socket.recv(RECEIVE)):
                if number != self._number:
                    continue  # of a question whose answers nobody wanted to the end
                if flags & INTERRUPTED:
                    self.whole = False
                if kind_of_answer > DONE:
                    answers.append(answer)
                else:
                    done, error = True, refusal(answer)
            yield answers
        if error.errno:
            raise error

    def order(self, kind: int, bodies: Sequence[bytes]) -> Iterator[OSError]:
        """Has the kernel do something several times, at once; gives what it refuses. That must fit into the socket."""
        self._number += 1
        # Only the last one, which alone has a number, is always answered; the others are if they fail.
        last = len(bodies) - 1
        orders = (request(kind, 0, body) for body in bodies[:last])
        self._socket.send(b"".join((*orders, request(kind, ACKNOWLEDGE, bodies[last], self._number))))
        answered = False
        while not answered:
            for _, _, number, _, answer in messages(self._socket.recv(RECEIVE)):
                if (error := refusal(answer)).errno:
                    yield error
                answered = answered or number == self._number

    def list(self, kind: int, body: bytes, containing: bytes = b"", attempts: int = ATTEMPTS) -> list[bytes]:
        """What a dump gives, as far as these bytes are in it; read again where it changed while it was read.

        If it does so every time, what came last is given, and ``whole`` is False.
        """
        found: list[bytes] = []
        for _ in range(attempts):
            found = [each for each in self.ask(kind, body, dump=True) if containing in each]
            if self.whole:
                break
        return found


def request(kind: int, flags: int, body: bytes, number: int = 0) -> bytes:
    """A message to the kernel."""
    return HEADER.pack(HEADER.size + len(body), kind, REQUEST | flags, number, 0) + body


def messages(data: bytes) -> Iterator[Message]:
    """The messages in what one read of a socket gave."""
    start = 0
    while start + HEADER.size <= len(data):
        length, kind, flags, number, port = HEADER.unpack_from(data, start)
        if length < HEADER.size:
            return
        yield kind, flags, number, port, data[start + HEADER.size : start + length]
        start += length + 3 & ~3


def refusal(body: bytes) -> OSError:
    """What a message of kind ``ERROR`` (or ``DONE``) says; its errno is 0 where it says that all is well."""
    (code,) = _ERROR_CODE.unpack_from(body)
    return OSError(-code, os.strerror(-code))


def attributes(data: bytes, start: int = 0) -> Attributes:
    """The attributes that begin at an offset, by kind; of a kind that comes more than once, the last."""
    return dict(walk(data, start))


def walk(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """The attributes that begin at an offset, one after the other."""
    unpack, last = ATTRIBUTE.unpack_from, len(data) - ATTRIBUTE.size
    while start <= last:
        length, kind = unpack(data, start)
        if length < 4:
            return
        yield kind & KIND, data[start + 4 : start + length]
        start += length + 3 & ~3


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute as it is sent, padded."""
    return ATTRIBUTE.pack(ATTRIBUTE.size + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *inside: bytes) -> bytes:
    """An attribute that has others in it."""
    return attribute(kind | NESTED, b"".join(inside))


def text(value: bytes) -> str:
    """A string attribute."""
    return value.rstrip(b"\0").decode("utf-8", "replace")
