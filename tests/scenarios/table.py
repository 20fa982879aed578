"""The forwarding table of the scenarios: one line for each frontend, as people write it and as proxyd decided it.

    10.96.0.10:80/tcp    shop/web:http  pods, node*, outside* -> 10.244.1.2:8080 10.244.2.2:8080
    *:30080/tcp          shop/web:http  pods, node* -> 10.244.2.2:8080; outside -> drop
    203.0.113.10:80/tcp  shop/web:http  pods*, node*, outside* -> 10.244.1.2:8080 [from 198.51.100.0/24] [sticky 10800s]

Who connects: ``pods`` are those that the local-traffic detector tells, ``node`` is the node itself, ``outside`` everyone
else; a star means that the source is replaced by the node's. ``*:30080`` is a node port (``[*]:30080`` in IPv6).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding, Route
from proxyd.model import Family, NodeSettings

WHO = ("pods", "node", "outside")


class Line(NamedTuple):
    """One frontend. ``reach``: for each of WHO the endpoints, or "reject" or "drop"; ``starred`` are masqueraded."""

    family: Family
    key: FrontendKey
    port: str
    reach: dict[str, frozenset[Backend] | str]
    starred: frozenset[str]
    sources: frozenset[str] | None = None
    sticky: int = 0

    def __str__(self) -> str:
        clauses: dict[str, list[str]] = {}
        for who in WHO:
            star = "*" if who in self.starred else ""
            clauses.setdefault(_target(self.reach[who]), []).append(who + star)
        parts = "; ".join(f"{', '.join(whom)} -> {target}" for target, whom in clauses.items())
        notes = "" if self.sources is None else f" [from {' '.join(sorted(self.sources)) or 'nobody'}]"
        notes += f" [sticky {self.sticky}s]" if self.sticky else ""
        address = self.key.address or "*"
        host = f"[{address}]" if self.family is Family.IPV6 else address
        return f"{host}:{self.key.port}/{self.key.protocol} {self.port} {parts}{notes}"


def _target(reached: frozenset[Backend] | str) -> str:
    return reached if isinstance(reached, str) else " ".join(map(_backend_text, sorted(reached)))


def _backend_text(backend: Backend) -> str:
    return f"[{backend.address}]:{backend.port}" if ":" in backend.address else f"{backend.address}:{backend.port}"


def decided(forwardings: Iterable[Forwarding], settings: NodeSettings) -> list[Line]:
    """The table of what was decided for one family."""
    return [
        _line(frontend, port, settings)
        for forwarding in forwardings
        for port in forwarding.ports
        for frontend in port.frontends
    ]


def _line(frontend: Frontend, port: PortForwarding, settings: NodeSettings) -> Line:
    cluster, local = frozenset(port.cluster), frozenset(port.local)
    outside: dict[Route, frozenset[Backend] | str] = {
        Route.CLUSTER: cluster,
        Route.LOCAL: local,
        Route.EXTERNAL: cluster,
        Route.EXTERNAL_LOCAL: local,
        Route.EXTERNAL_NO_LOCAL: "drop",
        Route.REJECT: "reject",
        Route.DROP: "drop",
    }
    reach = dict.fromkeys(WHO, outside[frontend.route])
    if frontend.route in (Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL):
        starred = {"node"}
        reach["node"] = cluster
        if settings.local is not None:
            reach["pods"] = cluster
    elif frontend.route is Route.EXTERNAL or settings.masquerade_all:
        starred = set(WHO)
    else:
        starred = {"node", "outside"} if settings.local is not None else set()
    assert frontend.route is not Route.CLUSTER or frontend.kind is Kind.CLUSTER_IP
    reached = frozenset(who for who in starred if not isinstance(reach[who], str))
    sources = None if frontend.sources is None else frozenset(frontend.sources)
    return Line(settings.family, frontend.key, port.name, reach, reached, sources, port.affinity_seconds)


def read(text: str) -> list[Line]:
    """Reads a table as people write it."""
    return [_read_line(line.strip()) for line in text.splitlines() if line.strip()]


def _read_line(text: str) -> Line:
    head, *notes = re.split(r" +(?=\[(?:from|sticky) )", text)
    frontend, name, clauses = head.split(maxsplit=2)
    address, _, number = frontend.partition("/")[0].rpartition(":")
    family = Family.IPV6 if "[" in address else Family.IPV4
    address = address.strip("[]").replace("*", "")
    reach: dict[str, frozenset[Backend] | str] = {}
    starred = set()
    for clause in clauses.split(";"):
        whom, arrow, target = clause.partition("->")
        assert arrow, f"not a line of a forwarding table: {text}"
        for who in (each.strip() for each in whom.split(",")):
            reach[who.rstrip("*")] = _read_target(target.strip())
            if who.endswith("*"):
                starred.add(who.rstrip("*"))
    assert set(reach) == set(WHO), f"says nothing about some, or too much: {text}"
    noted = dict(note.strip("[]").split(maxsplit=1) for note in notes)
    sources = None if "from" not in noted else frozenset(noted["from"].replace("nobody", "").split())
    sticky = int(noted.get("sticky", "0").rstrip("s"))
    key = FrontendKey(address, frontend.partition("/")[2], int(number))
    return Line(family, key, name, reach, frozenset(starred), sources, sticky)


def _read_target(text: str) -> frozenset[Backend] | str:
    if text in ("reject", "drop"):
        return text
    pairs = [each.rpartition(":") for each in text.split()]
    assert pairs, "no endpoints"
    return frozenset(Backend(address.strip("[]"), int(number)) for address, _, number in pairs)
