"""Replays a scenario in some order of arrival, through the decisions and on into a kernel in memory."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import Any

from proxyd.addresses import contains
from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Desired
from proxyd.desired.settings import NodePolicy, node_settings
from proxyd.kube.decode import Decoded
from proxyd.kube.store import Store
from proxyd.model import FAMILIES, Family, Finding, NodeSettings, ServiceKey
from tests.fakes.packets import Host, Packet
from tests.scenarios.kernels import KERNELS, Kernel
from tests.scenarios.story import CLUSTER_CIDRS, Objects, Operation, Step, Story
from tests.scenarios.table import WHO, Line, decided

# The node's own addresses; those of the default route's interface first. Only the first is in its Node object.
LOCAL = {
    Family.IPV4: ("192.0.2.11", "192.0.2.12", "203.0.113.10"),
    Family.IPV6: ("2001:db8:2::11", "2001:db8:2::12", "2001:db8:1::10"),
}
HOST = Host(frozenset(address for each in LOCAL.values() for address in each))
SOURCES = {
    Family.IPV4: ("10.244.1.99", "192.0.2.11", "198.51.100.7"),
    Family.IPV6: ("fd00:10:244:1::99", "2001:db8:2::11", "2001:db8:7::7"),
}
# Addresses of this node's pods begin so; the scenarios keep to it.
PODS = ("10.244.1.", "fd00:10:244:1:")
INTERFACES = {"pods": "veth9", "node": "", "outside": "eth0"}
Answer = tuple[Forwarding | None, tuple[Finding, ...]]


class World:
    """One node: a store, what follows from it in each family, and the kernel."""

    def __init__(self, policy: NodePolicy, mode: str = "nftables") -> None:
        self.store = Store()
        self.mode = mode
        self.kernel: Kernel = KERNELS[mode]()
        self.policy = policy
        self.intakes: dict[str, Any] = {
            "Service": self.store.services,
            "EndpointSlice": self.store.slices,
            "Node": self.store.nodes,
        }
        self.desired = {family: Desired(family, self.store.service) for family in FAMILIES}
        self.answers: dict[Family, dict[ServiceKey, Answer]] = {family: {} for family in FAMILIES}
        self.settings: dict[Family, NodeSettings] = {}
        self.reconcilers = {family: self.kernel.rules(family, self.store.service) for family in FAMILIES}

    def list(self, objects: Objects) -> None:
        """Takes complete lists of all kinds."""
        for kind, intake in self.intakes.items():
            intake.replace([decoded for key, decoded in objects.items() if key[0] == kind])

    def take(self, operation: Operation, *, selected: bool = False) -> None:
        """Takes one event. ``selected``: what is not for proxies is not sent (label selectors of a watch)."""
        kind, *key = operation.key
        decoded: Decoded[Any] | None = operation.decoded
        if decoded is None or (selected and decoded.value is None and not decoded.refused):
            self.intakes[kind].remove(tuple(key))
        else:
            self.intakes[kind].put(decoded)

    def sync(self) -> None:
        """One pass over all that is new."""
        changes = self.store.take()
        addresses = [(family, address) for family, each in LOCAL.items() for address in each]
        for family in FAMILIES:
            settings = node_settings(family, self.policy, self.store.node(), addresses)
            dirty = changes.services | set(() if settings == self.settings.get(family) else self.store.keys())
            self.settings[family] = settings
            for key in self.desired[family].concerned(dirty):
                self.answers[family][key] = self.desired[family].forwarding(key, settings)
            self.reconcilers[family].sync(changes.services, self.store.keys, settings)

    def settle(self) -> None:
        """Deletes what nothing uses any more."""
        for reconciler in self.reconcilers.values():
            while reconciler.cleanup_owed:
                reconciler.cleanup()

    def served(self, family: Family) -> list[Forwarding]:
        return [forwarding for forwarding, _ in self.answers[family].values() if forwarding is not None]

    def table(self) -> list[Line]:
        return [line for family in FAMILIES for line in decided(self.served(family), self.settings[family])]

    def findings(self) -> set[str]:
        found = {f for each in self.answers.values() for _, findings in each.values() for f in findings}
        return {f"{f.reason} {f.kind} {f.object}: {f.message}" for f in (*found, *self.store.unreadable.values())}

    def reported(self) -> set[str]:
        """The findings as the reconcilers have them."""
        found = {f for each in self.reconcilers.values() for findings in each.findings.values() for f in findings}
        return {f"{f.reason} {f.kind} {f.object}: {f.message}" for f in (*found, *self.store.unreadable.values())}


ORDERS = (
    "as written",
    "reversed",
    "Services last",
    "slices last",
    "one by one",
    "one by one, reversed",
    "all steps at once",
    "watched by selector",
    "listed again",
    "started anew",
)
# What differs in iptables mode: how rules are changed, and begun with.
ORDERS_OF_IPTABLES = ("as written", "one by one, reversed", "started anew")
# Enough to see every rule at work; the other orders must only end in the same rules.
WITH_PACKETS = ("as written", "one by one, reversed")


def replay(story: Story, order: str, mode: str = "nftables") -> Iterator[tuple[World, Step]]:
    """Gives the world after each step (for "all steps at once" only after the last one)."""
    world = World(story.policy, mode)
    if order == "all steps at once":
        world.list(story.first)
        for step in story.steps:
            for operation in step.operations:
                world.take(operation)
        world.sync()
        yield world, story.steps[-1]
        return
    world.list(story.first)
    world.sync()
    for step in story.steps:
        if order == "started anew":
            world = World(story.policy, mode)
        if order in ("started anew", "listed again"):
            world.list(step.objects)
        for operation in _in_order(step.operations, order):
            world.take(operation, selected=order == "watched by selector")
            if order.startswith("one by one"):
                world.sync()
                check_from_scratch(world)
        world.sync()
        yield world, step


def _in_order(operations: tuple[Operation, ...], order: str) -> Iterable[Operation]:
    match order:
        case "reversed" | "one by one, reversed":
            return operations[::-1]
        case "Services last":
            return sorted(operations, key=lambda each: each.key[0] == "Service")
        case "slices last":
            return sorted(operations, key=lambda each: each.key[0] == "EndpointSlice")
        case "listed again" | "started anew":
            return ()
        case _:
            return operations


def check_from_scratch(world: World) -> None:
    """What was worked out change by change is what the present objects alone give."""
    for family in FAMILIES:
        desired = Desired(family, world.store.service)
        keys = desired.concerned(world.store.keys())
        assert {key: each for key, each in world.answers[family].items() if each != (None, ())} == {
            key: each for key in keys if (each := desired.forwarding(key, world.settings[family])) != (None, ())
        }


# -- what the kernel does ------------------------------------------------------------------------------------------------


class Traffic:
    """Sends packets at one kernel and compares where they end with a table."""

    def __init__(self, world: World, table: Iterable[Line]) -> None:
        self._world = world
        self._lines = {(line.family, line.key): line for line in table}
        # As in kube-proxy, refusals of a node port in iptables mode do not ask which addresses take node ports.
        self._refused_everywhere = {
            (line.family, line.key): reached
            for line in self._lines.values()
            if not line.key.address and isinstance(reached := line.reach["outside"], str)
        }
        self._cluster_ips = {f.cluster_ip for family in FAMILIES for f in world.served(family) if f.ports}

    def check(self, seen: Iterable[tuple[Family, FrontendKey]]) -> None:
        """Tries every frontend of the table, and those that were ``seen`` before and must be gone."""
        for line in self._lines.values():
            for destination in self._destinations(line.family, line.key):
                for source in self._sources(line):
                    self._try(line, source, destination)
        for family, key in set(seen) - self._lines.keys():
            for destination in self._destinations(family, key):
                self._untouched(family, destination, key)
        for line in self._lines.values():
            if not line.key.address:
                for address in set(LOCAL[line.family]) - set(self._destinations(line.family, line.key)):
                    self._untouched(line.family, address, line.key)

    def _destinations(self, family: Family, key: FrontendKey) -> list[str]:
        if key.address:
            return [key.address]
        chosen = self._world.settings[family].node_port_addresses
        return list(LOCAL[family] if chosen is None else chosen)

    def _sources(self, line: Line) -> set[str]:
        """Usual ones, both ends of each range and their neighbours, and this node's endpoints that call themselves."""
        found = set(SOURCES[line.family])
        for each in line.sources or ():
            network = ipaddress.ip_network(each)
            for number in (int(network[0]) - 1, int(network[0]), int(network[-1]), int(network[-1]) + 1):
                if 0 <= number < 1 << network.max_prefixlen:
                    found.add(str(type(network[0])(number)))
        reached = {b.address for each in line.reach.values() if not isinstance(each, str) for b in each}
        return found | {address for address in reached if address.startswith(PODS)}

    def _who(self, family: Family, source: str) -> str:
        if source in HOST.addresses:
            return "node"
        return "pods" if contains(CLUSTER_CIDRS[family], source) else "outside"

    def _send(
        self, family: Family, key: FrontendKey, source: str, destination: str, who: str
    ) -> dict[object, Fraction]:
        found: Counter[object] = Counter()
        packet = Packet(source, destination, key.port, key.protocol, INTERFACES[who])
        for probability, outcome in self._world.kernel.distribution(family, packet, HOST):
            end = (
                (Backend(*outcome.destination), outcome.masqueraded) if outcome.verdict == "accept" else outcome.verdict
            )
            found[end] += probability  # type: ignore[assignment]
        return {end: Fraction(probability) for end, probability in found.items()}

    def _try(self, line: Line, source: str, destination: str) -> None:
        who = self._who(line.family, source)
        reached = line.reach[who]
        if self._goes_out(line, who, destination):
            expected_out: dict[object, Fraction] = {(Backend(destination, line.key.port), False): Fraction(1)}
            assert self._send(line.family, line.key, source, destination, who) == expected_out
            return
        within = line.sources is None or any(contains(each, source) for each in line.sources)
        # As in kube-proxy, iptables mode asks for the source only where there is something to keep it from.
        if not within and not (self._world.mode == "iptables" and reached == "reject"):
            reached = "drop"
        if isinstance(reached, str):
            expected: dict[object, Fraction] = {reached: Fraction(1)}
        else:
            expected = {(b, self._masqueraded(line, who, source, b)): Fraction(1, len(reached)) for b in reached}
        assert self._send(line.family, line.key, source, destination, who) == expected, (
            f"{source} to {destination}: {line}"
        )

    def _goes_out(self, line: Line, who: str, destination: str) -> bool:
        """As in kube-proxy, nothing in iptables mode refuses what the node itself sends to an external address."""
        external = line.key.address and destination not in self._cluster_ips and destination not in HOST.addresses
        refused = line.reach[who] in ("reject", "drop")
        return self._world.mode == "iptables" and who == "node" and bool(external) and refused

    def _masqueraded(self, line: Line, who: str, source: str, backend: Backend) -> bool:
        """What is delivered on the node itself keeps its source, unless it began there too."""
        if backend.address in HOST.addresses and who != "node":
            return False
        return who in line.starred or source == backend.address

    def _untouched(self, family: Family, destination: str, key: FrontendKey) -> None:
        if any((family, FrontendKey(destination, key.protocol, number)) in self._lines for number in (key.port,)):
            return
        for who, source in zip(WHO, SOURCES[family], strict=True):
            expected: object = (Backend(destination, key.port), False)
            if destination in self._cluster_ips and self._world.kernel.rejects_other_ports:
                expected = "reject"
            if self._world.mode == "iptables" and destination in HOST.addresses:
                expected = self._refused_everywhere.get((family, key), expected)
            found = self._send(family, key, source, destination, who)
            assert found == {expected: Fraction(1)}, f"{source} to {destination} port {key.port}, which is gone"
