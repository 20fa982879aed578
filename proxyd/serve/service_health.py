"""healthCheckNodePort: tells load balancers, Service by Service, whether this node has endpoints of its own.

Source: the Service API (healthCheckNodePort, externalTrafficPolicy Local). One listener for each Service, family and
address that takes node ports, all of them on the one event loop.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from proxyd.model import Family, ServiceKey
from proxyd.serve.http import ANY_PATH, Listener, Request, Response, Routes, Server
from proxyd.sync.status import FamilyStatus, Status

ANY_ADDRESS = {Family.IPV4: "0.0.0.0", Family.IPV6: "::"}  # noqa: S104 - node ports answer on every address


class Check(NamedTuple):
    """One listener that has to be there."""

    family: Family
    key: ServiceKey
    host: str
    port: int


def checks_of(family: FamilyStatus) -> set[Check]:
    """The listeners that the Services of one family ask for."""
    hosts = family.node_port_addresses
    if hosts is None:
        hosts = (ANY_ADDRESS[family.family],)
    return {Check(family.family, each.key, host, each.port) for each in family.health_checks for host in hosts}


def answer(key: ServiceKey, local: int, healthy: bool) -> Response:
    """What a load balancer is told: 200 while this node has ready endpoints and its rules are up to date."""
    body = {
        "service": {"namespace": key.namespace, "name": key.name},
        "localEndpoints": local,
        "serviceProxyHealthy": healthy,
    }
    return Response(
        200 if local and healthy else 503,
        "application/json",
        json.dumps(body, indent="\t").encode(),
        (("X-Load-Balancing-Endpoint-Weight", str(local)),),
    )


class ServiceHealth:
    """Keeps listeners in step with what is written to the kernel. ``update`` is called by the sync thread."""

    def __init__(
        self,
        server: Server,
        healthy: Callable[[], bool],
        told: Callable[[ServiceKey, str], None] = lambda *_: None,
    ) -> None:
        """``healthy`` tells at each request whether the rules are up to date; ``told`` is told of ports that are taken."""
        self._told = told
        self._server = server
        self._healthy = healthy
        self._listeners: dict[Check, Listener] = {}
        # Replaced whole; read on the server's thread.
        self._local: dict[tuple[Family, ServiceKey], int] = {}

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners that are wanted, whether they have their port yet or not."""
        return tuple(self._listeners.values())

    def update(self, status: Status) -> None:
        """Takes what is in the kernel now: opens and closes listeners, and answers by it from here on."""
        self._local = {
            (family.family, each.key): each.local_endpoints
            for family in status.families
            for each in family.health_checks
        }
        wanted = set().union(*(checks_of(family) for family in status.families))
        for check in self._listeners.keys() - wanted:
            self._server.remove_listener(self._listeners.pop(check))
        for check in wanted - self._listeners.keys():
            told = partial(self._told, check.key)
            # Each family answers for itself, on the same port.
            self._listeners[check] = self._server.add_listener(
                check.host, check.port, self._routes(check), told=told, both=False
            )

    def _routes(self, check: Check) -> Routes:
        def handle(_request: Request) -> Response:
            return answer(check.key, self._local.get((check.family, check.key), 0), self._healthy())

        return {ANY_PATH: handle}
