"""What the kernel must hold for an answer to be true: what the modes' own renderers make of the frontend in question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.forwarding import Forwarding
from proxyd.explain.answer import ChainText, Element, EndpointSet, RuleText, Written
from proxyd.explain.ipt_rules import is_about
from proxyd.explain.view import Concerned, Entry, Packet, View
from proxyd.ipt.objects import Chain
from proxyd.ipt.render import render_service as ipt_service
from proxyd.ipt.saved import printed
from proxyd.ipt.style import Style
from proxyd.nft.layout import Layout
from proxyd.nft.objects import Chain as NftChain
from proxyd.nft.objects import Dnat
from proxyd.nft.render import render_service as nft_service

# Where a frontend may have an element, by whether it is a node port.
_CONTAINERS = {
    False: ("service-ips", "no-endpoints", "external-cluster", "external-local-only", "firewall-ips"),
    True: ("service-nodeports", "no-endpoint-nodeports", "nodeport-cluster", "nodeport-local-only"),
}


def written(view: View, packet: Packet, about: Concerned, entry: Entry | None) -> Written:
    """What the kernel must hold about a frontend, and in nftables mode also what it must not."""
    if view.mode == "iptables":
        return _ipt(view, entry) if entry is not None else Written()
    return _nft(view, packet, about, entry)


def _nft(view: View, packet: Packet, about: Concerned, entry: Entry | None) -> Written:
    layout = Layout(view.settings.family, 0, view.settings.masquerade_mark, view.settings.drop_invalid)
    own = FrontendKey(packet.destination, packet.protocol, packet.port)
    key = entry.frontend.key if entry is not None else own
    place = " . ".join(str(part) for part in key if part)
    wanted: dict[str, Element] = {}
    others: list[Element] = []
    lists: list[EndpointSet] = []
    if entry is not None:
        made = nft_service(_only(entry), layout)
        for each in (*made.elements, *made.shared):
            container, value = (text.replace(layout.name(""), "") for text in (each.container, each.value))
            if each.key == place and container in _CONTAINERS[not key.address]:
                wanted[container] = Element(container, place, value)
            else:
                others.append(Element(container, each.key, value))
        lists = [
            EndpointSet(each.container.replace(layout.name(""), ""), key, each.base, each.backends)
            for each in made.lists
        ]
        lists += _affinity(made.chains, layout, key)
    elements = [wanted.get(each) or Element(each, place, None) for each in _CONTAINERS[not key.address]]
    if entry is None and packet.destination not in about.cluster_ips:
        others.append(Element("cluster-ips", packet.destination, None))
    return Written((*elements, *others), tuple(lists))


def _affinity(chains: Iterable[NftChain], layout: Layout, key: FrontendKey) -> Iterator[EndpointSet]:
    """With ClientIP affinity the endpoints are in rules."""
    for chain in chains:
        found = {
            f"{each.address} . {each.port}": None for rule in chain.rules for each in rule if isinstance(each, Dnat)
        }
        if found:
            yield EndpointSet(f"chain {chain.name.replace(layout.name(''), '')}", key, 0, tuple(found))


def _only(entry: Entry) -> Forwarding:
    """The forwarding of this frontend alone."""
    return replace(entry.forwarding, ports=(replace(entry.port, frontends=(entry.frontend,)),))


def _ipt(view: View, entry: Entry) -> Written:
    """The chains of the frontend's port; which kind of comments they have depends on how many endpoints there are."""
    style = Style(localhost_node_ports=view.localhost)
    port = replace(entry.forwarding, ports=(entry.port,))
    with_comments, without = (
        ipt_service(port, view.settings, replace(style, comments=comments)) for comments in (True, False)
    )
    family = view.settings.family
    dispatch = tuple(
        RuleText(each.table, each.chain, printed(each.rule, family).strip())
        for each in with_comments.dispatch
        if is_about(each, entry)
    )
    chains = tuple(
        ChainText(one.table, one.name, _rules(view, one), _rules(view, two))
        for one, two in zip(with_comments.chains, without.chains, strict=True)
    )
    return Written(dispatch=dispatch, chains=chains)


def _rules(view: View, chain: Chain) -> tuple[str, ...]:
    return tuple(printed(rule, view.settings.family).strip() for rule in chain.rules)
