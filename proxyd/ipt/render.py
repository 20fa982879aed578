"""Forwarding of one Service to iptables rules: its own chains, and its rules in the dispatch chains.

Sources: pkg/proxy/iptables/proxier.go (the layout), the Service API.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from proxyd.desired.comments import fits_comments
from proxyd.desired.conflicts import Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding, Route
from proxyd.ipt import names
from proxyd.ipt.names import backend_text, chain_name, endpoint_chain
from proxyd.ipt.objects import ACCEPT, DNAT, DROP, EVERYBODY, REJECT, Chain, Placed, Recent, Rule, Table
from proxyd.ipt.style import LOCALHOST_ACCEPTED, Style
from proxyd.model import Family, LocalDetector, NodeSettings

LOOPBACK = "127.0.0.0/8"
# Bytes that the tools take.
_LONGEST_COMMENT = 255
# Routes with endpoints for somebody who comes from outside the node's pods.
_TRANSLATED = {Route.EXTERNAL, Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL}
_KINDS = {
    Kind.CLUSTER_IP: "cluster IP",
    Kind.EXTERNAL_IP: "external IP",
    Kind.LOAD_BALANCER: "loadbalancer IP",
}


class ServiceRules(msgspec.Struct, frozen=True):
    """All rules of one Service: chains that are its own, and single rules in chains that all Services share."""

    chains: tuple[Chain, ...] = ()
    dispatch: tuple[Placed, ...] = ()


def render_service(forwarding: Forwarding, settings: NodeSettings, style: Style) -> ServiceRules:
    """Makes the rules of one Service in one family."""
    chains: list[Chain] = []
    dispatch: list[Placed] = []
    for port in forwarding.ports:
        writer = _Port(port, forwarding, settings, style)
        chains.extend(writer.chains())
        dispatch.extend(writer.dispatch())
    dispatch.extend(_health_check(forwarding))
    return ServiceRules(tuple(chains), tuple(dispatch))


def render_dispatch(forwarding: Forwarding, settings: NodeSettings, style: Style) -> tuple[Placed, ...]:
    """Only the rules in chains that all Services share: a small part of the work."""
    ports = (_Port(port, forwarding, settings, style).dispatch() for port in forwarding.ports)
    return (*chain.from_iterable(ports), *_health_check(forwarding))


def chain_names(forwarding: Forwarding) -> Iterator[str]:
    """The names of the chains that a Service has of its own."""
    for port in forwarding.ports:
        frontends = [each for each in port.frontends if each.route in _TRANSLATED]
        if port.cluster:
            yield chain_name(names.SERVICE, port)
        if port.local:
            yield chain_name(names.LOCAL, port)
        if any(each.kind is not Kind.CLUSTER_IP for each in frontends):
            yield chain_name(names.EXTERNAL, port)
        if any(each.sources is not None for each in frontends):
            yield chain_name(names.SOURCES, port)
        for backend in dict.fromkeys(port.cluster + port.local):
            yield endpoint_chain(port, backend_text(backend))


def from_local_pods(rule: Rule, local: LocalDetector, *, negate: bool = False) -> Rule:
    """The rule, for packets of this node's pods only (or for all others)."""
    sign = "!" if negate else ""
    if local.cidr:
        return msgspec.structs.replace(rule, source=sign + local.cidr)
    return msgspec.structs.replace(rule, interface=sign + local.interface.replace("*", "+"))


def host(address: str) -> str:
    """The range of one address."""
    return f"{address}/{128 if ':' in address else 32}"


