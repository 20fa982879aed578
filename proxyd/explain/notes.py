"""What else there is to say: Findings, others who claim the same, and why nothing serves what a Service names."""

from __future__ import annotations

from collections.abc import Iterator

from proxyd.desired.forwarding import claims_of
from proxyd.explain.view import Concerned, Entry, Packet, View, Worked, address_of
from proxyd.model import Reason, Service


def notes_about(entry: Entry, about: Concerned) -> tuple[str, ...]:
    """What to know beside the answer about a frontend: Findings of its Service, and who claims it in vain."""
    own = [f"{each.reason}: {each.object}: {each.message}" for each in entry.worked.findings]
    rivals = (
        f"{Reason.FRONTEND_CONFLICT}: {key} claims {entry.frontend.key} too, and does not get it"
        for key, each in sorted(about.services.items())
        if each.service.key != entry.forwarding.key
        and each.admitted is not None
        and entry.frontend.key in claims_of(each.service, each.admitted)
    )
    return (*own, *rivals)


def unserved(view: View, packet: Packet, about: Concerned) -> tuple[str, ...]:
    """Why no rule is about a packet although Services name its destination; empty where none does."""
    found = (_why(view, packet, about, each) for _, each in sorted(about.services.items()))
    return tuple(reason for reasons in found for reason in reasons)


def asks_about(service: Service, port: int) -> bool:
    """Whether load balancers ask about a Service at this port."""
    return service.external_local and service.health_check_node_port == port


def _why(view: View, packet: Packet, about: Concerned, worked: Worked) -> Iterator[str]:
    service, key, destination = worked.service, worked.service.key, packet.destination
    listed = (*service.cluster_ips, *service.external_ips, *service.ingress_ips)
    if any(address_of(text) == destination for text in listed):
        yield from _why_not_at_address(packet, about, worked)
    wanted = (packet.protocol, packet.port)
    if view.is_here(destination) and wanted in {(port.protocol, port.node_port) for port in service.ports}:
        if worked.unwritten:
            yield f"{key} has this node port, but is not in the kernel: {worked.unwritten}"
        elif about.node_port(*wanted) is not None:
            taken = view.settings.node_port_addresses
            where = "addresses of the node other than loopback" if taken is None else ", ".join(taken) or "no address"
            yield f"{key} has this node port, but node ports are taken on {where}"
        else:
            yield from _refusals(worked, f"{key} names this node port, but does not get it")


def _why_not_at_address(packet: Packet, about: Concerned, worked: Worked) -> Iterator[str]:
    _, destination, protocol, port, _ = packet
    key, admitted = worked.service.key, worked.admitted
    if worked.unwritten:
        yield f"{key} has this address, but is not in the kernel: {worked.unwritten}"
    elif admitted is None or destination not in (admitted.cluster_ip, *admitted.external_ips, *admitted.ingress_ips):
        yield from _refusals(worked, f"{key} names this address, but it is not served")
    elif about.at(destination, protocol, port) is not None:
        yield f"{key} has no endpoint for it, and the rules of this mode do not refuse what the node itself sends there"
    else:
        yield from _refusals(worked, f"{key} has this address, but no port {port}/{protocol}")


def _refusals(worked: Worked, text: str) -> Iterator[str]:
    yield "; ".join((text, *(f"{each.reason}: {each.message}" for each in worked.findings)))
