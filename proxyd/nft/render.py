"""Forwarding of one Service to nftables objects: elements, endpoint lists and, for ClientIP affinity, chains."""

from __future__ import annotations

import base64
import hashlib

import msgspec

from proxyd.desired.comments import fits_comments
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding, Route
from proxyd.desired.localhost import refused
from proxyd.nft.layout import AFFINITY, LOCAL_BASE, LOCALHOST_REFUSE, LOCALHOST_REFUSED, Layout
from proxyd.nft.objects import (
    Chain,
    Chance,
    Dnat,
    Element,
    Field,
    InSet,
    Key,
    Random,
    Rule,
    UpdateSet,
)


class EndpointList(msgspec.Struct, frozen=True, gc=False):
    """The endpoints of one frontend (values of a map); which index each has is the delta stage's business."""

    container: str
    frontend: str
    base: int
    backends: tuple[str, ...]


class ServiceObjects(msgspec.Struct, frozen=True, gc=False):
    """All objects of one Service. ``shared`` elements and ``chains`` may belong to several Services at once."""

    elements: tuple[Element, ...] = ()
    shared: tuple[Element, ...] = ()
    lists: tuple[EndpointList, ...] = ()
    chains: tuple[Chain, ...] = ()


def render_service(forwarding: Forwarding, layout: Layout) -> ServiceObjects:
    """Makes the objects of one Service in one generation."""
    into = _Objects(layout)
    for port in forwarding.ports:
        _render_port(port, layout, into)
    for frontend, owner in refused(forwarding):
        into.verdict(LOCALHOST_REFUSED, frontend_text(frontend), layout.name(LOCALHOST_REFUSE), comment_text(owner))
    if forwarding.ports:
        into.shared[Element(layout.name("cluster-ips"), forwarding.cluster_ip)] = None
    return ServiceObjects(tuple(into.elements), tuple(into.shared), tuple(into.lists), tuple(into.chains.values()))


class _Objects:
    """What is being collected for one Service."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.elements: list[Element] = []
        self.shared: dict[Element, None] = {}
        self.lists: list[EndpointList] = []
        self.chains: dict[str, Chain] = {}

    def verdict(self, container: str, key: str, chain: str, comment: str = "") -> None:
        self.elements.append(Element(self.layout.name(container), key, f"goto {chain}", comment))

    def use(self, chain: Chain) -> Chain:
        """Notes that the Service needs a chain."""
        return self.chains.setdefault(chain.name, chain)


class _Target:
    """One endpoint list of a ServicePort, as frontends reach it. ``second``: beside another list of the same frontend."""

    def __init__(
        self, port: PortForwarding, layout: Layout, into: _Objects, *, local: bool, second: bool = False
    ) -> None:
        self.layout, self.into, self.second = layout, into, second
        backends = port.local if local else port.cluster
        self.values = tuple(f"{b.address} . {b.port}" for b in backends)
        self.affinity = _affinity_chain(port, layout, backends, local=local) if port.affinity_seconds else None

    def chain(self, frontend: Frontend, *, masquerade: bool = False) -> str:
        """Makes this list reachable through a frontend; gives the name of the chain to go to."""
        node_port = not frontend.key.address
        if self.affinity is not None:
            chain = self.affinity
        else:
            address, protocol, port = frontend.key
            container = self.layout.endpoints(protocol, node_port=node_port)
            place = f"{address} . {port}" if address else str(port)
            base = LOCAL_BASE if self.second else 0
            self.into.lists.append(EndpointList(container, place, base, self.values))
            chain = self.layout.balancer(protocol, len(self.values), node_port=node_port, local=self.second)
        self.into.use(chain)
        if masquerade:
            chain = self.into.use(self.layout.masquerading(chain))
        return chain.name


def _render_port(port: PortForwarding, layout: Layout, into: _Objects) -> None:
    comment = comment_text(port.name)
    # Both lists of an internally local, externally reachable ServicePort belong to different frontends, so each can
    # take the first indexes; only a frontend that has both needs the second ones.
    cluster = _Target(port, layout, into, local=False)
    only_local = _Target(port, layout, into, local=True)
    second = _Target(port, layout, into, local=True, second=True)
    for frontend in port.frontends:
        _render_frontend(frontend, comment, (cluster, only_local, second), into)
    if port.cluster or port.local:
        hairpin = layout.name("hairpin")
        for b in port.beside:
            into.shared[Element(hairpin, f"{b.address} . {b.address} . {port.protocol} . {b.port}")] = None


def _render_frontend(
    frontend: Frontend, comment: str, targets: tuple[_Target, _Target, _Target], into: _Objects
) -> None:
    cluster, only_local, second = targets
    node_port = not frontend.key.address
    key = frontend_text(frontend)
    dispatch = "service-nodeports" if node_port else "service-ips"
    policy = "nodeport" if node_port else "external"
    missing = into.layout.name("no-endpoint-nodeports" if node_port else "no-endpoints")
    match frontend.route:
        case Route.CLUSTER:
            into.verdict(dispatch, key, cluster.chain(frontend), comment)
        case Route.LOCAL:
            into.verdict(dispatch, key, only_local.chain(frontend), comment)
        case Route.EXTERNAL:
            chain = cluster.chain(frontend, masquerade=True)
            into.verdict(dispatch, key, chain, comment)
            # For packets on their way through "external-local" at the moment when the policy changes from Local.
            into.verdict(f"{policy}-local-only", key, chain)
        case Route.EXTERNAL_LOCAL | Route.EXTERNAL_NO_LOCAL:
            common = into.layout.name("np-external-local" if node_port else "external-local")
            into.verdict(dispatch, key, common, comment)
            into.verdict(f"{policy}-cluster", key, cluster.chain(frontend))
            if frontend.route is Route.EXTERNAL_LOCAL:
                into.verdict(f"{policy}-local-only", key, second.chain(frontend))
            else:
                into.elements.append(Element(missing, key, "drop", comment))
        case Route.REJECT:
            into.elements.append(Element(missing, key, f"goto {into.layout.name('reject')}", comment))
        case Route.DROP:
            into.elements.append(Element(missing, key, "drop", comment))
    if frontend.sources is not None:
        into.elements.append(Element(into.layout.name("firewall-ips"), key))
        sources = into.layout.name("firewall-sources")
        into.elements.extend(Element(sources, f"{key} . {source}") for source in frontend.sources)


def frontend_text(frontend: Frontend) -> str:
    """A frontend as a key of maps."""
    address, protocol, port = frontend.key
    return f"{address} . {protocol} . {port}" if address else f"{protocol} . {port}"


def comment_text(name: str) -> str:
    """A name as a comment: cut to nft's 128 bytes, and left out where it holds anything that names cannot hold."""
    return name[:128] if fits_comments(name) else ""


