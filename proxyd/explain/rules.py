"""What the rules of a mode do with a packet: what both modes have in common, and what each has to say for itself.

The order of the questions is that of the kernel's hooks: is it refused before translation, which list of endpoints is it
translated to, and is what it is then refused where it ends or leaves. Nothing here decides about a Service: lists and
routes are those of ``desired.forwarding``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

from proxyd.addresses import contains
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Route
from proxyd.errors import UserError
from proxyd.explain.answer import REPLACED, Source, Step, Verdict
from proxyd.explain.view import Entry, Packet, View


class NeedsInterfaceError(UserError):
    """It depends on the interface that a packet comes in by, and that was not said."""


class Way(NamedTuple):
    """A packet is translated: to an endpoint of the local list of a frontend's port, or of its cluster list."""

    entry: Entry
    local: bool
    source: Source
    steps: tuple[Step, ...]

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The endpoints, each with the same chance."""
        return self.entry.port.local if self.local else self.entry.port.cluster


class Refusal(NamedTuple):
    """A packet is not let through."""

    verdict: Verdict
    reason: str
    steps: tuple[Step, ...]
    entry: Entry | None = None


class Rules(Protocol):
    """The rules of one mode, for one packet and the Services that it concerns."""

    def before(self) -> Refusal | None:
        """Whether it is refused before it is translated."""

    def way(self) -> Way | None:
        """How it is translated, None where it is not."""

    def after(self, address: str, port: int, marked: bool, /) -> Refusal | None:
        """Whether it is refused with this destination, which it has by then. ``marked``: its source is replaced."""

    def may_call_themselves(self, way: Way) -> Collection[Backend]:
        """The endpoints whose connections have their source replaced where they come back to them."""


class Sender:
    """Who sends a packet, as the rules of both modes tell it."""

    def __init__(self, view: View, packet: Packet) -> None:
        self._settings, self._packet = view.settings, packet
        self.is_node = view.is_here(packet.source)

    @property
    def is_pod(self) -> bool:
        """Whether the packet counts as one of this node's pods. Raises ``NeedsInterfaceError``."""
        local = self._settings.local
        if local is None:
            return False
        if local.cidr:
            return contains(local.cidr, self._packet.source)
        if self.is_node:
            return False
        if not (interface := self._packet.interface):
            raise NeedsInterfaceError(
                f"whether {self._packet.source} counts as a pod of this node is told by the interface ({local.interface}):"
                " say with --interface by which one the packet comes in"
            )
        return (
            interface.startswith(local.interface[:-1]) if local.interface[-1] == "*" else interface == local.interface
        )

    def internal(self) -> Source:
        """Whether the source of a packet to a cluster IP is replaced, and why."""
        if self._settings.masquerade_all:
            return Source.MASQUERADE_ALL
        if self._settings.local is None:
            return Source.NO_DETECTOR
        return Source.LOCAL_POD if self.is_pod else Source.NOT_A_LOCAL_POD

    def external(self, route: Route) -> tuple[bool, Source] | None:
        """What becomes of a packet to any other frontend: whether it takes the local list, and what of its source.

        None where it may use endpoints of this node only, and there are none.
        """
        if route is Route.EXTERNAL:
            return False, Source.EXTERNAL_CLUSTER
        if self.is_pod:
            return False, Source.LOCAL_POD
        if self.is_node:
            return False, Source.NODE_TRAFFIC
        return (True, Source.EXTERNAL_LOCAL) if route is Route.EXTERNAL_LOCAL else None


def is_allowed(entry: Entry, source: str) -> bool:
    """Whether loadBalancerSourceRanges let a source use a frontend."""
    sources = entry.frontend.sources
    return sources is None or any(contains(each, source) for each in sources)


def source_at(rules: Rules, way: Way, backend: Backend, packet: Packet, view: View) -> Source:
    """Whether an endpoint sees the packet's own source, and why."""
    passes_postrouting = view.is_here(packet.source) or not view.is_here(backend.address)
    if way.source in REPLACED:
        return way.source if passes_postrouting else Source.ENDPOINT_HERE
    if packet.source == backend.address and passes_postrouting and backend in rules.may_call_themselves(way):
        return Source.HAIRPIN
    return way.source


def no_endpoints(entry: Entry) -> str:
    """The reason of a refusal for want of endpoints."""
    if entry.frontend.route is Route.REJECT:
        return f"{entry.port.name} has no endpoint that could be used, on any node"
    policy = "internalTrafficPolicy" if entry.frontend.route is Route.DROP else "externalTrafficPolicy"
    return f"{policy} Local, and {entry.port.name} has no endpoint on this node"


def not_allowed(entry: Entry, source: str) -> str:
    """The reason of a refusal for source ranges."""
    ranges = ", ".join(entry.frontend.sources or ()) or "nobody"
    return f"spec.loadBalancerSourceRanges of {entry.forwarding.key} let {ranges} in, and not {source}"
