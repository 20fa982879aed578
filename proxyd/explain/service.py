"""The answer to: where do connections to this Service go, and why?"""

from __future__ import annotations

from collections.abc import Iterator

from proxyd.desired.admission import admit
from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Route, claims_of
from proxyd.explain.answer import (
    Explanation,
    Listed,
    Omitted,
    Place,
    PortExplanation,
    ServiceExplanation,
    Verdict,
    together,
)
from proxyd.explain.endpoints import all_endpoints
from proxyd.explain.packet import explain_packet
from proxyd.explain.question import Named, family_of
from proxyd.explain.view import KINDS, Concerned, Entry, Packet, View, Worked, address_of, concerned
from proxyd.model import Reason, ServicePort

_VERDICTS = {
    Route.REJECT: Verdict.REJECTED,
    Route.DROP: Verdict.DROPPED,
    Route.EXTERNAL_NO_LOCAL: Verdict.PARTLY,
}
_CLUSTER = {Route.CLUSTER, Route.EXTERNAL, Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL, Route.REJECT}
_LOCAL = {Route.LOCAL, Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL, Route.DROP}


def explain_service(view: View, named: Named, source: str = "", interface: str = "") -> ServiceExplanation:
    """Says where each frontend of a Service leads in one family, and with a ``source`` what becomes of its packets.

    Raises ``NeedsInterfaceError``.
    """
    service, _ = view.lookup(named.service)
    family, key = view.settings.family, str(named.service)
    if service is None:
        return ServiceExplanation(key, view.mode, family, Verdict.UNTOUCHED, _unknown(view, key))
    addresses = {address_of(text) for text in (*service.cluster_ips, *service.external_ips, *service.ingress_ips)}
    about = concerned(
        view, addresses - {""}, {(p.protocol, p.node_port) for p in service.ports if p.node_port}, {named.service}
    )
    worked = about.services[named.service]
    notes = (*(f"{each.reason}: {each.object}: {each.message}" for each in worked.findings),)
    if worked.unwritten:
        reason = f"it is not in the kernel: {worked.unwritten}"
        return ServiceExplanation(key, view.mode, family, Verdict.UNSERVED, reason, notes=notes)
    if worked.admitted is None or worked.forwarding is None:
        elsewhere = bool(admit(service).families)
        return ServiceExplanation(
            key,
            view.mode,
            family,
            Verdict.UNTOUCHED if elsewhere else Verdict.UNSERVED,
            f"it has no {family} cluster IP{'' if elsewhere else ', nor any other, that can be served'}",
            notes=notes,
        )
    ports = tuple(_ports(view, about, worked, named.port))
    verdict = together(place.verdict for port in ports for place in port.places)
    packets: tuple[Explanation, ...] = ()
    if source and family_of(source) is family:
        wanted = [each for each in worked.admitted.ports if _is_wanted(each, named.port)]
        packets = tuple(explain_packet(view, each) for each in _packets(view, worked, wanted, source, interface))
        verdict = together(each.verdict for each in packets)
    reason = "" if ports else f"it has no port {named.port}" if named.port else "it has no port that can be served"
    return ServiceExplanation(key, view.mode, family, verdict, reason, ports, packets, notes)


def _unknown(view: View, key: str) -> str:
    unreadable = (
        e for e in view.findings if e.reason is Reason.UNREADABLE_OBJECT and (e.kind, e.object) == ("Service", key)
    )
    found = next(unreadable, None)
    if found is not None:
        return f"it cannot be read: {found.message}"
    return "there is no such Service here, or it is headless, of type ExternalName or another proxy's"


def _is_wanted(port: ServicePort, wanted: str) -> bool:
    return wanted in ("", port.name, str(port.port))


