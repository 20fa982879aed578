"""The addresses of this host, and their changes as they happen: told by the kernel (rtnetlink), never polled.

Whatever the kernel tells only says that it is time to look again: so a notification that is lost, or that overtakes
another, can do no harm. A raw socket: what is needed is small, and pyroute2's route client costs 11 MB in every daemon.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import structlog

from proxyd.kernel import netlink
from proxyd.kernel.netlink import Netlink
from proxyd.model import Family, HostAddress, HostState

log = structlog.get_logger("proxyd.kernel")

_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
_FAMILIES = {int(af): family for family, af in _AF.items()}
_NEW_LINK, _GET_LINK = 16, 18
_GET_ADDRESS = 22
_NEW_ROUTE, _DELETED_ROUTE, _GET_ROUTE = 24, 25, 26
# rtnetlink's groups (RTMGRP_): links; addresses and routes of IPv4 and IPv6.
_GROUPS = 0x1 | 0x10 | 0x40 | 0x100 | 0x400
# Family, type, index, flags, which flags changed.
_LINK = struct.Struct("=BxHiII")
_UP, _EVERYTHING = 0x1, 0xFFFFFFFF
_EXTENDED_MASK, _SKIP_STATISTICS = 29, 0x8
# Family, prefix length, flags, scope, index; attributes: address, local address, flags in full.
_ADDRESS = struct.Struct("=BBBBI")
_PEER, _LOCAL, _FLAGS = 1, 2, 8
# The first one is called temporary in IPv6.
_SECONDARY, _OPTIMISTIC, _DUPLICATE, _DEPRECATED, _TENTATIVE = 0x01, 0x04, 0x08, 0x20, 0x40
_SCOPES = {0: "global", 253: "link", 254: "host"}
# Family, length of destination and source, TOS, table, protocol, scope, type, flags.
_ROUTE = struct.Struct("=BBBBBBBBI")
_DESTINATION, _OUT = 1, 4
# Addresses that no network has (RFC 7600, RFC 6666), so that only the default route leads to them.
_ANYWHERE = {Family.IPV4: "192.0.0.8", Family.IPV6: "100::1"}
# Seconds until the addresses are read again where they could not be.
_RETRY = 5.0


class HostWatch(Protocol):
    """Tells the addresses of a host, now and whenever they change."""

    def read(self) -> HostState:
        """The state right now. Raises ``OSError``. Not to be called after ``start``."""

    def start(self, told: Callable[[HostState], None]) -> None:
        """Has ``told`` called, on a thread of its own, after each change since the construction.

        Changes that come together are one call, and a call may bring what is known already.
        """

    def stop(self) -> None:
        """Ends the thread."""


class KernelHost:
    """Implements ``HostWatch`` for the network namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._events.bind((0, _GROUPS))
        self._asking = Netlink(socket.NETLINK_ROUTE)
        self._stopped, self._stop = os.pipe()
        self._thread: threading.Thread | None = None

    def read(self) -> HostState:
        """See ``HostWatch``."""
        return HostState(tuple(_addresses(self._asking)), _default_interfaces(self._asking))

    def start(self, told: Callable[[HostState], None]) -> None:
        """See ``HostWatch``."""
        self._thread = threading.Thread(target=self._run, args=(told,), name="addresses", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """See ``HostWatch``."""
        os.close(self._stop)
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(self, told: Callable[[HostState], None]) -> None:
        failed = False
        while self._wait_for_change(_RETRY if failed else None):
            try:
                told(self.read())
            except Exception as error:  # noqa: BLE001  (the rules stay as they are until then)
                tell = log.debug if failed else log.exception
                tell("the host's addresses cannot be read, will be tried again", error=repr(error))
                failed = True
            else:
                failed = False

    def _wait_for_change(self, at_most: float | None) -> bool:
        """Waits for something that may matter, and takes all that came with it; False where told to stop.

        Where nothing comes it ends after ``at_most`` seconds.
        """
        while True:
            ready, _, _ = select.select([self._events.fileno(), self._stopped], [], [], at_most)
            if self._stopped in ready:
                return False
            # The whole queue is emptied, although one message is enough.
            if any([*map(_may_matter, self._queued())]) or not ready:
                return True

    def _queued(self) -> Iterator[bytes]:
        """What the kernel has told; nothing at all stands for what was lost."""
        while True:
            try:
                yield self._events.recv(netlink.RECEIVE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                yield b""


def every_address(family: Family) -> tuple[str, ...]:
    """Really all addresses of one family in the namespace of this thread: whatever node ports on "all" are taken on."""
    with Netlink(socket.NETLINK_ROUTE) as asking:
        return tuple(each.address for each in _addresses(asking) if each.family is family)


def own_addresses(family: Family) -> frozenset[str]:
    """The addresses of one family at which the namespace of this thread takes packets; loopback takes more than it has."""
    with Netlink(socket.NETLINK_ROUTE) as asking:
        return frozenset(each.address for each in _addresses(asking) if each.family is family and each.usable)


def _may_matter(data: bytes) -> bool:
    """Whether notifications can be about addresses that we know. Pods bring and take links and routes all the time."""
    return not data or any(map(_is_about_addresses, netlink.messages(data)))


def _is_about_addresses(message: netlink.Message) -> bool:
    kind, *_, body = message
    if kind == _NEW_LINK:
        *_, changed = _LINK.unpack_from(body)
        # A link that is new has no addresses, and says that everything changed.
        return changed != _EVERYTHING and bool(changed & _UP)
    if kind in (_NEW_ROUTE, _DELETED_ROUTE):
        length_of_destination: int = _ROUTE.unpack_from(body)[1]
        return length_of_destination == 0
    # A link that goes takes its addresses away one by one, each with a message.
    return kind > _NEW_LINK + 1


def _addresses(asking: Netlink) -> Iterator[HostAddress]:
    # Where these change while they are read, that is told as well, so that another look follows in any case.
    links = netlink.attribute(_EXTENDED_MASK, struct.pack("=I", _SKIP_STATISTICS))
    down = set()
    for body in asking.list(_GET_LINK, _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0) + links):
        _, _, index, flags, _ = _LINK.unpack_from(body)
        if not flags & _UP:
            down.add(index)
    for body in asking.list(_GET_ADDRESS, _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        af, _, low_flags, scope, index = _ADDRESS.unpack_from(body)
        known = netlink.attributes(body, _ADDRESS.size)
        # On a point-to-point link the other attribute is the peer's address.
        packed = known.get(_LOCAL) or known.get(_PEER)
        if packed is None or af not in _FAMILIES:
            continue
        flags = int.from_bytes(known[_FLAGS], sys.byteorder) if _FLAGS in known else low_flags
        yield HostAddress(
            family=_FAMILIES[af],
            address=socket.inet_ntop(af, packed),
            interface=index,
            scope=_SCOPES.get(scope, "site"),
            preferred=not flags & (_DEPRECATED | _SECONDARY),
            usable=index not in down and not _is_tentative(flags),
        )


def _is_tentative(flags: int) -> bool:
    """Whether nobody is answered at an address: it may be somebody else's (RFC 4862), or is found to be."""
    return bool(flags & _DUPLICATE or (flags & _TENTATIVE and not flags & _OPTIMISTIC))


def _default_interfaces(asking: Netlink) -> dict[Family, int]:
    """The interface through which the outside is reached, by the kernel's own choice (metrics, rules, several paths)."""
    found = {}
    for family, anywhere in _ANYWHERE.items():
        packed = socket.inet_pton(_AF[family], anywhere)
        question = _ROUTE.pack(_AF[family], len(packed) * 8, 0, 0, 0, 0, 0, 0, 0)
        try:
            for route in asking.ask(_GET_ROUTE, question + netlink.attribute(_DESTINATION, packed)):
                if out := netlink.attributes(route, _ROUTE.size).get(_OUT):
                    found[family] = int.from_bytes(out, sys.byteorder)
        except TimeoutError:
            raise
        except OSError:
            continue  # there is no way to the outside
    return found
