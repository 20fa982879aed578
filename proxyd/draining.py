"""``proxyd drain``: which endpoints that terminate, or are gone, still hold connections on this node.

The running proxyd tells its Services; the connections are read from the kernel here, by the process of the command.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from proxyd.asking import read_line
from proxyd.config.values import parse_duration
from proxyd.desired.draining import Count, Ended, Held, Ports, PortState
from proxyd.errors import UserError
from proxyd.explain.answering import NoAnswerError
from proxyd.explain.question import read_name
from proxyd.kernel.conntrack import Conntrack
from proxyd.kernel.flows import FlowsError
from proxyd.model import FAMILIES, CamelStruct
from proxyd.serve.ask import ask, decoded
from proxyd.serve.draining import path_of

OWN_FLAGS = {"--wait": False}
TIMESTAMPS = Path("/proc/sys/net/netfilter/nf_conntrack_timestamp")
# Seconds between two looks while waiting.
EVERY = 1.0
NO_AGES = "the kernel does not note when connections begin (sysctl net.netfilter.nf_conntrack_timestamp is 0)"
HELP = """\
proxyd drain: endpoints that terminate or are gone, and the connections through this node that they still hold.

  proxyd drain [NAMESPACE/NAME]

  --wait DURATION           look every second until none holds any, this long at most (60s, 5m)
  -o, --output text|json    for people or for programs

Exit status: 0 none holds connections, 1 some do (with --wait: still, when the time was out), 2 no question or no such
Service, 4 nobody can answer.
"""


class Drained(CamelStruct, frozen=True):
    """The answer. ``connections`` of all endpoints; ``notes`` say what to know about it."""

    connections: int
    endpoints: tuple[Held, ...] = ()
    notes: tuple[str, ...] = ()


class Asked(NamedTuple):
    """The command line: a Service ("": all), how to answer, and for how many seconds to wait (0: not at all)."""

    service: str
    as_json: bool
    wait: float


def drain(arguments: Sequence[str]) -> int:
    """Answers; gives the exit status. Raises ``UserError``, ``CannotWorkHereError``."""
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(HELP)
        return 0
    asked = read_question(arguments)
    told = waited(lambda: look(asked.service), asked.wait, time.monotonic, time.sleep)
    sys.stdout.write(_json(told) if asked.as_json else drained_text(told))
    return 1 if told.connections else 0


def read_question(arguments: Sequence[str]) -> Asked:
    """Takes the arguments apart. Raises ``UserError``."""
    given = read_line(arguments, OWN_FLAGS, named=True)
    if strange := next(iter(given.line.given), None):
        raise UserError(f"{strange}: is no flag of drain, which asks the running proxyd")
    try:
        wait = parse_duration(given.own["--wait"] or "0")
    except ValueError as error:
        raise UserError(f"--wait: {error}") from None
    named = read_name(given.name) if given.name else None
    if named is not None and named.port:
        raise UserError(f"a Service must be like default/web, got {given.name!r}")
    return Asked(str(named.service) if named else "", given.as_json, wait)


def waited(
    look: Callable[[], Drained], seconds: float, now: Callable[[], float], sleep: Callable[[float], None]
) -> Drained:
    """Looks until no connection is held, or the time is out."""
    until = now() + seconds
    told = look()
    while told.connections and (left := until - now()) > 0:
        sleep(min(EVERY, left))
        told = look()
    return told


def look(service: str) -> Drained:
    """Asks the running proxyd about a Service ("": all), and counts. Raises ``UserError``, ``CannotWorkHereError``."""
    ports, tracker = _ports(service), Conntrack()
    held: list[Held] = []
    for family in FAMILIES:
        count = Count(family, ports)
        if frontends := count.frontends():
            try:
                for flow in tracker.translated(family, frontends):
                    count.add(flow)
            except FlowsError as error:
                raise NoAnswerError(f"the tracked connections cannot be read: {error}") from error
        held += count.held(time.time())
    notes = (NO_AGES,) if held and not _are_noted() else ()
    return Drained(sum(each.connections for each in held), tuple(held), notes)


def _ports(service: str) -> tuple[PortState, ...]:
    found: list[PortState] = []
    after: str | None = ""
    while after is not None:
        page = decoded(ask(path_of(service, after)), Ports)
        found += page.ports
        after = page.after
    return tuple(found)


def _are_noted() -> bool:
    try:
        return TIMESTAMPS.read_text(encoding="ascii").strip() != "0"
    except OSError:
        return False


def _json(told: Drained) -> str:
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"


def drained_text(told: Drained) -> str:
    """The answer for people; ends with a newline."""
    lines = [_line(each) for each in told.endpoints] or [
        "no endpoint terminates, and none that is gone holds connections"
    ]
    return "\n".join((*lines, *(f"note: {each}" for each in told.notes))) + "\n"


def _line(held: Held) -> str:
    place = f"[{held.address}]:{held.port}" if ":" in held.address else f"{held.address}:{held.port}"
    port = f"{held.service}:{held.port_name}" if held.port_name else held.service
    why = "gone" if held.why is Ended.GONE else f"terminating since {_age(held.terminating_seconds or 0)}"
    many = (
        f"{held.connections} connection{'' if held.connections == 1 else 's'}" if held.connections else "no connections"
    )
    oldest = "" if held.oldest_seconds is None else f", the oldest since {_age(held.oldest_seconds)}"
    return f"{port} {place}/{held.protocol}: {why}, {many}{oldest}"


def _age(seconds: float) -> str:
    """Seconds as people say them."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"
