"""One Service on the status page: what ``proxyd explain`` says of it, bounded, and the connections that were counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from proxyd.explain.answer import Answer, PortExplanation, ServiceExplanation
from proxyd.model import CamelStruct, Family
from proxyd.serve.traffic import endpoint_text
from proxyd.sync.traffic import ServiceTraffic, Traffic

# Endpoints of one list that are sent; the counts are whole.
MOST_LISTED = 300
T = TypeVar("T")


class Cut(CamelStruct, frozen=True):
    """How many endpoints there are in a list that is not sent whole."""

    port: str
    family: Family
    list: str
    all: int


class Counted(CamelStruct, frozen=True):
    """New connections to one port since proxyd began; ``endpoints`` by address and port, where the rules count them."""

    family: Family
    port: str
    protocol: str
    connections: int
    endpoints: Mapping[str, int]


class Details(CamelStruct, frozen=True):
    """Everything about one Service. ``counts``: whether connections are counted in this mode at all."""

    answer: Answer
    cut: tuple[Cut, ...]
    counts: bool
    connections: tuple[Counted, ...]


def details(answer: Answer, name: str, traffic: Callable[[], Mapping[Family, Traffic]]) -> Details:
    """Puts together what is known of one Service, ``name`` being its namespace and name."""
    counted = traffic()
    cut: list[Cut] = []
    return Details(
        replace(answer, services=tuple(_bounded(each, cut) for each in answer.services)),
        tuple(cut),
        bool(counted),
        tuple(
            _counted(family, each)
            for family, of_family in counted.items()
            for each in of_family.services
            if f"{each.namespace}/{each.service}" == name
        ),
    )


def _counted(family: Family, each: ServiceTraffic) -> Counted:
    first = sorted(each.endpoints.items(), key=lambda item: -item[1])[:MOST_LISTED]
    endpoints = {endpoint_text(backend): count for backend, count in first}
    return Counted(family, each.port, each.protocol, each.connections, endpoints)


def _bounded(service: ServiceExplanation, cut: list[Cut]) -> ServiceExplanation:
    def part(port: PortExplanation, name: str, values: Sequence[T]) -> tuple[T, ...]:
        if len(values) > MOST_LISTED:
            cut.append(Cut(f"{port.port}/{port.protocol}", service.family, name, len(values)))
        return tuple(values[:MOST_LISTED])

    return replace(
        service,
        ports=tuple(
            replace(
                port,
                cluster=part(port, "cluster", port.cluster),
                cluster_left_out=part(port, "clusterLeftOut", port.cluster_left_out),
                local=part(port, "local", port.local),
                local_left_out=part(port, "localLeftOut", port.local_left_out),
            )
            for port in service.ports
        ),
    )
