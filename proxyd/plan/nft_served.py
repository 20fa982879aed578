"""What the rules of nftables mode do with each frontend, read off a table's elements."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.nft.layout import LOCAL_BASE
from proxyd.plan.served import Effect, Served, Serving, backends, client_ranges

# By whether the frontend is a node port: dispatch, no endpoints, policy Local for pods and for others, its chain.
_PLACES = (
    ("service-ips", "no-endpoints", "external-cluster", "external-local-only", "external-local"),
    ("service-nodeports", "no-endpoint-nodeports", "nodeport-cluster", "nodeport-local-only", "np-external-local"),
)
_MASQUERADING = "external-"
_AFFINITY = ("affinity-", "local-affinity-")


class Value(msgspec.Struct, frozen=True):
    """What an element has beside its key, in nft's words, without the generation."""

    value: str = ""
    comment: str = ""


class Affinity(msgspec.Struct, frozen=True):
    """A chain that balances with ClientIP affinity: its endpoints, and the seconds."""

    endpoints: tuple[Backend, ...] = ()
    seconds: int = 0


class Generation(msgspec.Struct, frozen=True):
    """The generation that is in force: elements by container and key, and the chains with affinity, all without ``gN/``."""

    elements: Mapping[str, Mapping[str, Value]] = {}
    affinity: Mapping[str, Affinity] = {}


def serving(table: Generation) -> Serving:
    """What is done with each frontend."""
    reader = _Reader(table)
    found: dict[FrontendKey, Served] = {}
    for places in _PLACES:
        dispatch, missing = (table.elements.get(name, {}) for name in places[:2])
        for key in {**dispatch, **missing}:
            found[frontend(key)] = reader.served(key, places)
    return found


def frontend(key: str) -> FrontendKey:
    """A frontend from a key of maps."""
    address, protocol, port = key.split(" . ") if key.count(" . ") > 1 else ("", *key.split(" . "))
    return FrontendKey(address, protocol, int(port))


class _Reader:
    def __init__(self, table: Generation) -> None:
        self._elements, self._affinity = table.elements, table.affinity
        self._lists: dict[tuple[str, str, bool], list[Backend]] = {}
        for container, elements in table.elements.items():
            if "endpoints-" in container and not container.startswith("no-"):
                for key, value in elements.items():
                    place, _, index = key.rpartition(" . ")
                    known = self._lists.setdefault((container, place, int(index) >= LOCAL_BASE), [])
                    known.append(_backend(value.value))
        self._sources: dict[str, list[str]] = {}
        for key in table.elements.get("firewall-sources", {}):
            place, _, source = key.rpartition(" . ")
            self._sources.setdefault(place, []).append(source)

    def served(self, key: str, places: tuple[str, ...]) -> Served:
        dispatch, missing, cluster, local_only, common = places
        found, refused = self._get(dispatch, key), self._get(missing, key)
        sources = client_ranges(self._sources.get(key, ())) if self._get("firewall-ips", key) is not None else None
        if found is None:
            refused = refused or Value()
            effect = Effect.DROPPED if refused.value == "drop" else Effect.REJECTED
            return Served(refused.comment, effect, sources=sources)
        target = found.value.removeprefix("goto ")
        if target == common:
            others = self._get(local_only, key)
            wide = self._endpoints(key, _target(self._get(cluster, key)))
            near = self._endpoints(key, _target(others))
            effect = Effect.EXTERNAL_LOCAL if others is not None else Effect.EXTERNAL_NO_LOCAL
        else:
            effect = Effect.EXTERNAL if target.startswith(_MASQUERADING) else Effect.FORWARDED
            wide, near = self._endpoints(key, target.removeprefix(_MASQUERADING)), Affinity()
        seconds = wide.seconds or near.seconds
        return Served(found.comment, effect, backends(wide.endpoints), backends(near.endpoints), sources, seconds)

    def _endpoints(self, key: str, target: str) -> Affinity:
        if not target:
            return Affinity()
        if target.startswith(_AFFINITY):
            return self._affinity.get(target, Affinity())
        where = frontend(key)
        container = f"{'' if where.address else 'nodeport-'}endpoints-{where.protocol}"
        place = f"{where.address} . {where.port}" if where.address else str(where.port)
        return Affinity(tuple(self._lists.get((container, place, target.startswith("local-")), ())))

    def _get(self, container: str, key: str) -> Value | None:
        return self._elements.get(container, {}).get(key)


def _target(found: Value | None) -> str:
    return found.value.removeprefix("goto ") if found is not None else ""


def _backend(value: str) -> Backend:
    address, _, port = value.partition(" . ")
    return Backend(address, int(port))
