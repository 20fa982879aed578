"""Asks the proxyd that runs in this network namespace, over its local socket."""

from __future__ import annotations

import http.client
import socket
from typing import TypeVar

import msgspec

from proxyd.errors import CannotWorkHereError, UserError
from proxyd.serve.report import SOCKET

TIMEOUT = 10.0

T = TypeVar("T")


class NotRunningError(CannotWorkHereError):
    """There is no proxyd in this network namespace that answers us."""


class OtherVersionError(CannotWorkHereError):
    """The proxyd in this network namespace gives answers that this program does not understand."""


class _LocalConnection(http.client.HTTPConnection):
    """HTTP over an abstract Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(f"\0{SOCKET}")


def ask(path: str) -> bytes:
    """The body of the answer to a path.

    Raises ``NotRunningError`` where nobody answers as expected, ``UserError`` where it is the question that is wrong.
    """
    connection = _LocalConnection("localhost", timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except ConnectionRefusedError as error:
        raise NotRunningError("no proxyd runs in this network namespace") from error
    except (OSError, http.client.HTTPException) as error:
        # It also hangs up on users that it does not answer.
        raise NotRunningError(
            f"the proxyd of this network namespace does not answer ({error}); are you root?"
        ) from error
    finally:
        connection.close()
    if response.status == http.client.BAD_REQUEST:
        raise UserError(body.decode())
    if response.status == http.client.SERVICE_UNAVAILABLE:
        raise NotRunningError(body.decode())
    if response.status != http.client.OK:
        raise NotRunningError(f"the proxyd of this network namespace answers {response.status} to {path}")
    return body


def decoded(body: bytes, what: type[T]) -> T:
    """An answer as what it is to be. Raises ``OtherVersionError``."""
    try:
        return msgspec.json.decode(body, type=what)
    except msgspec.MsgspecError as error:
        raise OtherVersionError(f"the running proxyd is of another version ({error})") from error
