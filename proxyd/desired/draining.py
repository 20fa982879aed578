"""Endpoints that get no new connections and may hold some: those that terminate, and those in no slice any more.

What a running proxyd tells of its Services, and the decision to which endpoint a tracked flow belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from proxyd.desired.admission import Admitted
from proxyd.desired.conflicts import Claim, FrontendKey, Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import claims_of
from proxyd.model import CamelStruct, EndpointSlice, Family, NodeSettings, Service, ServiceKey, ServicePort

# States of TCP that conntrack knows (nf_conntrack_tcp.h) in which data may still come: both sides have spoken and not
# both have ended (SYN_RECV, ESTABLISHED, FIN_WAIT, CLOSE_WAIT). The rest is the memory of what is over, or never began.
OPEN = frozenset({2, 3, 4, 5})
# What conntrack's flows are counted of.
COUNTED = frozenset({"tcp", "udp"})


class Ended(StrEnum):
    """Why an endpoint is to lose its connections: a closed list, documented for operators."""

    TERMINATING = "terminating"  # it is in a slice, as terminating
    GONE = "gone"  # it is in no slice of the Service any more


class Front(CamelStruct, frozen=True):
    """A frontend as a Service claims it; the address is "" for node ports on every address."""

    address: str
    port: int
    kind: Kind
    created: str = ""


class PortState(CamelStruct, frozen=True):
    """One port of a Service in one family: its frontends, and all its endpoints.

    ``endpoints`` are those that do not terminate, as "address port"; of the others, the seconds since that was first seen.
    """

    namespace: str
    service: str
    family: Family
    port_name: str
    protocol: str
    fronts: tuple[Front, ...]
    endpoints: tuple[tuple[str, int], ...]
    terminating: tuple[tuple[str, int, float], ...]


class Ports(CamelStruct, frozen=True):
    """The ports of some Services, and where to go on (None: that was all)."""

    # No default, so that an answer that is another one altogether does not look like "none".
    ports: tuple[PortState, ...]
    after: str | None = None


class Held(CamelStruct, frozen=True):
    """Connections of one endpoint. ``terminating_seconds`` is since it was first seen so, None where it is gone.

    ``oldest_seconds`` is None where the kernel does not note when flows begin, or there is none.
    """

    service: str
    port_name: str
    protocol: str
    address: str
    port: int
    why: Ended
    connections: int = 0
    terminating_seconds: float | None = None
    oldest_seconds: float | None = None


def port_states(
    service: Service,
    admitted: Mapping[Family, Admitted],
    slices: Iterable[EndpointSlice],
    settings: Mapping[Family, NodeSettings],
    terminating: Mapping[tuple[Family, str], float],
) -> list[PortState]:
    """What there is to know of a Service; ``terminating`` has seconds by family and address."""
    pieces = tuple(slices)
    found = []
    for family, of_family in settings.items():
        if (served := admitted.get(family)) is None:
            continue
        claims = claims_of(service, served)
        for port in served.ports:
            if port.protocol in COUNTED:
                mine = _backends([each for each in pieces if each.family is family], port)
                found.append(
                    PortState(
                        *service.key,
                        family,
                        port.name,
                        port.protocol,
                        tuple(_fronts(service, port, claims, of_family)),
                        tuple(each for each, ends in mine.items() if not ends),
                        tuple(
                            (*each, terminating.get((family, each.address), 0.0)) for each, ends in mine.items() if ends
                        ),
                    )
                )
    return found


def _backends(slices: Iterable[EndpointSlice], port: ServicePort) -> dict[Backend, bool]:
    """All endpoints of a port, and whether each terminates wherever it is listed."""
    found: dict[Backend, bool] = {}
    for piece in slices:
        for own in piece.ports:
            if (own.name, own.protocol) == (port.name, port.protocol):
                for each in piece.endpoints:
                    backend = Backend(each.address, own.port)
                    found[backend] = found.get(backend, True) and each.terminating
    return found


def _fronts(
    service: Service, port: ServicePort, claims: Mapping[FrontendKey, Claim], settings: NodeSettings
) -> Iterable[Front]:
    for key, claim in claims.items():
        if key.protocol != port.protocol:
            continue
        if claim.kind is Kind.NODE_PORT and key.port == port.node_port:
            taken = settings.node_port_addresses
            for address in ("",) if taken is None else taken:
                yield Front(address, key.port, claim.kind, service.created)
        elif claim.kind is not Kind.NODE_PORT and key.port == port.port:
            yield Front(key.address, key.port, claim.kind, service.created)


class Flow(NamedTuple):
    """A tracked flow that is translated. ``began`` is in Unix seconds, None if not known; ``tcp_state`` 0 without TCP."""

    frontend: FrontendKey
    answers: Backend
    tcp_state: int = 0
    began: float | None = None


class _Sum:
    """The connections of one endpoint so far."""

    def __init__(self) -> None:
        self.count = 0
        self.oldest: float | None = None

    def add(self, began: float | None) -> None:
        self.count += 1
        if began is not None:
            self.oldest = began if self.oldest is None else min(self.oldest, began)


class Count:
    """Counts flows of one family by endpoint. Memory is bounded by what the Services have and by endpoints gone."""

    def __init__(self, family: Family, ports: Iterable[PortState]) -> None:
        self._ports = [each for each in ports if each.family is family]
        self._owner: dict[FrontendKey, int] = {}
        claims: dict[FrontendKey, Claim] = {}
        for number, each in enumerate(self._ports):
            key = ServiceKey(each.namespace, each.service)
            for front in each.fronts:
                frontend = FrontendKey(front.address, each.protocol, front.port)
                claim = Claim(front.kind, not front.created, front.created, key)
                if frontend not in claims or claim < claims[frontend]:
                    claims[frontend], self._owner[frontend] = claim, number
        self._staying = [frozenset(Backend(*each) for each in port.endpoints) for port in self._ports]
        self._sums: list[dict[Backend, _Sum]] = [
            {Backend(address, number): _Sum() for address, number, _ in port.terminating} for port in self._ports
        ]

    def frontends(self) -> list[FrontendKey]:
        """What flows are to be looked for."""
        return list(self._owner)

    def add(self, flow: Flow) -> None:
        """Counts a flow, if it is open and its endpoint terminates or is gone."""
        number = self._owner.get(flow.frontend)
        if number is None or (flow.frontend.protocol == "tcp" and flow.tcp_state not in OPEN):
            return
        if flow.answers not in self._staying[number]:
            self._sums[number].setdefault(flow.answers, _Sum()).add(flow.began)

    def held(self, now: float) -> list[Held]:
        """All endpoints that terminate, and those gone that hold connections; ``now`` is in Unix seconds."""
        found = []
        for port, sums in zip(self._ports, self._sums, strict=True):
            since = {Backend(address, number): seconds for address, number, seconds in port.terminating}
            for backend, each in sums.items():
                found.append(
                    Held(
                        f"{port.namespace}/{port.service}",
                        port.port_name,
                        port.protocol,
                        *backend,
                        Ended.TERMINATING if backend in since else Ended.GONE,
                        each.count,
                        since.get(backend),
                        None if each.oldest is None else max(0.0, now - each.oldest),
                    )
                )
        return found
