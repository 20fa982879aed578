"""Which flows that the kernel's connection tracker remembers may go on: per frontend, the endpoints that may have them.

A tracked flow keeps its endpoint for as long as packets come, whatever the rules say by then, so what became stale has
to be deleted. Source: KEP-1672, who still serves keeps what it has. kube-proxy does less: nothing for Services without
endpoints, nor for frontends that are gone, and it takes node ports on any address.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple, TypeVar

from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding
from proxyd.model import NodeSettings

# Endpoints that keep their flows. Empty: nobody serves the frontend, or it is no frontend any more.
Live = frozenset[Backend]

T = TypeVar("T")


class Place(NamedTuple):
    """A destination of flows, as a node port or as an address of a Service's own; the latter goes first where both exist.

    ``key`` has an empty address only where node ports are taken on every local address.
    """

    key: FrontendKey
    node_port: bool


def places(forwarding: Forwarding, settings: NodeSettings) -> dict[Place, Live]:
    """The places at which one Service takes flows of UDP (and, if asked for, TCP), with the endpoints that keep theirs."""
    found: dict[Place, Live] = {}
    protocols = ("udp", "tcp") if settings.reset_gone_tcp else ("udp",)
    for port in forwarding.ports:
        if port.protocol not in protocols:
            continue
        live = frozenset(port.live)
        for frontend in port.frontends:
            if frontend.kind is not Kind.NODE_PORT:
                found[Place(frontend.key, node_port=False)] = live
            elif settings.node_port_addresses is None:
                found[Place(frontend.key, node_port=True)] = live
            else:
                for address in settings.node_port_addresses:
                    found[Place(frontend.key._replace(address=address), node_port=True)] = live
    return found


def is_stale(protocol: str, destination: T, answers: T, live: Set[T]) -> bool:
    """Tells whether a flow to ``destination``, whose answers come from ``answers``, has to go.

    Where both are the same the flow is not translated: it began before there was a rule for it. With endpoints it has
    to go, since it would swallow packets for ever; without any, or with the frontend gone, it harms nobody and may be
    somebody else's. A TCP connection that is not translated is always somebody else's: its first packet was answered.
    ``live`` are the endpoints that keep their flows, in the same terms.
    """
    if answers in live:
        return False
    return answers != destination or (protocol == "udp" and bool(live))
