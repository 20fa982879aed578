"""The sockets that are listened on, and who may connect to a local one."""

from __future__ import annotations

import os
import socket
import struct

BACKLOG = 128
# pid, user and group of a local client (unix(7), SO_PEERCRED).
_CREDENTIALS = struct.Struct("3i")


def bind_tcp(host: str, port: int, *, both: bool = True) -> socket.socket:
    """A listening TCP socket on an address; "0.0.0.0" is IPv4 only, "::" both families (or IPv6 only). Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::" or not both)
        sock.bind((host, port))
        # Here and not in the event loop: with SO_REUSEADDR, only this finds out that somebody else listens.
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def bind_local(name: str) -> socket.socket:
    """A listening socket with an abstract Unix name: it belongs to the network namespace, as rules do. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"\0{name}")
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def may_ask(client: socket.socket) -> bool:
    """Whether a local client is root or our own user; who comes by a network address always may."""
    if client.family != socket.AF_UNIX:
        return True
    _, user, _ = _CREDENTIALS.unpack(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return user in (0, os.geteuid())
