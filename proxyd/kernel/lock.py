"""One proxyd for each network namespace: two would undo each other's rules."""

from __future__ import annotations

import errno
import socket

from proxyd.errors import CannotWorkHereError


class AlreadyRunningError(CannotWorkHereError):
    """Another proxyd runs in this network namespace."""


def lock_namespace() -> socket.socket:
    """Takes the lock of this network namespace; keep the result for as long as it is to be held.

    An abstract socket name: it belongs to the network namespace, exactly as the rules do, and the kernel frees it with
    the process. Raises ``AlreadyRunningError``.
    """
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind("\0proxyd/lock")
    except OSError as error:
        lock.close()
        if error.errno == errno.EADDRINUSE:
            raise AlreadyRunningError("another proxyd runs in this network namespace") from error
        raise
    return lock
