"""Which endpoints a ServicePort may use on this node: slices merged, then chosen by readiness, place and hints.

Sources: EndpointSlice API; KEP-1672 (terminating endpoints), KEP-2086 (internalTrafficPolicy), KEP-2433 (topology
hints), KEP-3015 (PreferSameZone, PreferSameNode).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from proxyd.model import Endpoint, EndpointSlice, Family


class Backend(NamedTuple):
    """Where a connection can be sent: the address and port of an endpoint."""

    address: str
    port: int


Candidates = dict[Backend, Endpoint]


class Hints(StrEnum):
    """Which hints of endpoints the cluster list was chosen by."""

    NONE = "none"
    NODE = "node"
    ZONE = "zone"


class Choice(NamedTuple):
    """The endpoints to use. ``exists`` is False only where no endpoint anywhere could be used (reject, not drop).

    ``cluster`` serves whoever may go anywhere, ``local`` whoever must stay on this node. ``beside`` are all chosen
    endpoints that may share this node (local, or of unknown place), so that they may call themselves.
    """

    cluster: tuple[Backend, ...]
    local: tuple[Backend, ...]
    beside: tuple[Backend, ...]
    exists: bool
    hints: Hints = Hints.NONE


class LeftOut(StrEnum):
    """Why connections do not go to an endpoint: a closed list, documented for operators."""

    NOT_READY = "not-ready"
    TERMINATED = "terminating-not-serving"
    TERMINATING = "terminating"  # it serves still, but there are ready ones
    OTHER_NODE = "other-node"  # the traffic has to stay on this node
    NODE_HINT = "node-hint"  # the hints of all endpoints name nodes, and this one's do not name ours
    ZONE_HINT = "zone-hint"
    DUPLICATE = "duplicate"
    OTHER_PORT = "other-port"  # its slice has no port of this name and protocol
    REFUSED = "refused"  # not an address, or a port, that can be an endpoint's


Beaten = list[tuple[Backend, Endpoint]]


def merge(
    slices: Iterable[EndpointSlice],
    family: Family,
    port_name: str,
    protocol: str,
    node: str,
    beaten: Beaten | None = None,
) -> Candidates:
    """All endpoints of one ServicePort over its slices, each address and port once; ``beaten`` gets the duplicates.

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
                    wins = known is None or _rank(endpoint, node) < _rank(known, node)
                    if wins:
                        merged[backend] = endpoint
                    if beaten is not None and known is not None:
                        beaten.append((backend, known if wins else endpoint))
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
    serving = {b: e for b, e in candidates.items() if _stands_in(e)}
    cluster: tuple[Backend, ...] = ()
    local: tuple[Backend, ...] = ()
    hints = Hints.NONE
    if use_cluster:
        cluster, hints = _by_hints(ready, node, zone) if ready else (tuple(serving), hints)
    if use_local:
        local = tuple(b for b, e in ready.items() if e.node == node) or tuple(
            b for b, e in serving.items() if e.node == node
        )
    exists = bool(ready or serving)
    chosen = dict.fromkeys(cluster + local)
    beside = tuple(b for b in chosen if candidates[b].node in (None, node))
    return Choice(cluster, local, beside, exists, hints)


def why_left_out(endpoint: Endpoint, choice: Choice, node: str, *, local: bool) -> LeftOut:
    """Why a candidate is not in the local list of a choice, or not in its cluster list; it must not be in there."""
    if not endpoint.ready and not _stands_in(endpoint):
        return LeftOut.TERMINATED if endpoint.terminating else LeftOut.NOT_READY
    if local and endpoint.node != node:
        return LeftOut.OTHER_NODE
    if not endpoint.ready:
        return LeftOut.TERMINATING
    return LeftOut.NODE_HINT if choice.hints is Hints.NODE else LeftOut.ZONE_HINT


def _stands_in(endpoint: Endpoint) -> bool:
    """Whether an endpoint is used where none is ready (KEP-1672)."""
    return endpoint.serving and endpoint.terminating


def _by_hints(ready: Candidates, node: str, zone: str) -> tuple[tuple[Backend, ...], Hints]:
    """Ready endpoints meant for this node, else for this zone, else all; a single one without hints turns a level off."""
    if node and all(e.node_hints for e in ready.values()):
        here = tuple(b for b, e in ready.items() if node in e.node_hints)
        if here:
            return here, Hints.NODE
    if zone and all(e.zone_hints for e in ready.values()):
        here = tuple(b for b, e in ready.items() if zone in e.zone_hints)
        if here:
            return here, Hints.ZONE
    return tuple(ready), Hints.NONE
