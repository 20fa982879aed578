"""Which endpoints a ServicePort may use on this node: slices merged, then chosen by readiness, place and hints.

Sources: EndpointSlice API; KEP-1672 (terminating endpoints), KEP-2086 (internalTrafficPolicy), KEP-2433 (topology
hints), KEP-3015 (PreferSameZone, PreferSameNode).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from proxyd.model import Endpoint, EndpointSlice, Family


class Backend(NamedTuple):
    """Where a connection can be sent: the address and port of an endpoint."""

    address: str
    port: int


Candidates = dict[Backend, Endpoint]


class Choice(NamedTuple):
    """The endpoints to use. ``exists`` is False only where no endpoint anywhere could be used (reject, not drop).

    ``cluster`` serves whoever may go anywhere, ``local`` whoever must stay on this node. ``beside`` are all chosen
    endpoints that may share this node (local, or of unknown place), so that they may call themselves.
    """

    cluster: tuple[Backend, ...]
    local: tuple[Backend, ...]
    beside: tuple[Backend, ...]
    exists: bool


def merge(slices: Iterable[EndpointSlice], family: Family, port_name: str, protocol: str, node: str) -> Candidates:
    """All endpoints of one ServicePort over its slices, each address and port once.

    The slice's port *name* and protocol decide; numbers may differ between slices. Where slices disagree about one
    endpoint: ready before serving before neither, then on this node before elsewhere; kube-proxy leaves this to chance.
    """
    merged: Candidates = {}
    for piece in slices:
        if piece.family is not family:
            continue
        for port in piece.ports:
            if port.name == port_name and port.protocol == protocol:
                for endpoint in piece.endpoints:
                    backend = Backend(endpoint.address, port.port)
                    known = merged.get(backend)
                    if known is None or _rank(endpoint, node) < _rank(known, node):
                        merged[backend] = endpoint
    return merged


def _rank(endpoint: Endpoint, node: str) -> tuple[object, ...]:
    """The lowest wins. The last fields only see to it that the order of slices never does."""
    return (
        not endpoint.ready,
        not endpoint.serving,
        endpoint.terminating,
        endpoint.node != node,
        endpoint.node is None,
        endpoint.node or "",
        endpoint.zone_hints,
        endpoint.node_hints,
    )


def choose(candidates: Candidates, node: str, zone: str, *, use_cluster: bool, use_local: bool) -> Choice:
    """Chooses by the rules of Kubernetes.

    Each list takes ready endpoints, and only if there is none those that terminate but still serve; the two lists
    fall back independently, and hints matter to the cluster list only.
    """
    ready = {b: e for b, e in candidates.items() if e.ready}
    serving = {b: e for b, e in candidates.items() if e.serving and e.terminating}
    cluster: tuple[Backend, ...] = ()
    local: tuple[Backend, ...] = ()
    if use_cluster:
        cluster = _by_hints(ready, node, zone) or tuple(serving)
    if use_local:
        local = tuple(b for b, e in ready.items() if e.node == node) or tuple(
            b for b, e in serving.items() if e.node == node
        )
    exists = bool(ready or serving)
    chosen = dict.fromkeys(cluster + local)
    beside = tuple(b for b in chosen if candidates[b].node in (None, node))
    return Choice(cluster, local, beside, exists)


def _by_hints(ready: Candidates, node: str, zone: str) -> tuple[Backend, ...]:
    """Ready endpoints meant for this node, else for this zone, else all; a single one without hints turns a level off."""
    if node and all(e.node_hints for e in ready.values()):
        here = tuple(b for b, e in ready.items() if node in e.node_hints)
        if here:
            return here
    if zone and all(e.zone_hints for e in ready.values()):
        here = tuple(b for b, e in ready.items() if zone in e.zone_hints)
        if here:
            return here
    return tuple(ready)
