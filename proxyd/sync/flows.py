"""Which frontends' flows have to be looked at, since something about them changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live, Place
from proxyd.model import ServiceKey


class FlowTracker:
    """Remembers where each Service takes flows, as far as the kernel has its rules. Used by the sync thread only."""

    def __init__(self, in_slices: Callable[[ServiceKey], Live] = lambda _: frozenset()) -> None:
        """``in_slices`` gives the endpoints of TCP that are in the slices of a Service now."""
        self._in_slices = in_slices
        self._of: dict[ServiceKey, Mapping[Place, Live]] = {}
        self._owner: dict[Place, ServiceKey] = {}
        self._changed: set[Place] = set()
        # Of TCP: the Services that had a place and still have slices; and the same the other way round.
        self._former: dict[Place, set[ServiceKey]] = {}
        self._had: dict[ServiceKey, set[Place]] = {}

    def note(self, service: ServiceKey, places: Mapping[Place, Live]) -> None:
        """Takes the present places of one Service (empty: none, or it is gone)."""
        before = self._of.pop(service, {})
        for place in before.keys() - places.keys():
            # In one pass, the new owner of a place may be noted before the old one.
            if self._owner.get(place) == service:
                del self._owner[place]
                self._changed.add(place)
        for place, live in places.items():
            if self._owner.get(place) != service or before[place] != live:
                self._owner[place] = service
                self._changed.add(place)
        if places:
            self._of[service] = places
        self._note_former(service, {place for place in before if place.key.protocol == "tcp"}, places)

    def _note_former(self, service: ServiceKey, before: set[Place], places: Mapping[Place, Live]) -> None:
        """Takes that connections to a Service may live on where it had them, as long as it has slices."""
        had = self._had.pop(service, set())
        for place in had:
            self._former[place].discard(service)
            if not self._former[place]:
                del self._former[place]
        lost = (had | before) - places.keys()
        # Which of them may live depends on its slices, and these may have changed.
        self._changed |= lost
        if lost and self._in_slices(service):
            self._had[service] = lost
            for place in lost:
                self._former.setdefault(place, set()).add(service)

    def all_written(self, services: Iterable[ServiceKey]) -> None:
        """Takes that everything was written anew, for these Services: others are gone, and all flows are in doubt.

        Until then there may have been no rules (a first start, or a table that somebody deleted), or old ones.
        """
        for gone in self._of.keys() - set(services):
            self.note(gone, {})
        self._changed.update(self._owner)

    def in_doubt(self, services: Iterable[ServiceKey] | None) -> None:
        """Takes that flows to these Services (None: to all) may have gone elsewhere for a while."""
        if services is None:
            self._changed.update(self._owner)
        else:
            self._changed.update(place for key in services for place in self._of.get(key, ()))

    def take(self) -> dict[FrontendKey, Live]:
        """The frontends that changed since the last time, with the endpoints that keep their flows."""
        changed, self._changed = self._changed, set()
        # A node port on every address takes what goes to an address that has nobody (any more) on the same port. Of TCP,
        # connections to who was there before go on.
        nobody = (key for key, _ in changed if key.address and key.protocol != "tcp" and not self._live(key))
        anywhere = {Place(FrontendKey("", key.protocol, key.port), node_port=True) for key in nobody}
        changed |= anywhere & self._owner.keys()
        # A node port on every address concerns flows to an address that a Service has for itself on the same port.
        shadowed = {(place.key.protocol, place.key.port) for place in changed if not place.key.address}
        if shadowed:
            changed.update(place for place in self._owner if (place.key.protocol, place.key.port) in shadowed)
        # Of TCP only frontends that are served: one that is gone says nothing about the endpoints, which may be in slices.
        return {
            place.key: self._live(place.key) for place in changed if place.key.protocol != "tcp" or place in self._owner
        }

    def _live(self, key: FrontendKey) -> Live:
        both = (Place(key, node_port=False), Place(key, node_port=True))
        owned = next((place for place in both if place in self._owner), None)
        if owned is None:
            return frozenset()
        owner = self._owner[owned]
        if key.protocol != "tcp":
            return self._of[owner][owned]
        # A frontend that passes to another Service, or to another port of its own, takes no endpoint out of its slice.
        had = {owner}.union(*(self._former.get(place, ()) for place in both))
        return self._of[owner][owned].union(*map(self._in_slices, had))
