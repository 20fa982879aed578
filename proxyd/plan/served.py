"""What rules do with each frontend, in terms that both modes have in common, and how two sets of rules differ in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import groupby

import msgspec

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.model import CamelStruct


class Effect(StrEnum):
    """What becomes of a new connection to a frontend.

    A route (``desired.forwarding.Route``) as the kernel sees it: whether a list of endpoints is that of the node or of
    the cluster makes no difference to rules.
    """

    FORWARDED = "forwarded"  # everyone to the endpoints
    EXTERNAL = "external"  # everyone to the endpoints, source replaced
    EXTERNAL_LOCAL = "external-local"  # pods and the node to the endpoints, others to the local ones
    EXTERNAL_NO_LOCAL = "external-no-local"  # pods and the node to the endpoints, others are dropped
    REJECTED = "rejected"
    DROPPED = "dropped"


class Served(msgspec.Struct, frozen=True):
    """What rules do with one frontend.

    ``port`` is the ServicePort ("namespace/name:port") as rules name it, "" where they do not. ``local`` are the
    endpoints for clients that have to stay on this node. ``sources``: who is let in; None is everyone.
    ``affinity_seconds`` is 0 without ClientIP affinity.
    """

    port: str
    effect: Effect
    endpoints: tuple[Backend, ...] = ()
    local: tuple[Backend, ...] = ()
    sources: tuple[str, ...] | None = None
    affinity_seconds: int = 0

    @property
    def service(self) -> str:
        """The Service as "namespace/name"."""
        return self.port.partition(":")[0]


Serving = Mapping[FrontendKey, Served]


class What(StrEnum):
    """How something differs."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class FrontendChange(CamelStruct, frozen=True):
    """One frontend that is not as it was; ``before`` or ``after`` is None where there is none of it."""

    frontend: str
    what: What
    before: Served | None = None
    after: Served | None = None


class ServiceChange(CamelStruct, frozen=True):
    """One Service that is not as it was. ``service`` is "" for frontends that nobody gives a name to."""

    service: str
    what: What
    frontends: tuple[FrontendChange, ...]


class Difference(msgspec.Struct, frozen=True):
    """What differs between two sets of rules, and how many Services have all of their frontends as before."""

    services: tuple[ServiceChange, ...] = ()
    unchanged: int = 0


def difference(before: Serving, after: Serving) -> Difference:
    """Compares two sets of rules. A frontend that goes from one Service to another is removed there and added here."""
    owners_before, owners_after = _services(before), _services(after)
    by_service = groupby(sorted(_changes(before, after), key=lambda each: each[:2]), key=lambda each: each[0])
    changed = tuple(
        _service(name, tuple(change for _, _, change in changes), name in owners_before, name in owners_after)
        for name, changes in by_service
    )
    touched = {each.service for each in changed}
    return Difference(changed, len((owners_before & owners_after) - touched))


def _service(name: str, changes: tuple[FrontendChange, ...], was: bool, remains: bool) -> ServiceChange:
    what = What.CHANGED if was and remains else What.ADDED if remains else What.REMOVED
    return ServiceChange(name, what, changes)


def _changes(before: Serving, after: Serving) -> Iterator[tuple[str, tuple[FrontendKey, What], FrontendChange]]:
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if old is not None and new is not None and old.service == new.service:
            yield new.service, (key, What.CHANGED), FrontendChange(str(key), What.CHANGED, old, new)
            continue
        if old is not None:
            yield old.service, (key, What.REMOVED), FrontendChange(str(key), What.REMOVED, before=old)
        if new is not None:
            yield new.service, (key, What.ADDED), FrontendChange(str(key), What.ADDED, after=new)


def _services(serving: Serving) -> set[str]:
    return {each.service for each in serving.values()}


def backends(found: Iterable[Backend]) -> tuple[Backend, ...]:
    """Endpoints in the order in which lists are compared; each once."""
    return tuple(sorted(set(found)))


def client_ranges(found: Iterable[str]) -> tuple[str, ...]:
    """Ranges of clients as they are compared: in order, a single address without its length."""
    return tuple(sorted(each.removesuffix("/128" if ":" in each else "/32") for each in found))
