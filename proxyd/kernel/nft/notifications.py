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
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from proxyd.kernel.nft.notices import notices
from proxyd.model import FAMILIES, Family
from proxyd.nft.drift import Drift, Edits

NETLINK_NETFILTER = 12
_GROUP_NFTABLES = 7
_RECEIVE = 1 << 18
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
# Bytes that may wait to be read: some ten thousand elements in one transaction, ours or (more often) somebody else's.
_BUFFER = 4 << 20
# Reading may take this share of one core; who edits faster than that is told as lost notifications.
SHARE = 0.25
# The reader rests once it owes this much (seconds), so that a single edit is told at once.
_REST = 0.02


class Told(Protocol):
    """One message of the kernel, see ``kernel.notices.Notice``."""

    @property
    def author(self) -> int:
        """The netlink port of its author."""

    @property
    def ends(self) -> bool:
        """Whether it ends a transaction."""

    @property
    def family(self) -> Family | None:
        """The family it is about, None where it is about nothing of ours."""

    def tell(self, edits: Edits) -> None:
        """Adds what it says to the edits of its family."""


class Notifications:
    """Calls ``drifted``, on a thread of its own, once for each foreign transaction that touched a table of ours."""

    def __init__(
        self,
        own_port: Callable[[], int],
        drifted: Callable[[Drift], None],
        read: Callable[[bytes], Iterable[Told]] = notices,
    ) -> None:
        """``own_port`` gives the netlink port that our own changes come from right now; ``read`` reads one delivery."""
        self._own_port = own_port
        self._drifted = drifted
        self._read = read
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        except PermissionError:  # in a user namespace: what does not fit is told as lost, and everything rewritten
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        _ignore_author(self._socket, own_port())
        self._socket.bind((0, 1 << (_GROUP_NFTABLES - 1)))
        self._edits: dict[Family, Edits] = {}
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

    def ignore(self, port: int) -> None:
        """Has the kernel drop what this netlink port does from now on, instead of the last one. For any thread."""
        _ignore_author(self._socket, port)

    def _run(self) -> None:
        lost = False
        owed = 0.0
        while not self._stopping(owed if owed >= _REST else 0):
            owed = 0.0 if owed >= _REST else owed
            ready, _, _ = select.select([self._socket.fileno(), self._stopped], [], [], 0 if lost else None)
            started = time.thread_time()
            if not ready:
                # All that was left is read; before that, the kernel drops what comes without saying so again.
                lost = False
                self._tell_lost()
            elif self._stopped not in ready:
                try:
                    data = self._socket.recv(_RECEIVE)
                except OSError as error:
                    if error.errno != errno.ENOBUFS:
                        raise  # and so ends the process: edits that nobody notices are not repaired
                    lost = True
                else:
                    if not lost:
                        self._take(data)
            owed += (time.thread_time() - started) * (1 / SHARE - 1)

    def _stopping(self, rest: float) -> bool:
        """Waits for some seconds; gives whether the end is asked for."""
        return bool(select.select([self._stopped], [], [], rest)[0])

    def _tell_lost(self) -> None:
        """More came than the socket holds: anything may have changed."""
        self._edits.clear()
        for family in FAMILIES:
            self._drifted(Drift(family, "notifications were lost", everything=True))

    def _take(self, data: bytes) -> None:
        for notice in self._read(data):
            if notice.author == self._own_port():
                # The library opened a new socket: from here on the kernel ignores that one.
                _ignore_author(self._socket, notice.author)
                self._edits.clear()
            elif notice.family is not None:
                notice.tell(self._edits.setdefault(notice.family, Edits(notice.family)))
            elif notice.ends:
                self._tell()

    def _tell(self) -> None:
        edits, self._edits = self._edits, {}
        for family in FAMILIES:
            if family in edits and (drift := edits[family].drift()) is not None:
                self._drifted(drift)


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
