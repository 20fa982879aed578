"""Which parts of a Service can be served at all: each address, port and range is judged alone, and refusals are Findings.

The API server validates most of this, but not for ever: older objects, other writers of status and manifests bring
what it would refuse, and one bad token in rule text would stop every Service of the node.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from proxyd.addresses import canonical, canonical_range, collapse, is_usable_frontend
from proxyd.model import FAMILIES, PROTOCOLS, Family, Finding, Reason, Service, ServicePort

Refuse = Callable[[Reason, str], None]

# What the API allows for the timeout of ClientIP affinity, and its default (seconds).
AFFINITY_AT_MOST, AFFINITY_DEFAULT = 86400, 10800


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """What one family may serve of a Service, all canonical.

    ``sources`` is None where load balancer addresses are open to all, and empty where they are closed to all.
    """

    cluster_ip: str
    external_ips: tuple[str, ...]
    ingress_ips: tuple[str, ...]
    sources: tuple[str, ...] | None
    ports: tuple[ServicePort, ...]
    affinity_seconds: int = 0


class Admission(msgspec.Struct, frozen=True, gc=False):
    """The outcome for one Service: what each family serves (absent: nothing), and what was refused."""

    families: dict[Family, Admitted]
    findings: tuple[Finding, ...]


def admit(service: Service) -> Admission:
    """Judges one Service. Never raises: what cannot be served is left out and named in a Finding."""
    findings: list[Finding] = []

    def refuse(reason: Reason, message: str) -> None:
        findings.append(Finding("Service", str(service.key), reason, message))

    cluster_ips: dict[Family, str] = {}
    for family, address in _addresses("spec.clusterIPs", service.cluster_ips, refuse):
        if cluster_ips.setdefault(family, address) != address:
            refuse(Reason.INVALID_ADDRESS, f"spec.clusterIPs: {address} is not served, being a second {family} address")
    ports = _ports(service, refuse)
    external = _addresses("spec.externalIPs", service.external_ips, refuse)
    ingress = _addresses("status.loadBalancer.ingress", service.ingress_ips, refuse)
    for field, listed in (("spec.externalIPs", external), ("status.loadBalancer.ingress", ingress)):
        for family, address in listed:
            if family not in cluster_ips:
                refuse(Reason.INVALID_ADDRESS, f"{field}: {address} is {family}, but there is no {family} cluster IP")
    sources = _sources(service.source_ranges, refuse)
    affinity = _affinity(service.affinity_seconds, refuse)
    if not 0 <= service.health_check_node_port <= 65535:
        number = service.health_check_node_port
        refuse(Reason.INVALID_PORT, f"spec.healthCheckNodePort: {number} is not within 0..65535")
    families = {
        family: Admitted(
            cluster_ip,
            tuple(dict.fromkeys(a for f, a in external if f is family)),
            tuple(dict.fromkeys(a for f, a in ingress if f is family)),
            sources[family],
            ports,
            affinity,
        )
        for family, cluster_ip in cluster_ips.items()
    }
    return Admission(families, tuple(findings))


def _addresses(field: str, texts: tuple[str, ...], refuse: Refuse) -> list[tuple[Family, str]]:
    """Reads a list of addresses; blank entries are skipped silently, as kube-proxy does."""
    out = []
    for index, text in enumerate(texts):
        found = canonical(text)
        if found is not None and is_usable_frontend(*found):
            out.append(found)
        elif text.strip():
            refuse(Reason.INVALID_ADDRESS, f"{field}[{index}]: {text!r} cannot be a Service address")
    return out


def _ports(service: Service, refuse: Refuse) -> tuple[ServicePort, ...]:
    ports: dict[tuple[str, int], ServicePort] = {}
    node_ports: set[tuple[str, int]] = set()
    for index, port in enumerate(service.ports):
        where = f"spec.ports[{index}]"
        if port.protocol not in PROTOCOLS:
            refuse(Reason.INVALID_PORT, f"{where}.protocol: {port.protocol!r} is not TCP, UDP or SCTP")
        elif not 1 <= port.port <= 65535:
            refuse(Reason.INVALID_PORT, f"{where}.port: {port.port} is not within 1..65535")
        elif (port.protocol, port.port) in ports:
            refuse(Reason.DUPLICATE_PORT, f"{where}: {port.port}/{port.protocol} is listed before")
        else:
            ports[port.protocol, port.port] = _with_node_port(port, where, node_ports, refuse)
    return tuple(ports.values())


def _with_node_port(port: ServicePort, where: str, taken: set[tuple[str, int]], refuse: Refuse) -> ServicePort:
    """The port itself, or without its node port where that cannot be used: the rest of it is served all the same."""
    if not 0 <= port.node_port <= 65535:
        refuse(Reason.INVALID_PORT, f"{where}.nodePort: {port.node_port} is not within 0..65535")
    elif port.node_port and (port.protocol, port.node_port) in taken:
        refuse(Reason.DUPLICATE_PORT, f"{where}.nodePort: {port.node_port}/{port.protocol} is listed before")
    else:
        taken.add((port.protocol, port.node_port))
        return port
    return ServicePort(port.name, port.protocol, port.port)


def _affinity(seconds: int, refuse: Refuse) -> int:
    if 0 <= seconds <= AFFINITY_AT_MOST:
        return seconds
    field = "spec.sessionAffinityConfig.clientIP.timeoutSeconds"
    refuse(Reason.INVALID_AFFINITY, f"{field}: {seconds} is not within 1..{AFFINITY_AT_MOST}")
    return AFFINITY_DEFAULT


def _sources(ranges: tuple[str, ...], refuse: Refuse) -> dict[Family, tuple[str, ...] | None]:
    """Allowed sources per family (spec.loadBalancerSourceRanges), overlaps merged.

    As in kube-proxy, a family that the ranges do not mention is open. Not as there: where a range could not be read and
    none is left for the family, it is closed, since somebody meant to restrict it.
    """
    found: dict[Family, list[str]] = {family: [] for family in FAMILIES}
    unreadable = False
    for index, text in enumerate(ranges):
        parsed = canonical_range(text)
        if parsed is not None:
            found[parsed[0]].append(parsed[1])
        elif text.strip():
            unreadable = True
            refuse(Reason.INVALID_SOURCE_RANGE, f"spec.loadBalancerSourceRanges[{index}]: {text!r} is not a CIDR")
    return {f: _merged(r) if r or unreadable else None for f, r in found.items()}


def _merged(ranges: list[str]) -> tuple[str, ...]:
    """Without overlaps; in the order in which they are given, as far as that can be."""
    places = {each: index for index, each in reversed(list(enumerate(ranges)))}
    return tuple(sorted(collapse(tuple(ranges)), key=lambda each: places.get(each, len(ranges))))
