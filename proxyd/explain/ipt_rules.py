"""What the rules of iptables mode do with a packet (``ipt.fixed``, ``ipt.render``): as kube-proxy's, with their gaps.

Beside nftables mode: source ranges are looked at after endpoints, a load balancer's address with ranges that do not hold
the client may still be a node port, nothing refuses other ports of a cluster IP, and what the node itself sends to an
external address without endpoints is not refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from proxyd.addresses import is_loopback
from proxyd.desired.conflicts import Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Route
from proxyd.explain.answer import REPLACED, Source, Step, Verdict
from proxyd.explain.rules import Refusal, Sender, Way, is_allowed, no_endpoints, not_allowed
from proxyd.explain.view import Concerned, Entry, Packet, View
from proxyd.ipt import names
from proxyd.ipt.names import backend_text, chain_name, endpoint_chain
from proxyd.ipt.objects import Placed, Table
from proxyd.ipt.render import render_dispatch
from proxyd.ipt.restore import rule_text
from proxyd.ipt.style import Style

_UNTRANSLATED = {Route.REJECT, Route.DROP}
_REFUSED = {Route.REJECT: Verdict.REJECTED, Route.DROP: Verdict.DROPPED, Route.EXTERNAL_NO_LOCAL: Verdict.DROPPED}


class IptRules:
    """Implements ``Rules``."""

    def __init__(self, view: View, packet: Packet, concerned: Concerned) -> None:
        self._view, self._packet, self._concerned = view, packet, concerned
        self._sender = Sender(view, packet)

    def before(self) -> Refusal | None:
        """See ``Rules``: nothing is."""
        return None

    def way(self) -> Way | None:
        """See ``Rules``."""
        _, destination, protocol, port, _ = self._packet
        entry = self._concerned.at(destination, protocol, port)
        if entry is not None and (found := self._to(entry)):
            return found
        entry = self._concerned.node_port(protocol, port) if self._takes_node_ports(destination) else None
        return self._to(entry) if entry is not None else None

    def after(self, address: str, port: int, marked: bool, /) -> Refusal | None:
        """See ``Rules``: in the order of the hooks, OUTPUT and INPUT, or INPUT, or FORWARD, which lets marked ones pass."""
        here, is_node = self._view.is_here(address), self._sender.is_node
        found = self._firewall(address, port)
        if found is None and (is_node or not (here or marked)):
            found = self._internal(address, port)
        if found is None and self._is_guarded(address):
            step = Step(f"filter {names.FIREWALL}", "block incoming localnet connections")
            return Refusal(Verdict.DROPPED, "only packets from 127.0.0.0/8 may go there", (step,))
        if found is None and (here or not (is_node or marked)):
            found = self._external(address, port)
        return found

    def may_call_themselves(self, way: Way) -> Collection[Backend]:
        """See ``Rules``: every endpoint has a rule for that."""
        return way.backends

    def _to(self, entry: Entry) -> Way | None:
        if entry.frontend.route in _UNTRANSLATED or not is_allowed(entry, self._packet.source):
            return None
        if entry.frontend.kind is Kind.CLUSTER_IP:
            local, source = entry.frontend.route is Route.LOCAL, self._sender.internal()
        else:
            found = self._sender.external(entry.frontend.route)
            if found is None:
                return None
            local, source = found
        return Way(entry, local, source, tuple(self._path(entry, local=local, source=source)))

    def _takes_node_ports(self, address: str) -> bool:
        taken = self._view.settings.node_port_addresses
        if taken is None:
            return self._view.is_here(address) and (self._view.on_loopback or not is_loopback(address))
        return address in taken or (self._view.on_loopback and address == "127.0.0.1")

    def _firewall(self, address: str, port: int) -> Refusal | None:
        entry = self._concerned.at(address, self._packet.protocol, port)
        if entry is None or entry.frontend.sources is None or entry.frontend.route in _UNTRANSLATED:
            return None
        reason = (
            no_endpoints(entry) if is_allowed(entry, self._packet.source) else not_allowed(entry, self._packet.source)
        )
        return Refusal(Verdict.DROPPED, reason, self._filtering(entry, names.PROXY_FIREWALL), entry)

    def _internal(self, address: str, port: int) -> Refusal | None:
        entry = self._concerned.at(address, self._packet.protocol, port)
        if entry is None or entry.frontend.kind is not Kind.CLUSTER_IP:
            return None
        return self._refusal(entry, names.SERVICES)

    def _external(self, address: str, port: int) -> Refusal | None:
        entry = self._concerned.at(address, self._packet.protocol, port)
        found = None
        if entry is not None and entry.frontend.kind is not Kind.CLUSTER_IP:
            found = self._refusal(entry, names.EXTERNAL_SERVICES)
        node_port = self._concerned.node_port(self._packet.protocol, port)
        if found is None and node_port is not None and self._view.is_here(address):
            found = self._refusal(node_port, names.EXTERNAL_SERVICES)
        return found

    def _refusal(self, entry: Entry, chain: str) -> Refusal | None:
        verdict = _REFUSED.get(entry.frontend.route)
        if verdict is None:
            return None
        return Refusal(verdict, no_endpoints(entry), self._filtering(entry, chain), entry)

    def _is_guarded(self, address: str) -> bool:
        return self._view.on_loopback and is_loopback(address) and not is_loopback(self._packet.source)

    # -- the rules that are met

    def _filtering(self, entry: Entry, chain: str) -> tuple[Step, ...]:
        return tuple(self._dispatch(entry, Table.FILTER, chain))

    def _path(self, entry: Entry, *, local: bool, source: Source) -> Iterator[Step]:
        is_node_port = entry.frontend.kind is Kind.NODE_PORT
        yield from self._dispatch(entry, Table.NAT, names.NODE_PORTS if is_node_port else names.SERVICES)
        port = entry.port
        if entry.frontend.sources is not None:
            yield Step(f"nat {chain_name(names.SOURCES, port)}", f"-j {chain_name(names.EXTERNAL, port)}")
        balancing = chain_name(names.LOCAL if local else names.SERVICE, port)
        if entry.frontend.kind is not Kind.CLUSTER_IP:
            mark = f"-j {names.MARK_MASQ}, " if source in REPLACED else ""
            yield Step(f"nat {chain_name(names.EXTERNAL, port)}", f"{mark}-j {balancing}")
        elif source in REPLACED:
            yield Step(f"nat {balancing}", f"-j {names.MARK_MASQ}")
        chains = [endpoint_chain(port, backend_text(each)) for each in (port.local if local else port.cluster)]
        yield Step(
            f"nat {balancing}", f"-j {chains[0]}" if len(chains) == 1 else f"one of {len(chains)} KUBE-SEP- chains"
        )
        if source in REPLACED:
            yield Step(f"nat {names.POSTROUTING}", "the packet is marked: -j MASQUERADE")

    def _dispatch(self, entry: Entry, table: Table, chain: str) -> Iterator[Step]:
        style = Style(localhost_node_ports=self._view.localhost)
        only = replace(entry.forwarding, ports=(replace(entry.port, frontends=(entry.frontend,)),))
        for placed in render_dispatch(only, self._view.settings, style):
            if (placed.table, placed.chain) == (table, chain) and is_about(placed, entry):
                yield Step(f"{table} {chain}", rule_text(placed.rule).strip())


def is_about(placed: Placed, entry: Entry) -> bool:
    """Whether a rule of a chain that Services share is a frontend's."""
    address, protocol, port = entry.frontend.key
    rule = placed.rule
    return (rule.protocol, rule.port, rule.destination.partition("/")[0]) == (protocol, port, address)
