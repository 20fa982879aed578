"""Who serves a frontend that several Services claim: the one decision that sees more than one Service.

The answer depends only on the claims that stand, never on the order in which they came, so every node and every
restart agrees: a ClusterIP before a load balancer's address before an external IP, then the oldest Service (one without
a creationTimestamp sorts last), then namespace and name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from proxyd.model import ServiceKey


class FrontendKey(NamedTuple):
    """What a packet is matched by: destination ("" is: any address that takes node ports), protocol and port."""

    address: str
    protocol: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address or "node port "
        return f"{host}{':' if self.address else ''}{self.port}/{self.protocol}"


class Kind(IntEnum):
    """What kind of address a frontend is; a lower value wins a conflict."""

    CLUSTER_IP = 0
    NODE_PORT = 1
    LOAD_BALANCER = 2
    EXTERNAL_IP = 3


class Claim(NamedTuple):
    """A Service's claim to a frontend; the smallest one wins."""

    kind: Kind
    undated: bool
    created: str
    key: ServiceKey


def claim(kind: Kind, created: str, key: ServiceKey) -> Claim:
    """Makes a claim from a Service's creationTimestamp ("" if it has none) and key."""
    return Claim(kind, not created, created, key)


class Claims:
    """All claims that stand in one family. An index, not a history: equal contents give equal answers."""

    def __init__(self) -> None:
        self._by_frontend: dict[FrontendKey, list[Claim]] = {}
        self._by_service: dict[ServiceKey, dict[FrontendKey, Claim]] = {}

    def update(self, key: ServiceKey, claims: Mapping[FrontendKey, Claim]) -> set[ServiceKey]:
        """Replaces the claims of one Service (empty: it is gone); gives the other Services that this may concern."""
        before = self._by_service.get(key, {})
        concerned: set[ServiceKey] = set()
        for frontend in before.keys() | claims.keys():
            old, new = before.get(frontend), claims.get(frontend)
            if old == new:
                continue
            standing = self._by_frontend.setdefault(frontend, [])
            if old is not None:
                standing.remove(old)
            concerned.update(other.key for other in standing)
            if new is not None:
                standing.append(new)
            if not standing:
                del self._by_frontend[frontend]
        if claims:
            self._by_service[key] = dict(claims)
        else:
            self._by_service.pop(key, None)
        return concerned

    def lost(self, key: ServiceKey) -> dict[FrontendKey, ServiceKey]:
        """The frontends that a Service claims and does not get, with the Service that has each."""
        out = {}
        for frontend, own in self._by_service.get(key, {}).items():
            standing = self._by_frontend[frontend]
            if len(standing) > 1:
                winner = min(standing)
                if winner != own:
                    out[frontend] = winner.key
        return out

    def clear(self) -> None:
        """Forgets all claims."""
        self._by_frontend.clear()
        self._by_service.clear()
