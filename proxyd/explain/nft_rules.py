"""What the rules of nftables mode do with a packet (``nft.fixed`` has them); names are told without their generation."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from proxyd.addresses import is_loopback
from proxyd.desired.conflicts import Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Route
from proxyd.desired.localhost import refused
from proxyd.explain.answer import REPLACED, Source, Step, Verdict
from proxyd.explain.rules import Refusal, Sender, Way, is_allowed, no_endpoints, not_allowed
from proxyd.explain.view import Concerned, Entry, Packet, View
from proxyd.nft.layout import LOCAL_BASE, LOCALHOST_REFUSED, Layout
from proxyd.nft.render import ServiceObjects, frontend_text, render_service

_UNTRANSLATED = {Route.REJECT, Route.DROP}


class NftRules:
    """Implements ``Rules``."""

    def __init__(self, view: View, packet: Packet, concerned: Concerned) -> None:
        self._view, self._packet, self._concerned = view, packet, concerned
        self._sender = Sender(view, packet)

    def before(self) -> Refusal | None:
        """See ``Rules``: the firewall looks at the load balancer's address, before translation."""
        return self._firewall(self._packet.destination, self._packet.port)

    def _firewall(self, address: str, port: int) -> Refusal | None:
        entry = self._concerned.at(address, self._packet.protocol, port)
        if entry is None or is_allowed(entry, self._packet.source):
            return None
        step = Step("set firewall-sources", f"no {frontend_text(entry.frontend)} . {self._packet.source}: drop")
        return Refusal(Verdict.DROPPED, not_allowed(entry, self._packet.source), (step,), entry)

    def way(self) -> Way | None:
        """See ``Rules``."""
        _, destination, protocol, port, _ = self._packet
        entry = self._concerned.at(destination, protocol, port)
        if entry is not None and entry.frontend.route not in _UNTRANSLATED:
            return self._to(entry)
        entry = self._concerned.node_port(protocol, port) if self._takes_node_ports(destination) else None
        if entry is not None and entry.frontend.route not in _UNTRANSLATED:
            return self._to(entry)
        return None

    def after(self, address: str, port: int, _marked: bool, /) -> Refusal | None:
        """See ``Rules``."""
        here = self._view.is_here(address)
        if self._sender.is_node or not here:
            found = self._no_endpoints(address, port) or self._cluster_ip(address)
            if found is not None or not here:
                return found
            # What the node sends to itself comes in by the loopback interface, translated, and meets the firewall again.
            if found := self._firewall(address, port):
                return found
        return self._node_port(address, port) or self._no_endpoints(address, port)

    def may_call_themselves(self, way: Way) -> Collection[Backend]:
        """See ``Rules``: only endpoints that can be on this node are in the set."""
        return way.entry.port.beside

    def _to(self, entry: Entry) -> Way | None:
        if entry.frontend.kind is Kind.CLUSTER_IP:
            local, source = entry.frontend.route is Route.LOCAL, self._sender.internal()
        else:
            found = self._sender.external(entry.frontend.route)
            if found is None:
                return None
            local, source = found
            if source not in REPLACED and self._packet.destination in self._concerned.cluster_ips:
                # What goes to a cluster IP is marked whatever the port.
                internal = self._sender.internal()
                source = internal if internal in REPLACED else source
        return Way(entry, local, source, tuple(_path(entry, self._layout, local=local, source=source)))

    def _takes_node_ports(self, address: str) -> bool:
        taken = self._view.settings.node_port_addresses
        if taken is None:
            return self._view.is_here(address) and not is_loopback(address)
        return address in taken

    def _no_endpoints(self, address: str, port: int) -> Refusal | None:
        return _refusal(self._concerned.at(address, self._packet.protocol, port), "map no-endpoints")

    def _node_port(self, address: str, port: int) -> Refusal | None:
        entry = self._concerned.node_port(self._packet.protocol, port)
        if self._takes_node_ports(address) and (found := _refusal(entry, "map no-endpoint-nodeports")):
            return found
        if (
            entry is None
            or not is_loopback(address)
            or all(entry.frontend != each for each, _ in refused(entry.forwarding))
        ):
            return None
        reason = "node ports on localhost are served for TCP only"
        step = Step(f"map {LOCALHOST_REFUSED}", f"{frontend_text(entry.frontend)}: reject")
        return Refusal(Verdict.REJECTED, reason, (step,), entry)

    def _cluster_ip(self, address: str) -> Refusal | None:
        key = self._concerned.cluster_ips.get(address)
        if key is None:
            return None
        reason = f"{address} is the cluster IP of {key}, which has no such port"
        return Refusal(
            Verdict.REJECTED, reason, (Step("chain cluster-ips-check", f"{address} in cluster-ips: reject"),)
        )

    @property
    def _layout(self) -> Layout:
        settings = self._view.settings
        return Layout(settings.family, 0, settings.masquerade_mark, settings.drop_invalid)


def _refusal(entry: Entry | None, where: str) -> Refusal | None:
    if entry is None or entry.frontend.route not in (*_UNTRANSLATED, Route.EXTERNAL_NO_LOCAL):
        return None
    verdict = Verdict.REJECTED if entry.frontend.route is Route.REJECT else Verdict.DROPPED
    what = "reject" if verdict is Verdict.REJECTED else "drop"
    step = Step(where, f"{frontend_text(entry.frontend)}: {what}")
    return Refusal(verdict, no_endpoints(entry), (step,), entry)


def _path(entry: Entry, layout: Layout, *, local: bool, source: Source) -> list[Step]:
    """The maps that the packet meets, with what it finds there: read off the objects of the Service."""
    only = replace(entry.forwarding, ports=(replace(entry.port, frontends=(entry.frontend,)),))
    objects, key = render_service(only, layout), frontend_text(entry.frontend)
    node_port = entry.frontend.kind is Kind.NODE_PORT
    found = [_found(objects, layout, "service-nodeports" if node_port else "service-ips", key)]
    if entry.frontend.route in (Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL):
        lists = "local-only" if local else "cluster"
        found.append(_found(objects, layout, f"{'nodeport' if node_port else 'external'}-{lists}", key))
    if not entry.port.affinity_seconds:
        container = layout.endpoints(entry.port.protocol, node_port=node_port)
        second = local and entry.frontend.route is Route.EXTERNAL_LOCAL
        first = LOCAL_BASE if second else 0
        count = len(entry.port.local if local else entry.port.cluster)
        address, _, port = entry.frontend.key
        place = f"{address} . {port}" if address else str(port)
        name = container.removeprefix(layout.name(""))
        found.append(
            Step(f"map {name}", f"{place} . {first}{f'..{first + count - 1}: one of them' if count > 1 else ''}")
        )
    if source in REPLACED:
        found.append(Step("chain masquerading", "the packet is marked: masquerade"))
    return found


def _found(objects: ServiceObjects, layout: Layout, container: str, key: str) -> Step:
    value = next(each.value for each in objects.elements if (each.container, each.key) == (layout.name(container), key))
    return Step(f"map {container}", f"{key}: {value.replace(layout.name(''), '')}")
