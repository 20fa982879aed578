"""The envelopes of the API: list pages and the lines of a watch, with the objects in them left undecoded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from proxyd.kube import nesting
from proxyd.kube.client import Response, TransportError

# On the bookmark behind the last initial event of a WatchList (KEP-3157).
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class WatchError(Exception):
    """A list or stream that went wrong inside. ``reason`` is a metric label, ``code`` the status in an ERROR event."""

    def __init__(self, reason: str, message: str, code: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code
        self.retry_after = retry_after


class NoEndError(WatchError):
    """The initial events of a WatchList did not end in time."""


class Event(msgspec.Struct, gc=False):
    """One line of a watch (meta/v1 WatchEvent). BOOKMARK and ERROR carry other objects than the rest, hence ``Raw``."""

    type: str
    object: msgspec.Raw


class Meta(msgspec.Struct, gc=False, rename="camel"):
    """The part of ListMeta (of pages) and ObjectMeta (of bookmarks) that a reflector goes by."""

    resource_version: str | None = None
    annotations: dict[str, str] | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")


class Page(msgspec.Struct, gc=False):
    """A list, or one page of it."""

    metadata: Meta
    items: list[msgspec.Raw] | None = None


class _Bookmark(msgspec.Struct, gc=False):
    metadata: Meta


class _Details(msgspec.Struct, gc=False, rename="camel"):
    retry_after_seconds: float | None = None


class _Status(msgspec.Struct, gc=False):
    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: _Details | None = None


_EVENT = msgspec.json.Decoder(Event)
_BOOKMARK = msgspec.json.Decoder(_Bookmark)
_PAGE = msgspec.json.Decoder(Page)
_STATUS = msgspec.json.Decoder(_Status)


def list_page(body: bytes) -> Page:
    """Reads a list. Raises WatchError."""
    try:
        return nesting.decode(_PAGE, body)
    except msgspec.MsgspecError as error:
        raise WatchError("garbled", f"list: {error}") from error


def events(response: Response) -> Iterator[Event]:
    """Gives the events of a watch as they come, until it ends. Raises WatchError for an ERROR event or a garbled line."""
    for line in _lines(response):
        try:
            event = nesting.decode(_EVENT, line)
        except msgspec.MsgspecError as error:
            raise WatchError("garbled", f"watch event: {error}") from error
        if event.type == "ERROR":
            raise _error(event)
        yield event


def bookmark(event: Event) -> Meta:
    """Reads the object of a BOOKMARK event. Raises WatchError."""
    try:
        return nesting.decode(_BOOKMARK, event.object).metadata
    except msgspec.MsgspecError as error:
        raise WatchError("garbled", f"bookmark: {error}") from error


def _lines(response: Response) -> Iterator[bytes]:
    """Splits the stream; a line is joined once, however many reads it takes. Raises if the stream ends inside one."""
    parts: list[bytes] = []
    while chunk := response.read1():
        first, *others = chunk.split(b"\n")
        parts.append(first)
        if not others:
            continue
        rest = others.pop()
        for line in (b"".join(parts), *others):
            if line:
                yield line
        parts = [rest] if rest else []
    if any(parts):
        raise TransportError("stream", "the stream ended inside an event")


def _error(event: Event) -> WatchError:
    """The meta/v1 Status in an ERROR event; an expired version comes as code 410, or as a reason only."""
    try:
        status = nesting.decode(_STATUS, event.object)
    except msgspec.MsgspecError:
        status = _Status()
    code = 410 if status.reason in ("Expired", "Gone") else status.code or 0
    after = (status.details.retry_after_seconds if status.details else None) or 0.0
    reason = "expired" if code == 410 else "error-event"
    return WatchError(reason, f"{code} {status.reason or 'unknown'}: {status.message or ''}", code, after)
