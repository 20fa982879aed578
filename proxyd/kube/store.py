"""The newest known objects, the slices of each Service, and which Services changed since somebody last asked.

Sources (reflectors, manifests) write into it from their own threads; the sync thread takes the dirty keys and reads.
Memory is bounded by live objects, never by the number of events: a change to a dirty key adds nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from proxyd.kube.decode import Decoded, ObjectKey
from proxyd.kube.terminating import Terminating
from proxyd.model import (
    FAMILIES,
    Action,
    Cause,
    EndpointSlice,
    Event,
    Family,
    Finding,
    Node,
    Origin,
    Reason,
    Service,
    ServiceKey,
)

T = TypeVar("T")

# Times kept for a family between two passes: enough for a latency metric, bounded while nobody takes them.
TIMES_KEPT = 1000
# Events kept between two passes; the others are counted.
EVENTS_KEPT = 16


class Received(NamedTuple):
    """That a change came, and when (monotonic seconds)."""

    cause: Cause
    at: float


class Changes(NamedTuple):
    """What was taken from the store: dirty Services, whether the Node changed, and what the latency metrics need.

    ``triggers`` holds Unix times at which changes to endpoints of a family began, ``received`` when changes of a family
    came (after the first lists); ``since`` is the monotonic time of the oldest change taken (None where there is none).
    ``events`` are the first ones that made it (after the first lists), and ``more_events`` counts the others.
    """

    services: set[ServiceKey]
    node: bool = False
    triggers: Mapping[Family, list[float]] = MappingProxyType({})
    since: float | None = None
    received: Mapping[Family, list[Received]] = MappingProxyType({})
    events: tuple[Event, ...] = ()
    more_events: int = 0


class Intake(Generic[T]):
    """The side of the store that one source writes to: one kind of object. All methods are safe from any thread."""

    def __init__(self, store: Store, kind: str, changed: Callable[[T | None, T | None], None]) -> None:
        self.kind = kind
        self.objects: dict[ObjectKey, T] = {}
        self.synced = False
        self.events = 0
        self._store = store
        self._changed = changed

    def put(self, decoded: Decoded[T]) -> None:
        """Takes an added or modified object; one that could not be read leaves the one known before in place."""
        with self._store.lock:
            self.events += 1
            self._put(decoded)
            self._store.lock.notify_all()

    def remove(self, key: ObjectKey) -> None:
        """Takes a deletion; unknown keys are ignored."""
        with self._store.lock:
            self.events += 1
            self._remove(key)
            self._store.lock.notify_all()

    def replace(self, listed: Iterable[Decoded[T]]) -> None:
        """Takes a complete list: what is not in it is gone, only what differs becomes dirty. The kind is synced then.

        What differs from an earlier list counts like events that were missed.
        """
        with self._store.lock:
            seen = set()
            for decoded in listed:
                seen.add(decoded.key)
                self.events += self._put(decoded) and self.synced
            unreadable = [key for kind, key in self._store.unreadable if kind == self.kind]
            for key in [key for key in (*self.objects, *unreadable) if key not in seen]:
                self.events += self._remove(key) and self.synced
            self._store.listed(self)

    def overlay(self, more: Intake[T]) -> None:
        """Takes all objects of another store's intake, in addition to and in place of its own."""
        for key, value in more.objects.items():
            self.put(Decoded(key, "", value))

    def _put(self, decoded: Decoded[T]) -> bool:
        """Gives whether another object is known now."""
        if decoded.refused:
            name = "/".join(part for part in decoded.key if part)
            self._store.unreadable[self.kind, decoded.key] = Finding(
                self.kind, name, Reason.UNREADABLE_OBJECT, decoded.refused
            )
            self._store.happened(Origin(self.kind), decoded.key, Action.UNREADABLE)
            self._store.attention()
            return False
        if decoded.value is None:
            return self._remove(decoded.key)
        was_unreadable = self._no_longer_unreadable(decoded.key)
        old = self.objects.get(decoded.key)
        if old != decoded.value:
            self.objects[decoded.key] = decoded.value
            self._store.happened(Origin(self.kind), decoded.key, Action.MODIFIED if old is not None else Action.ADDED)
            self._changed(old, decoded.value)
        elif was_unreadable:
            self._store.happened(Origin(self.kind), decoded.key, Action.MODIFIED)
        return old != decoded.value

    def _remove(self, key: ObjectKey) -> bool:
        """Gives whether an object was known."""
        was_unreadable = self._no_longer_unreadable(key)
        old = self.objects.pop(key, None)
        if old is not None or was_unreadable:
            self._store.happened(Origin(self.kind), key, Action.DELETED)
        if old is not None:
            self._changed(old, None)
        return old is not None

    def _no_longer_unreadable(self, key: ObjectKey) -> bool:
        """Ends the Finding about an object, if there is one: no rule may change, but its end has to be reported."""
        if self._store.unreadable.pop((self.kind, key), None) is None:
            return False
        self._store.attention()
        return True


