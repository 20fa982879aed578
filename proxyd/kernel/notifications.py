"""Notices when somebody else changes our tables: the kernel tells every change of nftables, and who made it.

A notification carries the netlink port of its author. Our own commits are filtered out inside the kernel by that number,
so they cost nothing here; whatever arrives was done by somebody else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import structlog

from proxyd.model import FAMILIES, Family
from proxyd.nft.layout import TABLE

log = structlog.get_logger("proxyd.kernel")

NETLINK_NETFILTER = 12
_GROUP_NFTABLES = 7
_SUBSYSTEM_NFTABLES = 10
# Message numbers of nf_tables: what was made; what was deleted has the number two above.
_KINDS = {0: "table", 3: "chain", 6: "rule", 9: "set", 12: "element", 18: "object", 22: "flowtable"}
_NEW_GENERATION = 15
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
# Attribute 1 of every message is the table; this one says which chain, set or object (a named counter) it is about.
_NAME_ATTRIBUTE = {"chain": 3, "rule": 2, "set": 2, "element": 2, "object": 2}
_RECEIVE = 1 << 18
_SO_ATTACH_FILTER = 26
_SHOWN = 5


class Drift(NamedTuple):
    """A change to our table of one family that was not ours. ``what`` is for people."""

    family: Family
    what: str


class _Notice(NamedTuple):
    """One message: its author, and what it says about our table ("" where it is about something else)."""

    author: int
    ends: bool
    family: Family | None = None
    what: str = ""


class Notifications:
    """Calls ``drifted``, on a thread of its own, once for each foreign transaction that touched a table of ours."""

    def __init__(self, own_port: Callable[[], int], drifted: Callable[[Drift], None]) -> None:
        """``own_port`` gives the netlink port that our own changes come from right now."""
        self._own_port = own_port
        self._drifted = drifted
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        _ignore_author(self._socket, own_port())
        self._socket.bind((0, 1 << (_GROUP_NFTABLES - 1)))
        self._seen: Counter[tuple[Family, str]] = Counter()
        self._stopped, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)

    def start(self) -> None:
        """Starts the thread; changes made from the construction on are noticed."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread."""
        os.close(self._stop)
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        lost = False
        while True:
            ready, _, _ = select.select([self._socket.fileno(), self._stopped], [], [], 0 if lost else None)
            if self._stopped in ready:
                return
            if not ready:
                # All that was left is read; before that, the kernel drops what comes without saying so again.
                lost = False
                self._tell_lost()
                continue
            try:
                data = self._socket.recv(_RECEIVE)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    log.exception("kernel notifications ended")
                    return
                lost = True
            else:
                if not lost:
                    self._take(data)

    def _tell_lost(self) -> None:
        """More came than the socket holds: anything may have changed."""
        self._seen.clear()
        for family in FAMILIES:
            self._drifted(Drift(family, "notifications were lost"))

    def _take(self, data: bytes) -> None:
        for notice in _notices(data):
            if notice.author == self._own_port():
                # The library opened a new socket: from here on the kernel ignores that one.
                _ignore_author(self._socket, notice.author)
                self._seen.clear()
            elif notice.family is not None and notice.what:
                self._seen[notice.family, notice.what] += 1
            elif notice.ends:
                self._tell()

    def _tell(self) -> None:
        seen, self._seen = self._seen, Counter()
        for family in FAMILIES:
            # The table itself first: the kernel tells what goes with it before.
            mine = sorted(
                ((text, count) for (each, text), count in seen.items() if each is family),
                key=lambda told: (" table " not in told[0], -told[1], told[0]),
            )
            what = [text if count == 1 else f"{count} x {text}" for text, count in mine]
            if what:
                more = f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else ""
                self._drifted(Drift(family, ", ".join(what[:_SHOWN]) + more))


def _notices(data: bytes) -> Iterator[_Notice]:
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, author = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        if kind >> 8 == _SUBSYSTEM_NFTABLES:
            yield _notice(kind & 0xFF, author, data[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def _notice(number: int, author: int, body: bytes) -> _Notice:
    if number == _NEW_GENERATION:
        return _Notice(author, ends=True)
    family = _FAMILIES.get(body[0])
    kind, deleted = (_KINDS[number], False) if number in _KINDS else (_KINDS.get(number - 2, ""), True)
    names = dict(_names(body))
    if not kind or names.get(1) != TABLE:
        return _Notice(author, ends=False)
    name = names.get(_NAME_ATTRIBUTE.get(kind, 1), "")
    where = f"{kind} {name}" if kind in ("table", "chain", "set", "object") else f"{kind} in {name}"
    return _Notice(author, False, family, f"{'deleted' if deleted else 'added'} {where}")


def _names(body: bytes) -> Iterator[tuple[int, str]]:
    """The attributes 1 to 3 as text; the ones that are text are the names of table, chain and set."""
    offset = 4
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return
        if kind <= 3:
            value = body[offset + _ATTRIBUTE.size : offset + length]
            yield kind, value.rstrip(b"\0").decode("utf-8", "replace")
        offset += (length + 3) & ~3


def _ignore_author(watching: socket.socket, port: int) -> None:
    """Has the kernel drop what the netlink port ``port`` did, before it reaches the socket (classic BPF).

    All messages of one delivery have the same author, so looking at the first header is enough.
    """
    instructions = (
        (0x20, 0, 0, 12),  # load the port field of the header, as the network orders bytes
        (0x15, 0, 1, socket.htonl(port)),  # if it is ours ...
        (0x06, 0, 0, 0),  # ... drop
        (0x06, 0, 0, 0xFFFFFFFF),  # else keep
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in instructions))
    program = struct.pack("@HP", len(instructions), ctypes.addressof(code))
    watching.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