def service_port_id(port: PortForwarding) -> str:
    """A short name for a ServicePort, fit for a chain name, the same on every node and after every restart."""
    digest = hashlib.sha256(f"{port.name}/{port.protocol}".encode()).digest()
    return base64.b32encode(digest).decode()[:16]


def pin_id(port: PortForwarding, backend: Backend) -> int:
    """The number that stands for (ServicePort, endpoint) in the affinity set: 32 bits, the same after a restart.

    Two that share a number cost one client its random first choice, nothing else.
    """
    text = f"{port.name}/{port.protocol}/{backend.address}/{backend.port}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def _affinity_chain(port: PortForwarding, layout: Layout, backends: tuple[Backend, ...], *, local: bool) -> Chain:
    """ClientIP affinity: first the client's pin, then a random choice that makes one, then one for when the set is full.

    Rules, since a choice has to be written into the set in the same step; the set is shared by all Services and outlives
    every change and restart.
    """
    pins = [(b, (Field.SADDR, Random(1, pin_id(port, b)))) for b in sorted(backends)]
    known: list[Rule] = [(InSet(key, AFFINITY), *_pinned(port, b, key)) for b, key in pins]
    choice: list[Rule] = [(*_one_of(len(pins) - i), *_pinned(port, b, key)) for i, (b, key) in enumerate(pins)]
    full: list[Rule] = [(*_one_of(len(pins) - i), _dnat(port, b)) for i, (b, _) in enumerate(pins)]
    name = f"{'local-' if local else ''}affinity-{service_port_id(port)}"
    return Chain(layout.name(name), (*known, *choice, *full), comment=comment_text(port.name))


def _pinned(port: PortForwarding, backend: Backend, key: Key) -> tuple[UpdateSet, Dnat]:
    return UpdateSet(AFFINITY, key, port.affinity_seconds), _dnat(port, backend)


def _dnat(port: PortForwarding, backend: Backend) -> Dnat:
    return Dnat(port.protocol, backend.address, backend.port)


def _one_of(count: int) -> Rule:
    return (Chance(count),) if count > 1 else ()
