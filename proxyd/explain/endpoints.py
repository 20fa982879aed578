"""All endpoints of a ServicePort, with the reason for each that is not used: asked of the functions that choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from proxyd.desired.endpoints import Backend, Beaten, Candidates, Choice, LeftOut, why_left_out
from proxyd.desired.forwarding import endpoints_of
from proxyd.explain.answer import Omitted
from proxyd.explain.view import Entry, View
from proxyd.model import Endpoint, EndpointSlice, NodeSettings, ServicePort


class AllEndpoints(NamedTuple):
    """The node of each endpoint that is used (None: not known), and the endpoints that are not."""

    nodes: dict[Backend, str | None]
    left_out: tuple[Omitted, ...]


NONE = AllEndpoints({}, ())


def all_endpoints(view: View, entry: Entry, *, local: bool) -> AllEndpoints:
    """The endpoints of a frontend's port: those of its local list, or of its cluster list, and all others."""
    settings, service, admitted = view.settings, entry.worked.service, entry.worked.admitted
    if admitted is None:
        return NONE
    _, slices = view.lookup(service.key)
    port = next(own for own, made in zip(admitted.ports, entry.forwarding.ports, strict=True) if made is entry.port)
    beaten: Beaten = []
    candidates, choice = endpoints_of(service, port, admitted, slices, settings, beaten)
    used = set(choice.local if local else choice.cluster)
    left_out = (
        *_not_chosen(candidates, used, choice, settings, local=local),
        *(Omitted(*backend, LeftOut.DUPLICATE, _state(each), each.node) for backend, each in beaten),
        *_of_other_ports([each for each in slices if each.family is settings.family], port),
    )
    return AllEndpoints({each: candidates[each].node for each in used}, left_out)


def _not_chosen(
    candidates: Candidates, used: set[Backend], choice: Choice, settings: NodeSettings, *, local: bool
) -> Iterator[Omitted]:
    for backend, endpoint in candidates.items():
        if backend not in used:
            why = why_left_out(endpoint, choice, settings.node_name, local=local)
            yield Omitted(*backend, why, _detail(why, endpoint, settings), endpoint.node)


def _of_other_ports(slices: Sequence[EndpointSlice], port: ServicePort) -> Iterator[Omitted]:
    """What is in slices and cannot be an endpoint of this port."""
    for piece in slices:
        if all((each.name, each.protocol) != (port.name, port.protocol) for each in piece.ports):
            detail = f"slice {piece.name} has no port {port.name!r} of {port.protocol}"
            yield from (Omitted(each.address, 0, LeftOut.OTHER_PORT, detail, each.node) for each in piece.endpoints)
        for text in piece.refused:
            yield Omitted(text, 0, LeftOut.REFUSED, f"slice {piece.name}: it cannot be an endpoint")


def _detail(why: LeftOut, endpoint: Endpoint, settings: NodeSettings) -> str:
    match why:
        case LeftOut.ZONE_HINT:
            return f"hints: zone {', '.join(endpoint.zone_hints)}; this node is in {settings.zone}"
        case LeftOut.NODE_HINT:
            return f"hints: node {', '.join(endpoint.node_hints)}"
        case LeftOut.OTHER_NODE:
            return f"on node {endpoint.node}" if endpoint.node else "its node is not known"
        case LeftOut.TERMINATING:
            return "it serves still, and is used where none is ready"
    return ""


def _state(endpoint: Endpoint) -> str:
    """How a duplicate is listed."""
    state = "ready" if endpoint.ready else "serving" if endpoint.serving else "not ready"
    return f"listed again, as {state}{', terminating' if endpoint.terminating else ''}"
