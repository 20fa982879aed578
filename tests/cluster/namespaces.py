"""Calls in the network namespace of a host."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from tests.topology import Host

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000


def inside(host: Host, make: Callable[[], T]) -> T:
    """What ``make`` gives when it is called in a namespace; sockets that it opens stay there."""
    made: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{host.pid}/ns/net") as namespace:
                if libc.setns(namespace.fileno(), _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(make())
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return made[0]