def _ports(view: View, about: Concerned, worked: Worked, wanted: str) -> Iterator[PortExplanation]:
    if worked.admitted is None or worked.forwarding is None:
        return
    for own, made in zip(worked.admitted.ports, worked.forwarding.ports, strict=True):
        if not _is_wanted(own, wanted):
            continue
        entries = [Entry(worked, worked.forwarding, made, each) for each in made.frontends]
        routes = {each.frontend.route for each in entries}
        cluster, cluster_out = _list(view, entries, made.cluster, local=False) if routes & _CLUSTER else ((), ())
        local, local_out = _list(view, entries, made.local, local=True) if routes & _LOCAL else ((), ())
        yield PortExplanation(
            own.name,
            own.protocol,
            own.port,
            (*(_place(view, each) for each in entries), *_lost(about, worked, own)),
            cluster,
            cluster_out,
            local,
            local_out,
            made.affinity_seconds,
        )


def _list(
    view: View, entries: list[Entry], backends: tuple[Backend, ...], *, local: bool
) -> tuple[tuple[Listed, ...], tuple[Omitted, ...]]:
    known = all_endpoints(view, entries[0], local=local)
    return tuple(Listed(*each, known.nodes.get(each)) for each in backends), known.left_out


def _place(view: View, entry: Entry) -> Place:
    frontend = entry.frontend
    verdict = _VERDICTS.get(frontend.route, Verdict.DELIVERED)
    how = _how(view, frontend.route)
    if frontend.kind is Kind.NODE_PORT:
        taken, localhost = view.settings.node_port_addresses, entry.forwarding.localhost or view.on_loopback
        how += f"; on {'all addresses of the node' if taken is None else ', '.join(taken) or 'no address'}"
        how += " and on localhost" if localhost else ""
        verdict = Verdict.UNSERVED if taken == () and not localhost else verdict
    if frontend.sources is not None:
        how += f"; only from {', '.join(frontend.sources) or 'nobody'}"
        if not frontend.sources and (verdict is not Verdict.REJECTED or view.mode == "nftables"):
            verdict = Verdict.DROPPED
    return Place(str(frontend.key), KINDS[frontend.kind], verdict, how, frontend.route, frontend.sources)


def _how(view: View, route: Route) -> str:
    local = view.settings.local
    pods = f"pods of this node ({local.cidr or local.interface})" if local else "pods of this node (none is known)"
    kept = f"source kept for {pods}, else replaced" if local else "source kept"
    internal = "source replaced" if view.settings.masquerade_all else kept
    match route:
        case Route.CLUSTER:
            return f"to any endpoint, {internal}"
        case Route.LOCAL:
            return f"to endpoints on this node only, {internal}"
        case Route.EXTERNAL:
            return "to any endpoint, source replaced"
        case Route.REJECT:
            return "rejected: no endpoint anywhere can be used"
        case Route.DROP:
            return "dropped: internalTrafficPolicy Local, and no endpoint on this node"
    others = "to endpoints on this node only, source kept" if route is Route.EXTERNAL_LOCAL else "dropped"
    return f"{pods} and the node itself (source replaced) to any endpoint; others {others}"


def _lost(about: Concerned, worked: Worked, port: ServicePort) -> Iterator[Place]:
    """The frontends that other Services have."""
    if worked.admitted is None:
        return
    numbers = {(port.protocol, port.port), (port.protocol, port.node_port)}
    for key, claim in claims_of(worked.service, worked.admitted).items():
        holder = about.frontends.get(key)
        if (key.protocol, key.port) in numbers and (holder is None or holder.forwarding.key != worked.service.key):
            served = f"served for {holder.forwarding.key} instead" if holder else "another Service claims it"
            yield Place(str(key), KINDS[claim.kind], Verdict.UNSERVED, f"conflict lost: {served}")


def _packets(view: View, worked: Worked, ports: list[ServicePort], source: str, interface: str) -> Iterator[Packet]:
    """A packet to each place of these ports; to a node port at the first address that takes them."""
    if worked.admitted is None:
        return
    taken = view.settings.node_port_addresses
    node_address = (taken or (view.settings.node_ip,))[0]
    mine = {(port.protocol, number) for port in ports for number in (port.port, port.node_port) if number}
    for key in claims_of(worked.service, worked.admitted):
        if (key.protocol, key.port) in mine and (address := _address(key, node_address)):
            yield Packet(source, address, key.protocol, key.port, interface)


def _address(key: FrontendKey, node_address: str) -> str:
    return key.address or node_address
