"""What the running proxyd serves, whole: for ``proxyd plan``, over the local socket."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from proxyd import __version__
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, Finding, Node, NodeSettings, Service, ServiceKey
from proxyd.serve.http import Request, Response
from proxyd.sync.status import Status

PATH = "/objects"


class Running(msgspec.Struct, frozen=True):
    """The objects that rules are made from, as they are right now, and what else decides about rules.

    ``given`` are the flags; ``settings`` those of each family that rules have been written with; ``quarantined`` the
    Services that the kernel refused there.
    """

    version: str
    mode: str
    given: dict[str, tuple[str, ...]]
    settings: dict[Family, NodeSettings]
    services: tuple[Service, ...]
    slices: tuple[EndpointSlice, ...]
    node: Node | None
    findings: tuple[Finding, ...] = ()
    unreadable: tuple[Finding, ...] = ()
    quarantined: dict[Family, tuple[ServiceKey, ...]] = {}


class RunningObjects:
    """Answers with ``Running`` as JSON: 503 before rules have been written."""

    def __init__(self, store: Store, status: Callable[[], Status], given: Mapping[str, tuple[str, ...]]) -> None:
        self._store, self._status, self._given = store, status, given

    def __call__(self, _request: Request) -> Response:
        """All objects: a large answer, on the thread that serves."""
        families = [each for each in self._status().families if each.settings is not None]
        if not families:
            return Response(503, body=b"nothing has been written yet")
        store, status = self._store, self._status()
        with store.lock:
            unreadable = tuple(store.unreadable.values())
        running = Running(
            version=__version__,
            mode=status.mode,
            given=dict(self._given),
            settings={each.family: each.settings for each in families if each.settings is not None},
            services=store.all_services(),
            slices=store.all_slices(),
            node=store.node(),
            findings=status.findings,
            unreadable=unreadable,
            quarantined={each.family: tuple(each.quarantined) for each in families if each.quarantined},
        )
        return Response(content_type="application/json", body=msgspec.json.encode(running) + b"\n")
