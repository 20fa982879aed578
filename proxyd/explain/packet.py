"""The answer to: what becomes of a new connection from here to there?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Route
from proxyd.desired.localhost import relayed
from proxyd.explain.answer import REPLACED, Asked, Explanation, Source, Step, Target, Verdict
from proxyd.explain.endpoints import NONE, all_endpoints
from proxyd.explain.ipt_rules import IptRules
from proxyd.explain.nft_rules import NftRules
from proxyd.explain.notes import asks_about, notes_about, unserved
from proxyd.explain.rules import Refusal, Rules, Way, source_at
from proxyd.explain.view import KINDS, Concerned, Entry, Packet, View, concerned
from proxyd.explain.written import written
from proxyd.model import Family

# Where proxyd listens for node ports on localhost.
LISTENS_ON = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}


class _Question(NamedTuple):
    view: View
    packet: Packet
    about: Concerned


class _Outcome(NamedTuple):
    """``local``: whether the local list is what matters, None where none does. ``ends`` are the endpoints, ``sources``
    what each sees.
    """

    verdict: Verdict
    reason: str
    entry: Entry | None = None
    local: bool | None = None
    path: tuple[Step, ...] = ()
    ends: Mapping[Backend, Verdict] = MappingProxyType({})
    sources: Mapping[Backend, Source] = MappingProxyType({})
    notes: tuple[str, ...] = ()


def explain_packet(view: View, packet: Packet, *, verifiable: bool = False) -> Explanation:
    """Works out what becomes of the first packet of a connection; ``verifiable``: with what the kernel must hold for it.

    Raises ``NeedsInterfaceError``.
    """
    about = concerned(view, {packet.destination}, {(packet.protocol, packet.port)})
    question = _Question(view, packet, about)
    outcome = _outcome(question, _rules(view, packet, about))
    told = _answer(question, outcome)
    return replace(told, written=written(view, packet, about, outcome.entry)) if verifiable else told


def _outcome(question: _Question, rules: Rules) -> _Outcome:
    if refusal := rules.before():
        return _refused(refusal)
    if way := rules.way():
        return _translated(question, rules, way)
    if refusal := rules.after(question.packet.destination, question.packet.port, False):
        return _refused(refusal)
    return _at_localhost(question) or _as_it_is(question)


def _rules(view: View, packet: Packet, about: Concerned) -> Rules:
    return IptRules(view, packet, about) if view.mode == "iptables" else NftRules(view, packet, about)


def _refused(refusal: Refusal) -> _Outcome:
    route = refusal.entry.frontend.route if refusal.entry else None
    # Source ranges refuse whatever endpoints there are.
    local = {Route.REJECT: False, Route.DROP: True, Route.EXTERNAL_NO_LOCAL: True}.get(route) if route else None
    return _Outcome(refusal.verdict, refusal.reason, refusal.entry, local, refusal.steps)


def _translated(question: _Question, rules: Rules, way: Way) -> _Outcome:
    view, packet, _ = question
    backends = way.backends
    # Whether it is refused with an endpoint's address is another question, and may concern other Services.
    here = {(packet.protocol, each.port) for each in backends if view.is_here(each.address)}
    behind = _rules(view, packet, concerned(view, {each.address for each in backends}, here))
    sources = {each: source_at(rules, way, each, packet, view) for each in backends}
    refusals = {
        each: found for each in backends if (found := behind.after(each.address, each.port, sources[each] in REPLACED))
    }
    ends = {each: refusals[each].verdict if each in refusals else Verdict.DELIVERED for each in backends}
    verdicts = set(ends.values())
    verdict = next(iter(verdicts)) if len(verdicts) == 1 else Verdict.PARTLY
    reason = _to_endpoints(backends, way.entry)
    path = way.steps
    if refusals:
        first = next(iter(refusals.values()))
        reason, path = f"refused on the way {reason}: {first.reason}", (*path, *first.steps)
    return _Outcome(verdict, reason, way.entry, way.local, path, ends, sources)


def _to_endpoints(backends: Sequence[Backend], entry: Entry) -> str:
    which = "the only endpoint" if len(backends) == 1 else f"one of {len(backends)} endpoints"
    return f"to {which} of {entry.port.name} that can be used from there"


def _at_localhost(question: _Question) -> _Outcome | None:
    """Node ports on the loopback address in nftables mode: relayed by the process, where rules leave the packet alone."""
    view, packet, about = question
    entry = about.node_port(packet.protocol, packet.port)
    if (
        view.mode == "iptables"
        or entry is None
        or not entry.forwarding.localhost
        or packet.protocol != "tcp"
        or packet.destination != LISTENS_ON[view.settings.family]
    ):
        return None
    local = entry.frontend.route is not Route.EXTERNAL
    backends = next((each.backends for each in relayed(entry.forwarding) if each.port == packet.port), ())
    if not backends:
        return _Outcome(
            Verdict.REJECTED, f"{entry.port.name} has no endpoint for it, so proxyd does not listen", entry, local
        )
    step = Step("proxyd", f"listens on {packet.destination} port {packet.port} and relays")
    return _Outcome(
        Verdict.DELIVERED,
        _to_endpoints(backends, entry),
        entry,
        local,
        (step,),
        dict.fromkeys(backends, Verdict.DELIVERED),
        dict.fromkeys(backends, Source.RELAYED),
    )


def _as_it_is(question: _Question) -> _Outcome:
    """No rule translates or refuses the packet."""
    view, packet, about = question
    reasons = unserved(view, packet, about)
    if reasons:
        return _Outcome(Verdict.UNSERVED, reasons[0], notes=reasons[1:])
    here = view.is_here(packet.destination)
    node_port = f", nor a node port {packet.port}/{packet.protocol}" if here else ""
    asked = (each for each in view.services.all if here and packet.protocol == "tcp" and asks_about(each, packet.port))
    notes = tuple(f"proxyd answers there: it is spec.healthCheckNodePort of {each.key}" for each in asked)
    return _Outcome(Verdict.UNTOUCHED, f"no Service has the address {packet.destination}{node_port}", notes=notes)


def _answer(question: _Question, outcome: _Outcome) -> Explanation:
    view, packet, about = question
    asked = Asked(
        packet.source,
        packet.destination,
        packet.protocol,
        packet.port,
        packet.interface,
        "node" if view.is_here(packet.source) else "elsewhere",
    )
    entry = outcome.entry
    if entry is None:
        return Explanation(
            asked,
            view.mode,
            view.settings.family,
            outcome.verdict,
            outcome.reason,
            path=outcome.path,
            notes=outcome.notes,
        )
    endpoints = NONE if outcome.local is None else all_endpoints(view, entry, local=outcome.local)
    return Explanation(
        asked=asked,
        mode=view.mode,
        family=view.settings.family,
        verdict=outcome.verdict,
        reason=outcome.reason,
        service=str(entry.forwarding.key),
        port_name=entry.port.name,
        frontend=str(entry.frontend.key),
        kind=KINDS[entry.frontend.kind],
        route=entry.frontend.route,
        path=outcome.path,
        endpoints=tuple(_target(each, outcome, endpoints.nodes) for each in outcome.ends),
        left_out=endpoints.left_out,
        affinity_seconds=entry.port.affinity_seconds,
        notes=(*outcome.notes, *notes_about(entry, about)),
    )


def _target(backend: Backend, outcome: _Outcome, nodes: dict[Backend, str | None]) -> Target:
    chance = Fraction(1, len(outcome.ends))
    source = outcome.sources[backend]
    return Target(
        backend.address,
        backend.port,
        str(chance),
        round(float(chance), 6),
        outcome.ends[backend],
        source in REPLACED,
        source,
        nodes.get(backend),
    )
