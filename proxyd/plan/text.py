"""A plan as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proxyd.desired.endpoints import Backend
from proxyd.plan.answer import FamilyPlan, How, Plan
from proxyd.plan.served import Effect, FrontendChange, Served, ServiceChange, What

# Endpoints that are shown one by one; JSON has them all.
SHOWN = 10
_SIGN = {What.ADDED: "+", What.REMOVED: "-", What.CHANGED: "~"}
_EFFECT = {
    Effect.FORWARDED: "to {0}",
    Effect.EXTERNAL: "to {0}, source replaced",
    Effect.EXTERNAL_LOCAL: "pods and the node to {0}, others to {1} on this node",
    Effect.EXTERNAL_NO_LOCAL: "pods and the node to {0}, others dropped",
    Effect.REJECTED: "rejected, no endpoint",
    Effect.DROPPED: "dropped, no endpoint on this node",
}
_HOW = {
    How.CHANGE: "the running proxyd would change its rules",
    How.START: "a proxyd that starts would write all of its rules",
}


def plan_text(plan: Plan) -> str:
    """The plan, for a terminal of about 120 columns; ends with a newline."""
    return "".join(f"{line}\n" for line in _lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"{plan.mode} mode: {_HOW[plan.how]}. Nothing was written."
    yield f"compared with {plan.before}"
    if plan.configuration:
        yield f"configuration: {', '.join(plan.configuration)}"
    for family in plan.families:
        yield from _family(family)
    for each in plan.removals:
        yield f"removed then: {each.whose}, {each.place}: {_count(each.chains, 'chain')}, {_count(each.jumps, 'jump')}"
        if each.kept:
            yield f"  kept, since rules of others lead there: {', '.join(each.kept)}"
    for finding in plan.findings:
        yield f"finding: {finding.kind} {finding.object}: {finding.reason}: {finding.message}"
    for finding in plan.solved:
        yield f"solved: {finding.kind} {finding.object}: {finding.reason}"
    yield from (f"note: {each}" for each in plan.notes)
    if not plan.differs:
        yield "no change"
    for family in plan.families:
        yield from _writes(family)


def _family(plan: FamilyPlan) -> Iterator[str]:
    services = plan.difference.services
    counts = [f"{sum(each.what is what for each in services)} {what}" for what in What]
    counts.append(f"{plan.difference.unchanged} unchanged")
    written = f"{_count(plan.operations, 'operation')} in {_count(plan.calls, 'call')}"
    yield f"{plan.family}: Services: {', '.join(counts)}; {written}"
    for line in plan.settings:
        yield f"  ~ {line}"
    for each in services:
        yield from _service(each)


def _service(change: ServiceChange) -> Iterator[str]:
    yield f"  {_SIGN[change.what]} {change.service or 'no Service'}"
    for each in change.frontends:
        yield from (f"      {line}" for line in _frontend(each))


def _frontend(change: FrontendChange) -> Iterator[str]:
    before, after = change.before, change.after
    sign = _SIGN[change.what]
    if before is None or after is None:
        # One of the two is there.
        yield f"{sign} {change.frontend}: {_served(after or before or Served('', Effect.DROPPED))}"
        return
    yield f"{sign} {change.frontend}: {_served(after)}"
    if before.effect is not after.effect:
        yield f"    was: {_served(before)}"
    yield from _endpoints("", before.endpoints, after.endpoints)
    if before.local or after.local:
        yield from _endpoints("on this node ", before.local, after.local)
    if before.sources != after.sources:
        yield f"    clients: {_sources(before)} -> {_sources(after)}"
    if before.affinity_seconds != after.affinity_seconds:
        yield f"    ClientIP affinity: {before.affinity_seconds} s -> {after.affinity_seconds} s"
    if before.port != after.port:
        yield f"    port: {before.port} -> {after.port}"


def _served(served: Served) -> str:
    near = _count(len(served.local), "endpoint")
    text = _EFFECT[served.effect].format(_count(len(served.endpoints), "endpoint"), near)
    return text if served.sources is None else f"{text}, only from {_sources(served)}"


def _sources(served: Served) -> str:
    if served.sources is None:
        return "all"
    return ", ".join(served.sources) or "nobody"


def _endpoints(where: str, before: Sequence[Backend], after: Sequence[Backend]) -> Iterator[str]:
    was, now = set(before), set(after)
    lines = [f"- {where}{_backend(each)}" for each in before if each not in now]
    lines += [f"+ {where}{_backend(each)}" for each in after if each not in was]
    yield from (f"    {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"    and {len(lines) - SHOWN} more"


def _backend(each: Backend) -> str:
    return f"[{each.address}]:{each.port}" if ":" in each.address else f"{each.address}:{each.port}"


def _writes(plan: FamilyPlan) -> Iterator[str]:
    for number, each in enumerate(plan.writes, 1):
        later = ", when nothing uses it any more" if each.tidies else ""
        yield f"# {plan.family}, call {number}{later}"
        yield each.text.removesuffix("\n")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
