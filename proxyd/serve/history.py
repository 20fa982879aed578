"""``proxyd history`` at a running proxyd: entries of the ring over the local socket.

``GET /history?after=SEQUENCE&limit=N&service=NAMESPACE/NAME``: all of it optional. The answer comes at once, from what
there is; who follows asks again for what is after the ``last`` of the answer before.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

import msgspec

from proxyd.errors import UserError
from proxyd.model import CamelStruct
from proxyd.serve.http import Request, Response
from proxyd.sync.history import Entry, History

PATH = "/history"


class Page(CamelStruct, frozen=True):
    """The answer: entries, oldest first. ``run`` (RFC 3339) is when this proxyd started: sequence numbers are its own.

    ``last`` is the number of the newest entry there is, whether it is shown or not. ``dropped`` counts entries after the
    one asked for that are forgotten: the ring is bounded.
    """

    run: str
    entries: tuple[Entry, ...]
    last: int
    dropped: int = 0


class Wanted(NamedTuple):
    """Entries after a sequence number, the newest ``limit`` of them (None: all), of one Service ("": of all)."""

    after: int = 0
    limit: int | None = None
    service: str = ""

    @property
    def path(self) -> str:
        """The path and query that ask for it."""
        words = {name: word for name, word in self._asdict().items() if word not in (None, "", 0) or name == "limit"}
        if self.limit is None:
            words.pop("limit", None)
        return f"{PATH}?{urlencode(words)}" if words else PATH


def wanted(query: str) -> Wanted:
    """Takes a query apart. Raises ``UserError``."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := given.keys() - set(Wanted._fields):
        raise UserError(f"{min(unknown)}: there is no such parameter")
    limit = _number("limit", given["limit"]) if "limit" in given else None
    return Wanted(_number("after", given.get("after", "0")), limit, service_name(given.get("service", "")))


def service_name(text: str) -> str:
    """A namespace and name as they are written in entries ("" for none). Raises ``UserError``."""
    if text and not (text.count("/") == 1 and all(text.split("/"))):
        raise UserError(f"a Service is named NAMESPACE/NAME, got {text!r}")
    return text


def page(history: History, run: str, asked: Wanted) -> Page:
    """The entries that are asked for."""
    entries, last, dropped = history.since(asked.after)
    if asked.service:
        entries = tuple(each for each in entries if each.may_concern(asked.service))
    if asked.limit is not None:
        entries = entries[len(entries) - asked.limit :] if asked.limit < len(entries) else entries
    return Page(run, entries, last, dropped)


class HistoryRoute:
    """Answers ``PATH``: 400 where the query is wrong."""

    def __init__(self, history: History, run: str) -> None:
        self._history, self._run = history, run

    def __call__(self, request: Request) -> Response:
        """Answers one request."""
        try:
            told = page(self._history, self._run, wanted(request.query))
        except UserError as error:
            return Response(400, body=str(error).encode())
        return Response(content_type="application/json", body=msgspec.json.encode(told) + b"\n")


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise UserError(f"{name}: must be a number from 0 on, got {text!r}")
    return int(text)
