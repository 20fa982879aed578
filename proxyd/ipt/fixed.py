"""The rules that belong to no Service: jumps from the built-in chains, masquerading, forwarding, node port dispatch.

Source: pkg/proxy/iptables/proxier.go. Chains, rules and comments are kube-proxy's, one by one.
"""

from __future__ import annotations

from proxyd.ipt import names
from proxyd.ipt.objects import ACCEPT, DROP, MARK, MASQUERADE, NEW, RETURN, Chain, Placed, Rule, Table
from proxyd.ipt.render import LOOPBACK, host
from proxyd.ipt.style import INVALID_DROPPED, Style
from proxyd.model import Family, NodeSettings

NAT, FILTER, MANGLE = Table.NAT, Table.FILTER, Table.MANGLE
_PORTALS = "kubernetes service portals"
_VISIBLE = "kubernetes externally-visible service portals"
_BALANCERS = "kubernetes load balancer firewall"
_NODE_PORTS_LAST = "kubernetes service nodeports; NOTE: this must be the last rule in this chain"

# In the order in which each is put first, so in each built-in chain the last of these comes first.
JUMPS = (
    Placed(FILTER, "INPUT", Rule(names.EXTERNAL_SERVICES, _VISIBLE, states=NEW)),
    Placed(FILTER, "FORWARD", Rule(names.EXTERNAL_SERVICES, _VISIBLE, states=NEW)),
    Placed(FILTER, "INPUT", Rule(names.NODE_PORTS, "kubernetes health check service ports")),
    Placed(FILTER, "FORWARD", Rule(names.SERVICES, _PORTALS, states=NEW)),
    Placed(FILTER, "OUTPUT", Rule(names.SERVICES, _PORTALS, states=NEW)),
    Placed(FILTER, "FORWARD", Rule(names.FORWARD, "kubernetes forwarding rules")),
    Placed(FILTER, "INPUT", Rule(names.PROXY_FIREWALL, _BALANCERS, states=NEW)),
    Placed(FILTER, "OUTPUT", Rule(names.PROXY_FIREWALL, _BALANCERS, states=NEW)),
    Placed(FILTER, "FORWARD", Rule(names.PROXY_FIREWALL, _BALANCERS, states=NEW)),
    Placed(NAT, "OUTPUT", Rule(names.SERVICES, _PORTALS)),
    Placed(NAT, "PREROUTING", Rule(names.SERVICES, _PORTALS)),
    Placed(NAT, "POSTROUTING", Rule(names.POSTROUTING, "kubernetes postrouting rules")),
)
# kubelet makes the same ones: they stay when ours go.
SHARED_JUMPS = (
    Placed(FILTER, "INPUT", Rule(names.FIREWALL)),
    Placed(FILTER, "OUTPUT", Rule(names.FIREWALL)),
)
# Chains that Services have single rules in; their other rules are ours too.
DISPATCH = (
    (NAT, names.SERVICES),
    (NAT, names.NODE_PORTS),
    (FILTER, names.SERVICES),
    (FILTER, names.EXTERNAL_SERVICES),
    (FILTER, names.NODE_PORTS),
    (FILTER, names.PROXY_FIREWALL),
)
CANARIES = tuple(Chain(table, names.CANARY) for table in Table)


def fixed_chains(settings: NodeSettings, style: Style) -> tuple[Chain, ...]:
    """The chains of ours without a rule of any Service, whole."""
    mark = settings.masquerade_mark
    chains = [
        Chain(NAT, names.MARK_MASQ, (Rule(MARK, set_mark=mark),)),
        Chain(
            NAT,
            names.POSTROUTING,
            (
                Rule(RETURN, unmarked=mark),
                Rule(MARK, flip_mark=mark),
                Rule(MASQUERADE, "kubernetes service traffic requiring SNAT", random_ports=style.random_ports),
            ),
        ),
        Chain(FILTER, names.FORWARD, _forward(mark, style)),
    ]
    if style.localhost_node_ports and settings.family is Family.IPV4:
        # route_localnet lets neighbours send to 127.0.0.0/8; kubelet has the same rule, so it must not differ.
        guard = Rule(
            DROP,
            "block incoming localnet connections",
            source=f"!{LOOPBACK}",
            destination=LOOPBACK,
            states="!RELATED,ESTABLISHED,DNAT",
        )
        chains.append(Chain(FILTER, names.FIREWALL, (guard,)))
    return tuple(chains)


def node_port_dispatch(settings: NodeSettings, style: Style) -> tuple[Rule, ...]:
    """The last rules of nat KUBE-SERVICES: which addresses take node ports."""
    ipv4 = settings.family is Family.IPV4
    if settings.node_port_addresses is not None:
        own = ("127.0.0.1",) if ipv4 and style.localhost_node_ports else ()
        return tuple(
            Rule(names.NODE_PORTS, _NODE_PORTS_LAST, destination=host(address))
            for address in (*settings.node_port_addresses, *own)
        )
    loopback = "" if ipv4 and style.localhost_node_ports else f"!{LOOPBACK}" if ipv4 else "!::1/128"
    return (Rule(names.NODE_PORTS, _NODE_PORTS_LAST, destination=loopback, destination_local=True),)


def _forward(mark: int, style: Style) -> tuple[Rule, ...]:
    invalid = Rule(DROP, states="INVALID", counter=style.counter(INVALID_DROPPED))
    return (
        *((invalid,) if style.drop_invalid else ()),
        Rule(ACCEPT, "kubernetes forwarding rules", marked=mark),
        Rule(ACCEPT, "kubernetes forwarding conntrack rule", states="RELATED,ESTABLISHED"),
    )
