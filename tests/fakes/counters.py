"""Counters of the in-memory kernel; its elements count what a test says that they have counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.kernel.nft.counters import CountersError, EndpointCount, FrontendCount
from proxyd.model import Family
from proxyd.nft.layout import LOCAL_BASE, Layout, generation_of
from tests.fakes.ruleset import FakeContainer, FakeRuleset


class FakeCounters:
    """Implements ``Counters``. ``failing``: what the next readings fail with; ``interrupted``: they are not whole.

    With ``seen`` set, only so many frontends are found by a reading that is not whole, or before one fails. ``asked``:
    whose endpoints were asked for; ``readings``: how many there were, of each family one.
    """

    def __init__(self, ruleset: FakeRuleset) -> None:
        self._ruleset = ruleset
        self.failing = ""
        self.interrupted = False
        self.seen: int | None = None
        self.asked: list[FrontendKey] = []
        self.readings = 0

    def generations(self, family: Family) -> frozenset[int]:
        """See ``Counters``."""
        self.readings += 1
        if self.failing and self.seen is None:
            raise CountersError(self.failing)
        found = map(generation_of, self._ruleset.contents(family).containers)
        return frozenset(each for each in found if each is not None)

    def frontends(self, family: Family, generation: int, take: Callable[[FrontendCount], None]) -> bool:
        """See ``Counters``."""
        found = [
            count
            for name in ("service-ips", "service-nodeports")
            for count in self._frontends(family, generation, name)
        ]
        for count in found[: self.seen]:
            take(count)
        if self.failing:
            raise CountersError(self.failing)
        return not self.interrupted and bool(self._container(family, generation, "service-ips"))

    def endpoints(self, family: Family, generation: int, key: FrontendKey, most: int) -> list[EndpointCount]:
        """See ``Counters``."""
        self.asked.append(key)
        name = f"{'' if key.address else 'nodeport-'}endpoints-{key.protocol}"
        container = self._container(family, generation, name)
        if container is None:
            return []
        place: tuple[str | int, ...] = (key.address, key.port) if key.address else (key.port,)
        found = []
        for base in (0, LOCAL_BASE):
            for index in range(base, base + most):
                entry = container.entries.get((*place, index))
                if entry is None:
                    break
                address, port = entry.value or ("", 0)
                packets = container.counted.get(entry.key, 0)
                found.append(EndpointCount(generation, key, index, Backend(str(address), int(port)), packets))
        return found

    def named(self, family: Family, name: str) -> int:
        """See ``Counters``."""
        return self._ruleset.counters(family).get(name, 0)

    def _frontends(self, family: Family, generation: int, name: str) -> Iterator[FrontendCount]:
        container = self._container(family, generation, name)
        for key, entry in container.entries.items() if container is not None else ():
            *address, protocol, port = key
            frontend = FrontendKey(str(address[0]) if address else "", protocol, port)
            chain = entry.element.value.removeprefix("goto ")
            packets = container.counted.get(key, 0) if container is not None else 0
            yield FrontendCount(generation, frontend, chain, entry.element.comment, packets)

    def _container(self, family: Family, generation: int, name: str) -> FakeContainer | None:
        table = self._ruleset.tables.get(family)
        return table.containers.get(Layout(family, generation, 0).name(name)) if table is not None else None
