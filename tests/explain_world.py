"""Views of a node in memory, for questions about it."""

from __future__ import annotations

import re
from collections import defaultdict
from fractions import Fraction
from typing import Any

from proxyd.explain.answer import EndpointSet, Explanation, Source, Verdict, Written
from proxyd.explain.view import Index, Packet, View
from proxyd.ipt.saved import printed
from proxyd.nft.layout import LOCAL_BASE
from tests.fakes import ipt_packets, packets
from tests.ipt_world import IptWorld
from tests.world import HOST, World


def view_of(world: World | IptWorld, **fields: Any) -> View:
    """The view of a node in memory: what a running proxyd would answer from."""
    objects = Index(world.store.all_services())
    mode = "iptables" if isinstance(world, IptWorld) else "nftables"
    defaults: dict[str, Any] = {
        "findings": tuple(each for found in world.reconciler.findings.values() for each in found),
        "quarantined": world.reconciler.quarantined,
        "localhost": isinstance(world, IptWorld) and world.style.localhost_node_ports,
    }
    return View(mode, world.settings, objects, world.store.service, HOST.addresses, **{**defaults, **fields})


def packet(source: str, destination: str, port: int = 80, protocol: str = "tcp", interface: str = "") -> Packet:
    return Packet(source, destination, protocol, port, interface)


End = tuple[str, tuple[str, int], bool]


def told(answer: Explanation) -> dict[End, Fraction]:
    """The ends of a connection that an answer speaks of."""
    nowhere = ("", 0)
    if answer.endpoints and answer.endpoints[0].source_why is not Source.RELAYED:
        found: defaultdict[End, Fraction] = defaultdict(Fraction)
        for each in answer.endpoints:
            end = (
                ("accept", (each.address, each.port), each.source_replaced)
                if each.verdict is Verdict.DELIVERED
                else (_REFUSALS[each.verdict], nowhere, False)
            )
            found[end] += Fraction(each.chance)
        return dict(found)
    if answer.verdict in _REFUSALS and "does not listen" not in answer.reason:
        return {(_REFUSALS[answer.verdict], nowhere, False): Fraction(1)}
    return {("accept", (answer.asked.destination, answer.asked.port), False): Fraction(1)}


_REFUSALS = {Verdict.REJECTED: "reject", Verdict.DROPPED: "drop"}


def met(world: World | IptWorld, packet: packets.Packet) -> dict[End, Fraction]:
    """The ends that the rules lead to."""
    outcomes = (
        packets.distribution(world.ruleset, packet, HOST)
        if isinstance(world, World)
        else ipt_packets.distribution(world.kernel.rules, packet, HOST)
    )
    found: defaultdict[End, Fraction] = defaultdict(Fraction)
    for probability, each in outcomes:
        end = (
            ("accept", each.destination, each.masqueraded)
            if each.verdict == "accept"
            else (each.verdict, ("", 0), False)
        )
        found[end] += probability
    return dict(found)


def is_written(world: World | IptWorld, wanted: Written) -> bool:
    """Whether the kernel in memory (of IPv4) holds what it must, and nothing that it must not."""
    if isinstance(world, IptWorld):
        tables = world.kernel.rules.tables
        texts = {
            (str(table), chain): tuple(printed(rule, world.family).strip() for rule in rules)
            for table, chains in tables.items()
            for chain, rules in chains.items()
        }
        return all(texts.get((each.table, each.chain)) in (each.rules, each.plain) for each in wanted.chains) and all(
            each.text in texts[each.table, each.chain] for each in wanted.dispatch
        )
    held = {
        _GENERATION.sub("", name): {key: _GENERATION.sub("", value) for key, value in elements.items()}
        for name, elements in world.ruleset.elements(world.family).items()
    }
    return all(
        held[each.container].get(each.key.removesuffix("/32")) == each.value for each in wanted.elements
    ) and all(
        _listed(held[each.container], each) == set(each.values)
        for each in wanted.lists
        if not each.container.startswith("chain ")
    )


def _listed(held: dict[str, str], wanted: EndpointSet) -> set[str]:
    address, _, port = wanted.frontend
    place = f"{address} . {port} . " if address else f"{port} . "
    return {
        value
        for key, value in held.items()
        if key.startswith(place) and (int(key.rpartition(" ")[2]) >= LOCAL_BASE) == (wanted.base >= LOCAL_BASE)
    }


_GENERATION = re.compile(r"g\d+/")
