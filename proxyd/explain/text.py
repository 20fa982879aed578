"""An answer as people read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from proxyd.explain.answer import (
    Answer,
    Connections,
    Explanation,
    Listed,
    Omitted,
    Place,
    PortExplanation,
    ServiceExplanation,
    Source,
    Target,
    Verdict,
    Verified,
)

# Endpoints that are shown one by one; JSON has them all.
SHOWN = 20

WORDS = {
    Source.MASQUERADE_ALL: "masqueradeAll is set",
    Source.NOT_A_LOCAL_POD: "the client is no pod of this node",
    Source.EXTERNAL_CLUSTER: "externalTrafficPolicy Cluster: answers have to come back through this node",
    Source.NODE_TRAFFIC: "what the node itself sends may go to any endpoint, so that answers have to come back here",
    Source.HAIRPIN: "the endpoint is the client",
    Source.RELAYED: "proxyd itself connects to the endpoint",
    Source.LOCAL_POD: "the client is a pod of this node",
    Source.NO_DETECTOR: "nothing is known that tells pods of this node (detectLocalMode)",
    Source.EXTERNAL_LOCAL: "externalTrafficPolicy Local",
    Source.ENDPOINT_HERE: "the endpoint has an address of this node, and only what leaves the node is masqueraded",
}


def answer_text(answer: Answer) -> str:
    """The answer, for a terminal of about 120 columns; ends with a newline."""
    parts = [_packet(answer.packet)] if answer.packet else []
    parts += [_service(each) for each in answer.services]
    parts += [iter(f"note: {each}" for each in answer.notes)] if answer.notes else []
    return "\n".join("".join(f"{line}\n" for line in part) for part in parts)


def _packet(told: Explanation) -> Iterator[str]:
    asked = told.asked
    by = f" by {asked.interface}" if asked.interface else ""
    sender = " (this node)" if asked.origin == "node" else by
    host = f"[{asked.destination}]" if ":" in asked.destination else asked.destination
    yield f"{asked.source}{sender} -> {host}:{asked.port}/{asked.protocol}: {told.verdict.upper()}"
    yield f"  {told.reason}"
    if told.service:
        yield f"  frontend   {_frontend(told)} of {told.port_name}, route {told.route}"
    yield from _steps(told)
    yield from _targets(told)
    if told.affinity_seconds and told.endpoints:
        yield f"  affinity   ClientIP, {told.affinity_seconds} s: a client that was here lately goes where it went"
    yield from _left_out("left out", told.left_out)
    yield from _notes(told.notes)
    yield from _verified(told.verified) if told.verified else ()


def _verified(found: Verified) -> Iterator[str]:
    state = f"differences: {len(found.differences)}" if found.differences else "all as it should be"
    yield f"  kernel     things compared: {found.compared}; {state}"
    yield from (f"  DIFFERS    {each}" for each in found.differences)
    for each in found.connections:
        plural = "s" if each.count > 1 else ""
        chosen = "" if each.chosen else ", which new ones do not go to from there"
        yield f"  tracked    {each.count} connection{plural} with {_host(each)}{chosen}"


def _steps(told: Explanation) -> Iterator[str]:
    for index, step in enumerate(told.path):
        yield f"  {'rules' if not index else '':<10} {step.where}: {step.what}"


def _targets(told: Explanation) -> Iterator[str]:
    mixed = len({(each.source_why, each.verdict) for each in told.endpoints}) > 1
    for index, each in enumerate(told.endpoints[:SHOWN]):
        yield f"  {'' if index else 'endpoints':<10} {_target(each, mixed=mixed)}"
    yield from _more(len(told.endpoints))
    if told.endpoints and not mixed:
        yield f"  source     {_source(told.endpoints[0])}"


def _target(each: Target, *, mixed: bool) -> str:
    verdict = f", {each.verdict}" if mixed and each.verdict is not Verdict.DELIVERED else ""
    source = f", source {_source(each)}" if mixed else ""
    return f"{_host(each)} on {each.node or 'an unknown node'}: {each.chance}{verdict}{source}"


def _source(each: Target) -> str:
    return f"{'replaced' if each.source_replaced else 'kept'}: {WORDS[each.source_why]}"


def _service(told: ServiceExplanation) -> Iterator[str]:
    yield f"Service {told.service}, {told.family}, {told.mode} mode: {told.verdict.upper()}"
    if told.reason:
        yield f"  {told.reason}"
    for port in told.ports:
        yield from _port(port)
    for each in told.packets:
        yield ""
        yield from (f"  {line}" for line in _packet(each))
    yield from _notes(told.notes)


def _port(told: PortExplanation) -> Iterator[str]:
    yield f"  port {told.name or '(unnamed)'}, {told.port}/{told.protocol}"
    for place in told.places:
        first, *more = place.how.split("; ")
        yield f"    {_frontend(place)}: {first}"
        yield from (f"      {each}" for each in more)
    if told.affinity_seconds:
        yield f"    ClientIP affinity, {told.affinity_seconds} s"
    for title, used, left_out in (
        ("any endpoint", told.cluster, told.cluster_left_out),
        ("on this node", told.local, told.local_left_out),
    ):
        if used or left_out:
            yield f"    {title}: {len(used)}{f', 1/{len(used)} each' if len(used) > 1 else ''}"
            yield from (f"      {_host(each)} on {each.node or 'an unknown node'}" for each in used[:SHOWN])
            yield from _more(len(used), "      ")
            yield from (f"    {line}" for line in _left_out("left out", left_out))


def _frontend(told: Explanation | Place) -> str:
    return told.frontend if told.frontend.startswith(told.kind) else f"{told.kind} {told.frontend}"


def _left_out(title: str, omitted: Sequence[Omitted]) -> Iterator[str]:
    for index, each in enumerate(omitted[:SHOWN]):
        detail = f" ({each.detail})" if each.detail else ""
        where = _host(each) if each.port else each.address
        yield f"  {'' if index else title:<10} {where}: {each.why}{detail}"
    yield from _more(len(omitted))


def _more(count: int, indent: str = "             ") -> Iterator[str]:
    if count > SHOWN:
        yield f"{indent}and {count - SHOWN} more (all of them with -o json)"


def _notes(notes: Iterable[str]) -> Iterator[str]:
    yield from (f"  note       {each}" for each in notes)


def _host(each: Target | Omitted | Listed | Connections) -> str:
    return f"{f'[{each.address}]' if ':' in each.address else each.address}:{each.port}"
