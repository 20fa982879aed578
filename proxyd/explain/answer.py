"""What there is to say: the answer to a question about one packet or one Service, as data. JSON has it in camel case."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import LeftOut
from proxyd.desired.forwarding import Route
from proxyd.model import CamelStruct, Family


class Verdict(StrEnum):
    """What becomes of the first packet of a connection: a closed list, documented for operators."""

    DELIVERED = "delivered"  # an endpoint gets it
    PARTLY = "partly"  # some of the endpoints that can be chosen get it, others are refused to it
    REJECTED = "rejected"  # the client is told at once
    DROPPED = "dropped"  # the client waits in vain
    UNSERVED = "unserved"  # a Service names the address or port, but no rule serves or refuses it: it goes on as it is
    UNTOUCHED = "untouched"  # no Service names it


class Source(StrEnum):
    """Why an endpoint sees an address of this node as the source of a connection, or the client's own: a closed list."""

    MASQUERADE_ALL = "masquerade-all"
    NOT_A_LOCAL_POD = "not-a-local-pod"
    EXTERNAL_CLUSTER = "external-policy-cluster"
    NODE_TRAFFIC = "node-traffic"
    HAIRPIN = "hairpin"
    RELAYED = "relayed"
    LOCAL_POD = "local-pod"
    NO_DETECTOR = "no-detector"
    EXTERNAL_LOCAL = "external-policy-local"
    ENDPOINT_HERE = "endpoint-here"


REPLACED = frozenset(
    {
        Source.MASQUERADE_ALL,
        Source.NOT_A_LOCAL_POD,
        Source.EXTERNAL_CLUSTER,
        Source.NODE_TRAFFIC,
        Source.HAIRPIN,
        Source.RELAYED,
    }
)


class Asked(CamelStruct, frozen=True):
    """The packet: addresses canonical; ``origin`` is "node" or "elsewhere", ``interface`` that by which it comes in."""

    source: str
    destination: str
    protocol: str
    port: int
    interface: str = ""
    origin: str = ""


class Step(CamelStruct, frozen=True):
    """One thing on the way of the packet: the chain, map or set, and what is found there."""

    where: str
    what: str


class Target(CamelStruct, frozen=True):
    """An endpoint that can be chosen. ``chance`` is its probability as a fraction ("1/3"), for a client without a pin."""

    address: str
    port: int
    chance: str
    probability: float
    verdict: Verdict
    source_replaced: bool
    source_why: Source
    node: str | None = None


class Omitted(CamelStruct, frozen=True):
    """An endpoint that is not used. ``port`` is 0 and ``address`` as it was written where it cannot be one at all."""

    address: str
    port: int
    why: LeftOut
    detail: str = ""
    node: str | None = None


class Element(CamelStruct, frozen=True):
    """An element that a set or map must have (``value`` is the verdict, "" in sets), or must not (None)."""

    container: str
    key: str
    value: str | None = None


class EndpointSet(CamelStruct, frozen=True):
    """Exactly the endpoints ("address . port") that a frontend must have: in a map from ``base`` on, or in a chain."""

    container: str
    frontend: FrontendKey
    base: int
    values: tuple[str, ...]


class RuleText(CamelStruct, frozen=True):
    """A rule that a chain must have among others, as it is printed but for the order of its options."""

    table: str
    chain: str
    text: str


class ChainText(CamelStruct, frozen=True):
    """Exactly the rules that a chain must have; ``plain`` are the same without comments, as in large clusters."""

    table: str
    chain: str
    rules: tuple[str, ...]
    plain: tuple[str, ...] = ()


class Written(CamelStruct, frozen=True):
    """What the kernel must hold of a frontend: in nftables mode elements and lists, in iptables mode rules."""

    elements: tuple[Element, ...] = ()
    lists: tuple[EndpointSet, ...] = ()
    dispatch: tuple[RuleText, ...] = ()
    chains: tuple[ChainText, ...] = ()


class Connections(CamelStruct, frozen=True):
    """Tracked connections that an endpoint has; ``chosen``: new ones can go there too."""

    address: str
    port: int
    count: int
    chosen: bool


class Verified(CamelStruct, frozen=True):
    """What was found in the kernel: how many things were compared, what differs, whose the tracked connections are."""

    compared: int
    differences: tuple[str, ...] = ()
    connections: tuple[Connections, ...] = ()


class Explanation(CamelStruct, frozen=True):
    """What becomes of a packet, and why. ``service`` and what follows is about the frontend; "" where there is none."""

    asked: Asked
    mode: str
    family: Family
    verdict: Verdict
    reason: str
    service: str = ""
    port_name: str = ""
    frontend: str = ""
    kind: str = ""
    route: Route | None = None
    path: tuple[Step, ...] = ()
    endpoints: tuple[Target, ...] = ()
    left_out: tuple[Omitted, ...] = ()
    affinity_seconds: int = 0
    notes: tuple[str, ...] = ()
    written: Written | None = None
    verified: Verified | None = None


class Place(CamelStruct, frozen=True):
    """One of a Service's frontends: what becomes of connections to it, in words, and of whom."""

    frontend: str
    kind: str
    verdict: Verdict
    how: str
    route: Route | None = None
    sources: tuple[str, ...] | None = None


class Listed(CamelStruct, frozen=True):
    """An endpoint of a list, each of which has the same chance."""

    address: str
    port: int
    node: str | None = None


class PortExplanation(CamelStruct, frozen=True):
    """One port of a Service: its frontends, and the lists that they speak of with what is left out of each.

    ``local`` is the list for whoever must stay on this node; a list that no frontend uses is empty, and so is the rest.
    """

    name: str
    protocol: str
    port: int
    places: tuple[Place, ...]
    cluster: tuple[Listed, ...] = ()
    cluster_left_out: tuple[Omitted, ...] = ()
    local: tuple[Listed, ...] = ()
    local_left_out: tuple[Omitted, ...] = ()
    affinity_seconds: int = 0


class ServiceExplanation(CamelStruct, frozen=True):
    """One Service in one family. ``packets`` has an answer for each frontend where a source was given."""

    service: str
    mode: str
    family: Family
    verdict: Verdict
    reason: str
    ports: tuple[PortExplanation, ...] = ()
    packets: tuple[Explanation, ...] = ()
    notes: tuple[str, ...] = ()


class Answer(CamelStruct, frozen=True):
    """Everything that was answered: one packet, or one Service in each of its families. ``verdict`` sums it up.

    ``notes`` say what to know about all of it.
    """

    verdict: Verdict
    packet: Explanation | None = None
    services: tuple[ServiceExplanation, ...] = ()
    notes: tuple[str, ...] = ()


# Exit statuses of ``proxyd explain``.
STATUS = {
    Verdict.DELIVERED: 0,
    Verdict.PARTLY: 1,
    Verdict.REJECTED: 1,
    Verdict.DROPPED: 1,
    Verdict.UNSERVED: 1,
    Verdict.UNTOUCHED: 3,
}

# With --verify: the kernel's rules are not what they should be.
DIFFERS = 5


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """One verdict for several; ``untouched`` for none."""
    found = set(verdicts)
    if len(found) < 2:
        return next(iter(found), Verdict.UNTOUCHED)
    return Verdict.PARTLY
