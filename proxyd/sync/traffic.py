"""Connections of Services and endpoints since the process began, from counters that begin anew now and then.

The counter of an element goes with it: when a Service gets another number of endpoints, when an endpoint moves to another
place in its list, when everything is written anew. So what is kept is how much each has grown from one reading to the
next. What an element counted between the last reading and its end is lost.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from heapq import nsmallest

import msgspec

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.kernel.nft.counters import Counters, CountersError, EndpointCount, FrontendCount
from proxyd.model import Family
from proxyd.nft.layout import LOCAL_BASE

# Seconds for which the total of a Service that has no element is kept: it may have no endpoints for a while.
KEPT = 3600.0


class ServiceTraffic(msgspec.Struct, frozen=True, gc=False):
    """Connections to one port of a Service, and to each of its endpoints where the rules count them."""

    namespace: str
    service: str
    port: str
    protocol: str
    connections: int
    endpoints: Mapping[Backend, int]


class Traffic(msgspec.Struct, frozen=True):
    """One family's traffic as of the last reading. ``dropped`` are invalid segments, ever since the table was made.

    ``localhost_rejected``: packets to node ports on localhost that were refused, by protocol; since then as well.
    """

    services: tuple[ServiceTraffic, ...] = ()
    dropped: int = 0
    localhost_rejected: Mapping[str, int] = {}


class Limits(msgspec.Struct, frozen=True):
    """How many ports of Services are told of, those with the most connections, and how many endpoints of each list."""

    services: int
    endpoints: int


TOP = Limits(services=100, endpoints=100)
ALL = Limits(services=sys.maxsize, endpoints=LOCAL_BASE)


class Growth:
    """How much each counter has grown since it was read last. ``old``: generations of maps that were there before us."""

    def __init__(self, old: frozenset[int]) -> None:
        self._old = old
        self._last: dict[int, int] = {}
        self._now: dict[int, int] = {}

    def begin(self, generations: frozenset[int]) -> None:
        """Begins a reading; these generations there are. A number that was free meanwhile is not an old generation."""
        self._old &= generations

    def grown(self, generation: int, identity: tuple[object, ...], value: int) -> int:
        """Takes the reading of one counter; gives by how much it has grown.

        What is read for the first time has counted since its element was added, unless it was there before us; what is
        lower than the last time has begun anew.
        """
        # In place of the parts: a third of the memory.
        name = hash(identity)
        before = self._last.get(name)
        self._now[name] = value
        if before is None:
            return 0 if generation in self._old else value
        return value - before if value >= before else value

    def end(self, *, whole: bool) -> None:
        """Ends a reading. Where it was not whole, what is missing may still be there."""
        self._last = self._now if whole else self._last | self._now
        self._now = {}


class _Port:
    """The totals of one port of a Service."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol
        self.connections = 0
        self.seen = 0.0
        self.endpoints: dict[Backend, int] = {}


class Totals:
    """The totals of one family. Not for several threads."""

    def __init__(self, family: Family, limits: Limits, old: frozenset[int]) -> None:
        self._family = family
        self._limits = limits
        self._frontends, self._endpoints = Growth(old), Growth(old)
        self._ports: dict[str, _Port] = {}

    def read(self, counters: Counters, now: float) -> None:
        """Takes a reading of everything; ``now`` is monotonic seconds.

        Raises ``CountersError``; what was read until then counts, and nothing counts twice.
        """
        generations = counters.generations(self._family)
        self._frontends.begin(generations)
        self._endpoints.begin(generations)
        leading = set(self._leading())
        places: list[tuple[str, int, FrontendKey]] = []

        def take(count: FrontendCount) -> None:
            if count.comment:
                self._frontend(count, now)
                if count.comment in leading:
                    places.append((count.comment, count.generation, count.key))

        whole = True
        try:
            for generation in sorted(generations):
                whole &= counters.frontends(self._family, generation, take)
        except CountersError:
            whole = False
            raise
        finally:
            self._frontends.end(whole=whole)
        self._read_endpoints(counters, places, leading, whole=whole)
        if whole:
            self._forget(now, leading)

    def snapshot(self) -> tuple[ServiceTraffic, ...]:
        """The ports with the most connections, as they are now."""
        return tuple(_told(name, self._ports[name]) for name in self._leading())

    def _leading(self) -> list[str]:
        if len(self._ports) <= self._limits.services:
            return list(self._ports)

        def rank(name: str) -> tuple[int, str]:
            return -self._ports[name].connections, name

        return nsmallest(self._limits.services, self._ports, key=rank)

    def _frontend(self, count: FrontendCount, now: float) -> None:
        port = self._ports.get(count.comment)
        if port is None:
            port = self._ports[count.comment] = _Port(count.key.protocol)
        port.seen = now
        # Another chain is another element of the same key.
        identity = (count.generation, count.key, count.leads_to, count.comment)
        port.connections += self._frontends.grown(count.generation, identity, count.packets)

    def _read_endpoints(
        self, counters: Counters, places: list[tuple[str, int, FrontendKey]], leading: set[str], *, whole: bool
    ) -> None:
        here: dict[str, set[Backend]] = {name: set() for name in leading}
        complete = False
        try:
            for name, generation, key in places:
                for count in counters.endpoints(self._family, generation, key, self._limits.endpoints):
                    self._endpoint(name, count)
                    here[name].add(count.endpoint)
            complete = whole
        finally:
            self._endpoints.end(whole=complete)
        if complete:
            for name, endpoints in here.items():
                known = self._ports[name].endpoints
                self._ports[name].endpoints = {each: known[each] for each in known if each in endpoints}

    def _endpoint(self, name: str, count: EndpointCount) -> None:
        identity = (count.generation, count.key, count.place, count.endpoint)
        grown = self._endpoints.grown(count.generation, identity, count.packets)
        known = self._ports[name].endpoints
        known[count.endpoint] = known.get(count.endpoint, 0) + grown

    def _forget(self, now: float, leading: set[str]) -> None:
        for name, port in list(self._ports.items()):
            if now - port.seen > KEPT:
                del self._ports[name]
            elif name not in leading:
                port.endpoints = {}


def _told(name: str, port: _Port) -> ServiceTraffic:
    service, _, port_name = name.partition(":")
    namespace, _, service = service.partition("/")
    return ServiceTraffic(namespace, service, port_name, port.protocol, port.connections, dict(port.endpoints))
