"""What is answered on the address of the status page: the page, and its data as JSON. All of it can only be read.

On the event loop that answers probes too, so every answer is bounded: lists are paged, what is around the node is read
seldom, and whatever is long is cut.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import replace

from proxyd.addresses import canonical, is_loopback
from proxyd.errors import UserError
from proxyd.explain.answer import Answer
from proxyd.explain.answering import NoAnswerError, Words
from proxyd.kernel.surroundings import Surroundings
from proxyd.kube.store import Store
from proxyd.model import CamelStruct, Family
from proxyd.serve.health import Moment
from proxyd.serve.http import Handler, Request, Response, Routes
from proxyd.serve.page.details import details
from proxyd.serve.page.document import COMMON_HEADERS, Document, read_document
from proxyd.serve.page.services import by_severity, list_services, wanted
from proxyd.serve.report import Report
from proxyd.sync.status import Status
from proxyd.sync.traffic import Traffic

JSON = "application/json"
# Findings that are sent, the worst ones; the counts are whole.
MOST_FINDINGS = 100
# Seconds for which what is around the node is not read again: it takes dumps of names from the kernel.
LOOK_AROUND = 30.0


class PageSources(NamedTuple):
    """Where the data comes from; every one of them may be called at any time, on the thread that serves.

    ``report`` builds the node report of what is ``around``; ``history`` answers the entries of the ring of changes.
    """

    report: Callable[[Moment, Surroundings], Report]
    around: Callable[[], Surroundings]
    store: Store
    status: Callable[[], Status]
    explain: Callable[[Words], Answer]
    traffic: Callable[[], Mapping[Family, Traffic]]
    history: Handler


class NodeState(CamelStruct, frozen=True):
    """The answer to ``/status.json``. ``report`` has the worst Findings; ``reasons`` counts all. ``now``: Unix seconds."""

    report: Report
    reasons: dict[str, int]
    findings: int
    now: float


def page_routes(sources: PageSources, address: str, moment: Callable[[], Moment] = Moment.now) -> Routes:
    """Routes for a listener on ``address``, the IP address of the page. Reads the files of the page."""
    document = read_document()
    loopback = is_loopback(address)
    around = _Around(sources.around)

    def guarded(handler: Handler) -> Handler:
        def answer(request: Request) -> Response:
            if loopback and not may_be_named(request.host):
                return Response(403, body=_FOREIGN_HOST, headers=COMMON_HEADERS)
            try:
                return _with_headers(handler(request))
            except UserError as error:
                return Response(400, body=str(error).encode(), headers=COMMON_HEADERS)
            except NoAnswerError as error:
                return Response(503, body=str(error).encode(), headers=COMMON_HEADERS)

        return answer

    def status(_request: Request) -> Response:
        now = moment()
        return _json(_state(sources.report(now, around.at(now.monotonic)), now))

    def services(request: Request) -> Response:
        return _json(list_services(sources.store, sources.status(), wanted(_parameters(request))))

    def service(request: Request) -> Response:
        name = _parameters(request).get("name", "")
        return _json(details(sources.explain(Words(name)), name, sources.traffic))

    return {
        "/": guarded(lambda _: _html(document)),
        "/status.json": guarded(status),
        "/services.json": guarded(services),
        "/service.json": guarded(service),
        "/history.json": guarded(sources.history),
    }


_HOST = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<name>[^:]*))(?::[0-9]*)?")
_FOREIGN_HOST = b"this page is answered to localhost and loopback addresses only: reach it by one of these names\n"


def may_be_named(host: str) -> bool:
    """Whether a Host header names this machine by a name that nobody else can lead to it.

    Somebody else's page can have its own name resolve to 127.0.0.1 (DNS rebinding), and be of the same origin then.
    """
    found = _HOST.fullmatch(host)
    name = (found["v6"] or found["name"]) if found else ""
    address = canonical(name)
    return name.lower() == "localhost" or (address is not None and is_loopback(address[1]))


class _Around:
    """What is around the node, as of at most ``LOOK_AROUND`` seconds ago."""

    def __init__(self, read: Callable[[], Surroundings]) -> None:
        self._read = read
        self._known: tuple[float, Surroundings] | None = None

    def at(self, now: float) -> Surroundings:
        """At this time (monotonic seconds)."""
        if self._known is None or now - self._known[0] >= LOOK_AROUND:
            self._known = now, self._read()
        return self._known[1]


def _state(report: Report, now: Moment) -> NodeState:
    shown = tuple(by_severity(report.findings)[:MOST_FINDINGS])
    reasons = Counter(str(each.reason) for each in report.findings)
    return NodeState(replace(report, findings=shown), dict(reasons), len(report.findings), now.unix)


def _parameters(request: Request) -> dict[str, str]:
    return dict(parse_qsl(request.query, keep_blank_values=True))


def _html(document: Document) -> Response:
    return Response(content_type="text/html; charset=utf-8", body=document.body, headers=document.headers)


def _json(value: Any) -> Response:
    return Response(content_type=JSON, body=msgspec.json.encode(value))


def _with_headers(response: Response) -> Response:
    own = {name for name, _ in response.headers}
    return response._replace(headers=(*response.headers, *(each for each in COMMON_HEADERS if each[0] not in own)))
