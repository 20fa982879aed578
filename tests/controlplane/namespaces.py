"""Sockets and programs in the network namespace of another process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from tests.topology import Host

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(host: Host) -> Iterator[None]:
    """Has this thread in the namespace of ``host`` for a moment; sockets made meanwhile stay there."""
    with open("/proc/thread-self/ns/net") as home, open(f"/proc/{host.pid}/ns/net") as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(home.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def connect(host: Host, port: int, timeout: float) -> socket.socket:
    """A TCP connection to a port on the loopback of ``host``."""
    with inside(host):
        made = socket.create_connection(("127.0.0.1", port), timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def listen(host: Host, port: int) -> socket.socket:
    """A TCP listener on the loopback of ``host``."""
    with inside(host):
        return socket.create_server(("127.0.0.1", port))


def start(host: Host, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Starts a program in the namespace of ``host``. It is killed when the thread that started it is gone."""
    command = ["setpriv", "--pdeathsig", "KILL", *host.command(*words)]
    return subprocess.Popen(command, text=True, start_new_session=True, stdin=subprocess.DEVNULL, **options)


@contextlib.contextmanager
def own_namespace() -> Iterator[Host]:
    """A namespace with nothing but its loopback."""
    host = Host("node")
    try:
        host.wait_ready()
        host.run("ip", "link", "set", "lo", "up")
        yield host
    finally:
        host.close()
