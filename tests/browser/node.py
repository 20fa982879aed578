"""A node whose state a test makes up, with its status page on a real socket."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from proxyd.kernel.surroundings import Surroundings
from proxyd.model import Action, Event, Family, Finding, Origin
from proxyd.serve.explaining import Explainer
from proxyd.serve.health import Moment
from proxyd.serve.history import HistoryRoute
from proxyd.serve.http import Server
from proxyd.serve.page.routes import PageSources, page_routes
from proxyd.serve.report import Detected, Identity, Report, build_report
from proxyd.sync.history import FamilyWrite, History
from proxyd.sync.status import FamilyStatus, PassResult, Status
from proxyd.sync.traffic import Traffic
from tests import build
from tests.serve.web import listen, port_of

V4, V6 = Family.IPV4, Family.IPV6
ME = Identity(
    version="1.2.3",
    mode="nftables",
    node="node1",
    started="2026-11-29T20:00:00Z",
    kernel="6.12.0",
    nftables="1.1.3",
    detected=(
        Detected("node name", "node1", "hostnameOverride"),
        Detected("ip families", "IPv4,IPv6", "/proc/net/if_inet6"),
    ),
)


class Watch:
    """The state of a watch."""

    def __init__(self, *, connected: bool = True) -> None:
        self.connected = connected
        self.last_event: float | None = Moment.now().monotonic
        self.relists = 1
        self.errors: dict[str, int] = {} if connected else {"timeout": 3}
        self.clock_offset = None


def well(family: Family, **fields: Any) -> FamilyStatus:
    """The status of a family that is up to date."""
    now = Moment.now()
    given = {
        "last_success": now.monotonic,
        "last_success_time": now.unix - 42,
        "services": 3,
        "endpoints": 7,
        "settings": build.settings(family),
        "last_pass": PassResult(family, False, 0.0012, 1, 4),
    }
    return FamilyStatus(family, **(given | fields))


def write(family: Family = V4, seconds: float = 0.002, **fields: Any) -> FamilyWrite:
    """What a pass wrote."""
    given = {"full": False, "operations": 4, "waited_seconds": 0.0003, "work_seconds": 0.0004}
    return FamilyWrite(family, kernel_seconds=seconds, **(given | fields))


class PageNode:
    """The node and its server. A context manager: the server has ended after it. Its attributes may change meanwhile."""

    def __init__(
        self,
        *objects: Any,
        families: Iterable[FamilyStatus] | None = None,
        findings: tuple[Finding, ...] = (),
        watches: Mapping[str, Watch] | None = None,
        identity: Identity = ME,
        around: Surroundings | None = None,
        traffic: Mapping[Family, Traffic] | None = None,
    ) -> None:
        self.store = build.store(*objects)
        self.store.take()
        families = (well(V4), well(V6)) if families is None else tuple(families)
        self.status = Status(identity.mode, families, findings)
        self.watches = (
            {"services": Watch(), "endpointslices": Watch(), "nodes": Watch()} if watches is None else watches
        )
        self.history = History()
        self.identity, self.around, self.traffic = identity, around or Surroundings(), traffic or {}
        self.server = Server()

    def __enter__(self) -> Self:
        self.server.start()
        explain = Explainer(self.store, lambda: self.status, lambda family: frozenset({build.NODE_IP[family]}))
        sources = PageSources(
            report=self.report,
            around=lambda: self.around,
            store=self.store,
            status=lambda: self.status,
            explain=explain.answer,
            traffic=lambda: self.traffic,
            history=HistoryRoute(self.history, self.identity.started),
        )
        self.listener = listen(self.server, page_routes(sources, "127.0.0.1"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.server.stop()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{port_of(self.listener)}/"

    def family(self, family: Family, **changes: Any) -> None:
        """Changes what is known of a family."""
        families = (replace(each, **changes) if each.family is family else each for each in self.status.families)
        self.status = replace(self.status, families=tuple(families))

    def passed(self, *writes: FamilyWrite, origin: Origin = Origin.ENDPOINTS, about: str = "default/web-1") -> None:
        """Adds a pass to the history."""
        now = Moment.now().unix
        event = Event(origin, about, Action.MODIFIED if about else Action.NONE)
        self.history.record(now, now, (event,), 0, (build.key(),), writes or (write(),))

    def report(self, now: Moment, around: Surroundings) -> Report:
        """The node report."""
        return build_report(self.identity, self.status, self.watches, around, now, 30.0, None)
