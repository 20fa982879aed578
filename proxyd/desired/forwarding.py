"""Where each frontend of one Service must lead on this node: the mode-neutral answer that every rule set is made from.

Sources: the Service API; KEP-2086 (internalTrafficPolicy); externalTrafficPolicy with its short-circuits for pods and
the node itself, as kube-proxy has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from proxyd.addresses import contains
from proxyd.desired.admission import Admitted
from proxyd.desired.conflicts import Claim, FrontendKey, Kind, claim
from proxyd.desired.endpoints import Backend, Beaten, Candidates, Choice, choose, merge
from proxyd.model import EndpointSlice, Family, Finding, NodeSettings, Reason, Service, ServiceKey, ServicePort


class Route(StrEnum):
    """What happens to a new connection to a frontend.

    "The node" is traffic made on the node itself; "pods" is what the local-traffic detector says is one of its pods.
    """

    CLUSTER = "cluster"  # everyone to the cluster list
    LOCAL = "local"  # everyone to the local list
    EXTERNAL = "external"  # everyone to the cluster list, source replaced
    EXTERNAL_LOCAL = "external-local"  # pods, the node (source replaced): cluster list; others: local list, source kept
    EXTERNAL_NO_LOCAL = "external-no-local"  # pods and the node as before; others dropped
    REJECT = "reject"  # no endpoint anywhere: refused at once
    DROP = "drop"  # endpoints exist, but none on this node


class Frontend(msgspec.Struct, frozen=True, gc=False):
    """One address and port (or node port) of a ServicePort. ``sources``: who may use it; None is everyone."""

    key: FrontendKey
    kind: Kind
    route: Route
    sources: tuple[str, ...] | None = None


class PortForwarding(msgspec.Struct, frozen=True, gc=False):
    """The forwarding of one ServicePort: its frontends, and the endpoint lists that their routes speak of.

    ``live`` are the endpoints that may keep the flows they have, wherever they are: of UDP those that still serve, of TCP
    (only where connections to gone endpoints are to be reset) all that are in a slice.
    """

    name: str
    protocol: str
    frontends: tuple[Frontend, ...]
    cluster: tuple[Backend, ...] = ()
    local: tuple[Backend, ...] = ()
    beside: tuple[Backend, ...] = ()
    live: tuple[Backend, ...] = ()
    affinity_seconds: int = 0
    no_local_internal: bool = False
    no_local_external: bool = False


class HealthCheck(msgspec.Struct, frozen=True, gc=False):
    """What load balancers ask about a Service on this node: the port to answer on, and how many endpoints are here."""

    key: ServiceKey
    port: int
    local_endpoints: int


class Forwarding(msgspec.Struct, frozen=True, gc=False):
    """All that one family has to forward for one Service, and what a user should know about it.

    ``localhost``: node ports are served on the loopback address too (see ``desired.localhost``).
    """

    key: ServiceKey
    family: Family
    cluster_ip: str
    ports: tuple[PortForwarding, ...]
    findings: tuple[Finding, ...] = ()
    health_check: HealthCheck | None = None
    localhost: bool = False


def claims_of(service: Service, admitted: Admitted) -> dict[FrontendKey, Claim]:
    """What a Service claims in one family; within a Service the stronger kind of address stands for a frontend."""
    claims: dict[FrontendKey, Claim] = {}
    for port in admitted.ports:
        for key, kind in _frontends(port, admitted):
            claims.setdefault(key, claim(kind, service.created, service.key))
    return claims


def _frontends(port: ServicePort, admitted: Admitted) -> list[tuple[FrontendKey, Kind]]:
    """The frontends of a port, strongest kind first, each once."""
    kinds = [(admitted.cluster_ip, Kind.CLUSTER_IP)]
    kinds += [(address, Kind.LOAD_BALANCER) for address in admitted.ingress_ips]
    kinds += [(address, Kind.EXTERNAL_IP) for address in admitted.external_ips]
    found: dict[FrontendKey, Kind] = {}
    for address, kind in kinds:
        found.setdefault(FrontendKey(address, port.protocol, port.port), kind)
    if port.node_port:
        found[FrontendKey("", port.protocol, port.node_port)] = Kind.NODE_PORT
    return list(found.items())


def build_forwarding(
    service: Service,
    admitted: Admitted,
    slices: Sequence[EndpointSlice],
    settings: NodeSettings,
    lost: Mapping[FrontendKey, ServiceKey],
) -> Forwarding:
    """Works out the forwarding of one Service in one family; ``lost`` are its frontends that other Services have."""
    findings = [
        Finding("Service", str(service.key), Reason.FRONTEND_CONFLICT, f"{frontend} is served for {winner} instead")
        for frontend, winner in lost.items()
    ]
    findings += [
        Finding(
            "EndpointSlice", f"{piece.namespace}/{piece.name}", Reason.INVALID_ENDPOINT, _refused_text(piece.refused)
        )
        for piece in slices
        if piece.refused and piece.family is settings.family
    ]
    ports = tuple(_build_port(service, port, admitted, slices, settings, lost) for port in admitted.ports)
    health_check = _health_check(service, slices, settings)
    return Forwarding(
        service.key,
        settings.family,
        admitted.cluster_ip,
        ports,
        tuple(findings),
        health_check,
        settings.localhost_node_ports,
    )


def _health_check(service: Service, slices: Sequence[EndpointSlice], settings: NodeSettings) -> HealthCheck | None:
    """Counts addresses of ready endpoints on this node; terminating ones do not count although they still serve."""
    if not 1 <= service.health_check_node_port <= 65535 or not service.external_local:
        return None
    local = {
        endpoint.address
        for piece in slices
        if piece.family is settings.family and piece.ports
        for endpoint in piece.endpoints
        if endpoint.ready and endpoint.node == settings.node_name
    }
    return HealthCheck(service.key, service.health_check_node_port, len(local))


def _refused_text(refused: tuple[str, ...]) -> str:
    shown = ", ".join(repr(address) for address in refused[:3])
    more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
    return f"{shown}{more} cannot be an endpoint"


def endpoints_of(
    service: Service,
    port: ServicePort,
    admitted: Admitted,
    slices: Sequence[EndpointSlice],
    settings: NodeSettings,
    beaten: Beaten | None = None,
) -> tuple[Candidates, Choice]:
    """All endpoints of a ServicePort, and which of them are used; ``beaten`` gets the duplicates among them."""
    accessible = _is_accessible(port, admitted)
    candidates = merge(slices, settings.family, port.name, port.protocol, settings.node_name, beaten)
    choice = choose(
        candidates,
        settings.node_name,
        settings.zone,
        use_cluster=not service.internal_local or accessible,
        use_local=service.internal_local or (service.external_local and accessible),
    )
    return candidates, choice


def _is_accessible(port: ServicePort, admitted: Admitted) -> bool:
    """Whether there is a way to a ServicePort from outside the cluster."""
    return bool(port.node_port or admitted.ingress_ips or admitted.external_ips)


def _build_port(
    service: Service,
    port: ServicePort,
    admitted: Admitted,
    slices: Sequence[EndpointSlice],
    settings: NodeSettings,
    lost: Mapping[FrontendKey, ServiceKey],
) -> PortForwarding:
    candidates, choice = endpoints_of(service, port, admitted, slices, settings)
    internal, external = _internal_route(service, choice), _external_route(service, choice)
    frontends = tuple(
        Frontend(
            key,
            kind,
            internal if kind is Kind.CLUSTER_IP else external,
            _allowed_sources(admitted, settings) if kind is Kind.LOAD_BALANCER else None,
        )
        for key, kind in _frontends(port, admitted)
        if key not in lost
    )
    routes = {frontend.route for frontend in frontends}
    return PortForwarding(
        name=f"{service.key}:{port.name}" if port.name else str(service.key),
        protocol=port.protocol,
        frontends=frontends,
        cluster=choice.cluster if routes & _USES_CLUSTER else (),
        local=choice.local if routes & _USES_LOCAL else (),
        beside=choice.beside,
        live=_live(port.protocol, candidates, settings),
        affinity_seconds=admitted.affinity_seconds,
        no_local_internal=internal is Route.DROP,
        no_local_external=_is_accessible(port, admitted) and external is Route.EXTERNAL_NO_LOCAL,
    )


def _live(protocol: str, candidates: Candidates, settings: NodeSettings) -> tuple[Backend, ...]:
    if protocol == "udp":
        return tuple(b for b, e in candidates.items() if e.ready or e.serving)
    return tuple(candidates) if protocol == "tcp" and settings.reset_gone_tcp else ()


_USES_CLUSTER = {Route.CLUSTER, Route.EXTERNAL, Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL}
_USES_LOCAL = {Route.LOCAL, Route.EXTERNAL_LOCAL}


def _internal_route(service: Service, choice: Choice) -> Route:
    if not choice.exists:
        return Route.REJECT
    if not service.internal_local:
        return Route.CLUSTER
    return Route.LOCAL if choice.local else Route.DROP


def _external_route(service: Service, choice: Choice) -> Route:
    if not choice.exists:
        return Route.REJECT
    if not service.external_local:
        return Route.EXTERNAL
    return Route.EXTERNAL_LOCAL if choice.local else Route.EXTERNAL_NO_LOCAL


def _allowed_sources(admitted: Admitted, settings: NodeSettings) -> tuple[str, ...] | None:
    """Source ranges of load balancer addresses. Where they hold this node, the addresses themselves are let in too.

    A node that uses a load balancer address which is bound on it appears with that address as its source.
    """
    sources = admitted.sources
    if sources is None or not settings.node_ip or not any(contains(r, settings.node_ip) for r in sources):
        return sources
    own = [address for address in admitted.ingress_ips if not any(contains(r, address) for r in sources)]
    length = 32 if settings.family is Family.IPV4 else 128
    return (*sources, *(f"{address}/{length}" for address in own))