class _Port:
    """The rules of one ServicePort."""

    def __init__(self, port: PortForwarding, forwarding: Forwarding, settings: NodeSettings, style: Style) -> None:
        self.port, self.settings, self.style = port, settings, style
        self.named = fits_comments(port.name)
        self.cluster_ip = forwarding.cluster_ip
        self.addresses = tuple(
            frontend.key.address for frontend in port.frontends if frontend.kind is Kind.LOAD_BALANCER
        )

    # -- chains of its own

    def chains(self) -> Iterator[Chain]:
        port = self.port
        internal = next((f for f in port.frontends if f.kind is Kind.CLUSTER_IP), None)
        external = next((f for f in port.frontends if f.kind is not Kind.CLUSTER_IP), None)
        texts = {backend: backend_text(backend) for backend in dict.fromkeys(port.cluster + port.local)}
        chains = {text: endpoint_chain(port, text) for text in texts.values()}
        for prefix, backends, route in (
            (names.SERVICE, port.cluster, Route.CLUSTER),
            (names.LOCAL, port.local, Route.LOCAL),
        ):
            if backends:
                masquerading = self._cluster_ip_masquerading(internal, route)
                named = [(text, chains[text]) for text in sorted(texts[each] for each in backends)]
                yield self._balancing(prefix, named, masquerading)
        if external is not None and external.route in _TRANSLATED:
            yield Chain(Table.NAT, chain_name(names.EXTERNAL, port), tuple(self._external(external.route)))
        sources = next((f.sources for f in port.frontends if f.sources is not None and f.route in _TRANSLATED), None)
        if sources is not None:
            yield Chain(Table.NAT, chain_name(names.SOURCES, port), tuple(self._sources(sources)))
        for backend, text in texts.items():
            yield self._endpoint(backend, text, chains[text])

    def _balancing(self, prefix: str, named: Sequence[tuple[str, str]], first: Iterable[Rule]) -> Chain:
        """Chooses among endpoints, given as their texts and chains, in order; after these rules."""
        rules = list(first)
        if self.port.affinity_seconds:
            seconds = self.port.affinity_seconds
            rules += [Rule(chain, self._towards(text), recent=Recent(chain, seconds)) for text, chain in named]
        one_of = [*range(len(named), 1, -1), 0]
        rules += [
            Rule(chain, self._towards(text), one_of=each) for (text, chain), each in zip(named, one_of, strict=True)
        ]
        return Chain(Table.NAT, chain_name(prefix, self.port), tuple(rules))

    def _cluster_ip_masquerading(self, frontend: Frontend | None, route: Route) -> Iterator[Rule]:
        if frontend is None or frontend.route is not route:
            return
        rule = self._match(frontend, names.MARK_MASQ, self._comment(f"{self.port.name} cluster IP"))
        if self.settings.masquerade_all:
            yield rule
        elif self.settings.local is not None and self.settings.local.cidr not in EVERYBODY:
            yield from_local_pods(rule, self.settings.local, negate=True)

    def _external(self, route: Route) -> Iterator[Rule]:
        name = self.port.name
        service = chain_name(names.SERVICE, self.port)
        if route is Route.EXTERNAL:
            yield Rule(names.MARK_MASQ, self._comment(f"masquerade traffic for {name} external destinations"))
            yield Rule(service)
            return
        if self.settings.local is not None:
            rule = Rule(service, self._comment(f"pod traffic for {name} external destinations"))
            yield from_local_pods(rule, self.settings.local)
        masqueraded = self._comment(f"masquerade LOCAL traffic for {name} external destinations")
        yield Rule(names.MARK_MASQ, masqueraded, source_local=True)
        routed = self._comment(f"route LOCAL traffic for {name} external destinations")
        yield Rule(service, routed, source_local=True)
        if route is Route.EXTERNAL_LOCAL:
            yield Rule(chain_name(names.LOCAL, self.port))

    def _sources(self, sources: tuple[str, ...]) -> Iterator[Rule]:
        name, external = self.port.name, chain_name(names.EXTERNAL, self.port)
        for source in sources:
            yield Rule(external, self._comment(f"{name} loadbalancer IP"), source=source)
        yield Rule("", self._comment(f"other traffic to {name} will be dropped by {names.PROXY_FIREWALL}"))

    def _endpoint(self, backend: Backend, text: str, chain: str) -> Chain:
        comment = self._comment(self.port.name) if self.style.comments else ""
        recent = Recent(chain) if self.port.affinity_seconds else None
        return Chain(
            Table.NAT,
            chain,
            (
                Rule(names.MARK_MASQ, comment, source=host(backend.address)),
                Rule(DNAT, comment, protocol=self.port.protocol, recent=recent, to=text),
            ),
        )

    def _towards(self, backend: str) -> str:
        return self._comment(f"{self.port.name} -> {backend}") if self.style.comments else ""

    def _comment(self, text: str) -> str:
        """A text with the ServicePort's name in it, as a comment."""
        return text[:_LONGEST_COMMENT] if self.named else ""

    # -- rules in chains of all Services

    def dispatch(self) -> Iterator[Placed]:
        for frontend in self.port.frontends:
            if frontend.kind is Kind.NODE_PORT:
                yield from self._node_port(frontend)
            else:
                yield from self._address(frontend)

    def _address(self, frontend: Frontend) -> Iterator[Placed]:
        name, what = self.port.name, _KINDS[frontend.kind]
        refusing = names.SERVICES if frontend.kind is Kind.CLUSTER_IP else names.EXTERNAL_SERVICES
        target = self._target(frontend)
        if target:
            yield Placed(Table.NAT, names.SERVICES, self._match(frontend, target, self._comment(f"{name} {what}")))
        if frontend.sources is not None and target:
            text = self._comment(f"{name} traffic not accepted by {target}")
            yield Placed(Table.FILTER, names.PROXY_FIREWALL, self._match(frontend, DROP, text))
        yield from self._refusal(frontend, refusing)

    def _target(self, frontend: Frontend) -> str:
        """The chain of endpoints that a frontend leads to, "" where there is none."""
        match frontend.route:
            case Route.CLUSTER:
                return chain_name(names.SERVICE, self.port)
            case Route.LOCAL:
                return chain_name(names.LOCAL, self.port)
            case Route.REJECT | Route.DROP:
                return ""
        return chain_name(names.SOURCES if frontend.sources is not None else names.EXTERNAL, self.port)

    def _node_port(self, frontend: Frontend) -> Iterator[Placed]:
        rule = Rule(
            chain_name(names.EXTERNAL, self.port),
            self._comment(self.port.name),
            protocol=self.port.protocol,
            port=frontend.key.port,
        )
        if frontend.route in _TRANSLATED:
            yield Placed(Table.NAT, names.NODE_PORTS, rule)
            counter = self.style.counter(LOCALHOST_ACCEPTED)
            if counter and self.style.localhost_node_ports and self.settings.family is Family.IPV4:
                counted = msgspec.structs.replace(rule, destination=LOOPBACK, counter=counter)
                yield Placed(Table.NAT, names.NODE_PORTS, counted)
        yield from self._refusal(frontend, names.EXTERNAL_SERVICES)

    def _refusal(self, frontend: Frontend, chain: str) -> Iterator[Placed]:
        if frontend.route is Route.REJECT:
            text = self._comment(f"{self.port.name} has no endpoints")
            yield Placed(Table.FILTER, chain, self._match(frontend, REJECT, text))
        elif frontend.route in (Route.DROP, Route.EXTERNAL_NO_LOCAL):
            text = self._comment(f"{self.port.name} has no local endpoints")
            yield Placed(Table.FILTER, chain, self._match(frontend, DROP, text))

    def _match(self, frontend: Frontend, target: str, comment: str) -> Rule:
        address, protocol, port = frontend.key
        return Rule(
            target,
            comment,
            protocol=protocol,
            destination=host(address) if address else "",
            destination_local=not address,
            port=port,
        )


def _health_check(forwarding: Forwarding) -> Iterator[Placed]:
    """Lets load balancers ask: one rule for each port of the Service, as kube-proxy has them."""
    if forwarding.health_check is None:
        return
    ports = [port.name for port in forwarding.ports] or [str(forwarding.key)]
    comments = (f"{name} health check node port"[:_LONGEST_COMMENT] if fits_comments(name) else "" for name in ports)
    for comment in dict.fromkeys(comments):  # two rules alike could not be told apart when one has to go
        rule = Rule(ACCEPT, comment, protocol="tcp", port=forwarding.health_check.port)
        yield Placed(Table.FILTER, names.NODE_PORTS, rule)
