"""What an API server can do wrong, for ``ApiServer.fail``: each writes an answer of its own to one request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fakes.apiobjects import error_line

if TYPE_CHECKING:
    from tests.fakes.apiserver import Exchange

Fault = Callable[["Exchange"], None]


def status(code: int, reason: str = "", retry_after: int | None = None) -> Fault:
    """An error status with a meta/v1 Status as its body."""
    body = json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "on demand"}).encode()
    headers = {} if retry_after is None else {"Retry_After": str(retry_after)}
    return lambda exchange: exchange.reply(code, body, **headers)


def error_event(code: int, reason: str = "") -> Fault:
    """A stream of one ERROR event."""

    def fault(exchange: Exchange) -> None:
        exchange.begin()
        exchange.send(error_line(code, reason))
        exchange.end()

    return fault


def end_at_once(exchange: Exchange) -> None:
    """An empty stream."""
    exchange.begin()
    exchange.end()


def garbage(exchange: Exchange) -> None:
    """A line that is not JSON."""
    exchange.begin()
    exchange.send(b'{"type":"ADDED","object":{"meta\x00\n')
    exchange.end()


def cut_in_line(exchange: Exchange) -> None:
    """All objects but the last, half of that one, and the connection closes."""
    exchange.begin()
    *whole, last = exchange.added()
    exchange.send(*whole, last[: len(last) // 2])
    exchange.cut()


def end_in_line(exchange: Exchange) -> None:
    """As before, but the stream ends in good order as far as HTTP goes."""
    exchange.begin()
    *whole, last = exchange.added()
    exchange.send(*whole, last[: len(last) // 2])
    exchange.end()


def end_in_initial_events(exchange: Exchange) -> None:
    """The first half of the objects, and the stream ends in good order."""
    exchange.begin()
    events = exchange.added()
    exchange.send(*events[: len(events) // 2])
    exchange.end()


def no_end(exchange: Exchange) -> None:
    """All objects, and never the bookmark that ends a WatchList's initial events (a server that does not know them)."""
    exchange.begin()
    exchange.send(*exchange.added())
    exchange.hold()


def stalled(exchange: Exchange) -> None:
    """The headers of a stream, then silence."""
    exchange.begin()
    exchange.hold()


def mute(exchange: Exchange) -> None:
    """Not even headers."""
    exchange.hold()


def raw_lines(*lines: bytes) -> Fault:
    """A stream of these lines that ends in good order; each line goes out in small chunks."""

    def fault(exchange: Exchange) -> None:
        exchange.begin()
        for line in lines:
            exchange.send(*(line[at : at + 100] for at in range(0, len(line), 100)))
        exchange.end()

    return fault
