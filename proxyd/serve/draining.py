"""What ``proxyd drain`` asks the running proxyd: frontends and endpoints of its Services, some Services at a time.

On the thread that serves. Connections are not looked at here: that takes a while, and is done by who asks.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable
from urllib.parse import parse_qsl, urlencode

import msgspec

from proxyd.desired.admission import admit
from proxyd.desired.draining import Ports, PortState, port_states
from proxyd.kube.store import Store
from proxyd.model import ServiceKey
from proxyd.serve.http import Request, Response
from proxyd.sync.status import Status

PATH = "/drain"
# Services told in one answer; nobody else is served meanwhile. With 5,000 Services of 10 endpoints, the median page takes
# about a twentieth of the time that one answer for all takes.
PAGE = 200


def path_of(service: str = "", after: str = "") -> str:
    """The path and query that ask about one Service ("NAMESPACE/NAME"), or all: those behind ``after``."""
    words = {"service": service, "after": after}
    return f"{PATH}?{urlencode({name: word for name, word in words.items() if word})}"


class DrainReport:
    """Answers from what the running proxyd has."""

    def __init__(
        self, store: Store, status: Callable[[], Status], now: Callable[[], float] = time.monotonic, page: int = PAGE
    ) -> None:
        self._store, self._status, self._now, self._page = store, status, now, page

    def __call__(self, request: Request) -> Response:
        """Answers ``path_of``: 400 where there is no such Service, 503 where there is nothing yet to answer from."""
        given = dict(parse_qsl(request.query))
        if not self._store.complete or not any(each.settings for each in self._status().families):
            return Response(503, body=b"nothing has been written yet")
        if name := given.get("service", ""):
            key = _key(name)
            if self._store.service(key)[0] is None:
                return Response(400, body=f"there is no Service {key} here".encode())
            return _response(Ports(tuple(self._ports([key]))))
        after = _key(given["after"]) if "after" in given else ServiceKey("", "")
        # One more than fits tells whether to go on.
        known = self._store.keys()
        keys = heapq.nsmallest(self._page + 1, (each for each in known if each > after))
        more = str(keys[self._page - 1]) if len(keys) > self._page else None
        return _response(Ports(tuple(self._ports(keys[: self._page])), more))

    def _ports(self, keys: Iterable[ServiceKey]) -> Iterable[PortState]:
        settings = {each.family: each.settings for each in self._status().families if each.settings is not None}
        now = self._now()
        for key in keys:
            service, slices = self._store.service(key)
            if service is not None:
                seconds = {place: max(0.0, now - at) for place, at in self._store.terminating(key).items()}
                yield from port_states(service, admit(service).families, slices, settings, seconds)


def _key(text: str) -> ServiceKey:
    namespace, _, name = text.rpartition("/")
    return ServiceKey(namespace or "default", name)


def _response(told: Ports) -> Response:
    return Response(content_type="application/json", body=msgspec.json.encode(told))