class Store:
    """All objects that decide about rules. ``lock`` is a Condition, notified at each change."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Condition()
        self.services: Intake[Service] = Intake(self, "Service", self._service_changed)
        self.slices: Intake[EndpointSlice] = Intake(self, "EndpointSlice", self._slice_changed)
        self.nodes: Intake[Node] = Intake(self, "Node", self._node_changed)
        self.unreadable: dict[tuple[str, ObjectKey], Finding] = {}
        self._now = now
        self._terminating = Terminating()
        self._slices_of: dict[ServiceKey, dict[str, EndpointSlice]] = {}
        self._dirty: set[ServiceKey] = set()
        self._node_dirty = False
        self._triggers: dict[Family, list[float]] = {}
        self._received: dict[Family, list[Received]] = {}
        self._events: list[Event] = []
        self._more_events = 0
        self._since: float | None = None
        self._woken = False

    @property
    def complete(self) -> bool:
        """Whether Services and EndpointSlices have both been listed once: before that, nothing may be written."""
        return self.services.synced and self.slices.synced

    def node(self) -> Node | None:
        """The own Node, if it is known."""
        with self.lock:
            return next(iter(self.nodes.objects.values()), None)

    def service(self, key: ServiceKey) -> tuple[Service | None, tuple[EndpointSlice, ...]]:
        """One Service and its slices (of both families, in order of name, so that arrival order never shows)."""
        with self.lock:
            slices = self._slices_of.get(key, {})
            return self.services.objects.get(key), tuple(slices[name] for name in sorted(slices))

    def terminating(self, key: ServiceKey) -> dict[tuple[Family, str], float]:
        """The addresses in slices of a Service that terminate, and when that was first seen (monotonic seconds)."""
        found: dict[tuple[Family, str], float] = {}
        with self.lock:
            for piece in self._slices_of.get(key, {}).values():
                for each in piece.endpoints:
                    since = self._terminating.since(piece, each.address)
                    if since is not None:
                        place = (piece.family, each.address)
                        found[place] = min(since, found.get(place, since))
        return found

    def keys(self) -> list[ServiceKey]:
        """Keys of all Services."""
        with self.lock:
            return [ServiceKey(*key) for key in self.services.objects]

    def all_services(self) -> tuple[Service, ...]:
        """All Services, as they are right now."""
        with self.lock:
            return tuple(self.services.objects.values())

    def all_slices(self) -> tuple[EndpointSlice, ...]:
        """All EndpointSlices, as they are right now."""
        with self.lock:
            return tuple(self.slices.objects.values())

    def load(self, services: Iterable[Service], slices: Iterable[EndpointSlice], node: Node | None) -> None:
        """Takes these objects for all there are."""
        self.services.replace(Decoded(each.key, "", each) for each in services)
        self.slices.replace(Decoded((each.namespace, each.name), "", each) for each in slices)
        self.load_node(node)

    def load_node(self, node: Node | None) -> None:
        """Takes this Node for the own one; other objects stay as they are."""
        self.nodes.replace([Decoded(("", node.name), "", node)] if node is not None else [])

    def node_ports(self) -> dict[tuple[str, int], ServiceKey]:
        """Whose each node port is, by protocol and number; of two that claim one, either. Goes through all Services."""
        with self.lock:
            services = list(self.services.objects.values())
        return {(port.protocol, port.node_port): each.key for each in services for port in each.ports if port.node_port}

    def wait(self, timeout: float | None) -> bool:
        """Waits for a change, a ``wake`` or ``timeout`` seconds; gives whether there is a change that may be written."""
        with self.lock:
            self.lock.wait_for(lambda: self._woken or (self._since is not None and self.complete), timeout)
            self._woken = False
            return self._since is not None and self.complete

    def take(self) -> Changes:
        """Takes everything that is dirty; the caller owns it from here and must see it through."""
        with self.lock:
            changes = Changes(
                self._dirty,
                self._node_dirty,
                self._triggers,
                self._since,
                self._received,
                tuple(self._events),
                self._more_events,
            )
            self._events, self._more_events = [], 0
            self._dirty, self._node_dirty, self._triggers, self._since, self._received = set(), False, {}, None, {}
            return changes

    def pending(self) -> tuple[int, float | None]:
        """How many Services are dirty, and since when (monotonic seconds)."""
        with self.lock:
            return len(self._dirty), self._since

    def wake(self) -> None:
        """Wakes whoever waits, without a change (used at shutdown)."""
        with self.lock:
            self._woken = True
            self.lock.notify_all()

    def attention(self) -> None:
        """Asks for a pass although no rule may change (a Finding came or went); the caller holds the lock."""
        if self._since is None:
            self._since = self._now()
        self.lock.notify_all()

    def note(self) -> None:
        """As ``attention``, for what the configuration has to say; for callers without the lock."""
        with self.lock:
            self.happened(Origin.CONFIGURATION)
            self.attention()

    def listed(self, intake: Intake[Any]) -> None:
        """Takes note that a kind has been listed completely; the caller holds the lock."""
        was_complete, intake.synced = self.complete, True
        if self.complete and not was_complete and self._since is not None:
            # Before this moment nothing could have been written: no change is older than it.
            self._since = self._now()
        self.lock.notify_all()

    def host_changed(self) -> None:
        """Takes notice that the host is not as it was: what depends on it is worked out again, as for a changed Node."""
        with self.lock:
            self.happened(Origin.HOST)
            self._node_changed(None, None)

    def happened(self, origin: Origin, key: ObjectKey = ("", ""), action: Action = Action.NONE) -> None:
        """Remembers an event for whoever asks later why there was a pass; the caller holds the lock.

        Not those before the first lists are complete: these are what is there, and no events.
        """
        if not self.complete:
            return
        if len(self._events) >= EVENTS_KEPT:
            self._more_events += 1
            return
        self._events.append(Event(origin, "/".join(filter(None, key)), action))

    def _mark(self, key: ServiceKey) -> None:
        self._dirty.add(key)
        self.attention()

    def _note_time(self, cause: Cause, families: Iterable[Family]) -> None:
        """What comes before the first lists are complete waits for them, which says nothing about proxyd."""
        if self.complete and (cause is not Cause.NODE or self.nodes.synced):
            for family in families:
                times = self._received.setdefault(family, [])
                if len(times) < TIMES_KEPT:
                    times.append(Received(cause, self._now()))

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        cluster_ips = (*(old.cluster_ips if old else ()), *(new.cluster_ips if new else ()))
        self._mark((new or old).key)  # type: ignore[union-attr]
        self._note_time(Cause.SERVICE, {Family.IPV6 if ":" in ip else Family.IPV4 for ip in cluster_ips})

    def _slice_changed(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        self._terminating.update(old, new, self._now())
        if old is not None and (new is None or new.service != old.service):
            slices = self._slices_of[old.service]
            del slices[old.name]
            if not slices:
                del self._slices_of[old.service]
            self._mark(old.service)
        if new is not None:
            self._slices_of.setdefault(new.service, {})[new.name] = new
            self._mark(new.service)
            triggers = self._triggers.setdefault(new.family, [])
            if new.trigger is not None and len(triggers) < TIMES_KEPT:
                triggers.append(new.trigger)
        self._note_time(Cause.ENDPOINTS, {each.family for each in (old, new) if each is not None})

    def _node_changed(self, _old: Node | None, _new: Node | None) -> None:
        self._node_dirty = True
        self.attention()
        self._note_time(Cause.NODE, FAMILIES)
