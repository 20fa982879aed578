"""The chains that do not depend on Services: base chains, dispatch, checks and masquerading of one generation."""

from __future__ import annotations

from proxyd.model import Family, LocalDetector, NodeSettings
from proxyd.nft.layout import (
    ADDRESS_KEY,
    INVALID_DROPPED,
    LOCALHOST_REFUSE,
    LOCALHOST_REFUSED,
    LOCALHOST_REJECTED,
    NODE_PORT_KEY,
    TRANSLATED,
    TRANSLATED_SECONDS,
    Layout,
)
from proxyd.nft.objects import (
    Chain,
    Count,
    Drop,
    Element,
    Field,
    FlipMark,
    Goto,
    Hook,
    InSet,
    Jump,
    Key,
    Marked,
    Masquerade,
    Match,
    Reject,
    Rule,
    SetMark,
    Statement,
    UpdateSet,
    VerdictMap,
)

# Before destination NAT: the firewall must see the load balancer's address, not the endpoint's.
PRE_DNAT = -110
_NEW = Match(Field.CT_STATE, "new")
_LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1"}


def base_chains(layout: Layout) -> tuple[Chain, ...]:
    """The base chains: only jumps into the generation, so that replacing them switches all traffic at once.

    What has no endpoint is refused in input, forward and output and not in prerouting, where ``reject`` is not allowed
    on older kernels and where the short-circuits of externalTrafficPolicy Local are still to come.
    """

    def jumps(*names: str) -> tuple[Rule, ...]:
        return tuple((_NEW, Jump(layout.name(name))) for name in names)

    def hook(kind: str, where: str, priority: int) -> Hook:
        return Hook(kind, where, priority)

    # A segment that conntrack finds invalid is not new, and it is not translated either.
    invalid: tuple[Rule, ...] = ((Match(Field.CT_STATE, "invalid"), Jump(layout.name("invalid"))),)
    drop, note = (invalid, ("note-translated",)) if layout.drop_invalid else ((), ())
    services: tuple[Rule, ...] = ((Jump(layout.name("services")),),)
    ports, rest = ("no-endpoint-nodeports-check", "no-endpoints-check"), ("no-endpoints-check", "cluster-ips-check")
    return (
        Chain("filter-prerouting-pre-dnat", jumps("firewall"), hook("filter", "prerouting", PRE_DNAT)),
        Chain("filter-output-pre-dnat", jumps("firewall"), hook("filter", "output", PRE_DNAT)),
        Chain("filter-input", drop + jumps(*ports, *note), hook("filter", "input", 0)),
        Chain("filter-forward", drop + jumps(*rest, *note), hook("filter", "forward", 0)),
        Chain("filter-output", drop + jumps(*rest, *note), hook("filter", "output", 0)),
        Chain("nat-prerouting", services, hook("nat", "prerouting", -100)),
        Chain("nat-output", services, hook("nat", "output", -100)),
        Chain("nat-postrouting", ((Jump(layout.name("masquerading")),),), hook("nat", "postrouting", 100)),
    )


def generation_chains(layout: Layout, settings: NodeSettings) -> tuple[Chain, ...]:
    """The chains of a generation that all Services pass: dispatch, policies, checks, masquerading."""
    name, mark = layout.name, layout.mark
    in_cluster_ips = InSet((Field.DADDR,), name("cluster-ips"))
    node_ports = node_port_destination(layout, settings)
    frontend = (Field.DADDR, Field.L4PROTO, Field.DPORT)
    return (
        # TCP by a reset: Linux does not heed ICMPv6 while it sends the first segment, and so waits a second for nothing.
        Chain(name("reject"), ((Match(Field.L4PROTO, "tcp"), Reject(reset=True)), (Reject(),))),
        Chain(
            name("services"),
            (
                *cluster_ip_masquerading(layout, settings),
                (VerdictMap(ADDRESS_KEY, name("service-ips")),),
                (*node_ports, VerdictMap(NODE_PORT_KEY, name("service-nodeports"))),
            ),
        ),
        Chain(
            name("external-local"),
            _external_local(ADDRESS_KEY, name("external-cluster"), name("external-local-only"), settings),
        ),
        Chain(
            name("np-external-local"),
            _external_local(NODE_PORT_KEY, name("nodeport-cluster"), name("nodeport-local-only"), settings),
        ),
        Chain(
            name("firewall"),
            (
                (
                    InSet(frontend, name("firewall-ips")),
                    InSet((*frontend, Field.SADDR), name("firewall-sources"), negate=True),
                    Drop(),
                ),
            ),
        ),
        Chain(name("no-endpoints-check"), ((VerdictMap(ADDRESS_KEY, name("no-endpoints")),),)),
        Chain(
            name("no-endpoint-nodeports-check"),
            (
                (*node_ports, VerdictMap(NODE_PORT_KEY, name("no-endpoint-nodeports"))),
                *_localhost_check(layout, settings),
            ),
        ),
        Chain(name(LOCALHOST_REFUSE), _refuse_and_count()),
        Chain(name("cluster-ips-check"), ((in_cluster_ips, Goto(name("reject"))),)),
        *(invalid_segments(layout) if layout.drop_invalid else ()),
        Chain(
            name("masquerading"),
            (
                (Marked(mark), FlipMark(mark), Masquerade()),
                (
                    Match(Field.CT_STATUS, "dnat"),
                    InSet((Field.SADDR, Field.DADDR, Field.L4PROTO, Field.DPORT), name("hairpin")),
                    Masquerade(),
                ),
            ),
        ),
    )


def cluster_ip_masquerading(layout: Layout, settings: NodeSettings) -> tuple[Rule, ...]:
    """Which traffic to ClusterIPs gets its source replaced: all, what is not from local pods, or (no detector) none."""
    test = InSet((Field.DADDR,), layout.name("cluster-ips"))
    if settings.masquerade_all:
        return ((test, SetMark(settings.masquerade_mark)),)
    if settings.local is None:
        return ()
    return ((test, from_local_pods(settings.local, negate=True), SetMark(settings.masquerade_mark)),)


def from_local_pods(local: LocalDetector, *, negate: bool = False) -> Statement:
    """The local-traffic detector as a statement. In output there is no incoming interface: node traffic is not local."""
    if local.cidr:
        return Match(Field.SADDR, local.cidr, negate)
    # By name and not by index: the interface may come later, and only names can be a prefix.
    return Match(Field.IIFNAME, local.interface, negate)


def node_port_destination(layout: Layout, settings: NodeSettings) -> Rule:
    """The test for a destination that takes node ports; loopback never does by rules in this mode."""
    if settings.node_port_addresses is None:
        return (Match(Field.DADDR_TYPE, "local"), Match(Field.DADDR, _LOOPBACK[settings.family], negate=True))
    return (InSet((Field.DADDR,), layout.name("nodeport-ips")),)


def invalid_segments(layout: Layout) -> tuple[Chain, Chain]:
    """Keeps TCP segments that conntrack finds invalid from reaching anyone untranslated, where they are of a Service.

    An answer out of conntrack's window would reach the client with the endpoint's address, and the client would reset a
    connection that is in order. Such a segment belongs to no connection any more, so what was translated is remembered.
    """
    tcp = Match(Field.L4PROTO, "tcp")
    ends: tuple[Key, Key] = (Field.DADDR, Field.DPORT), (Field.ORIGINAL_DADDR, Field.ORIGINAL_DPORT)
    translated: Rule = (tcp, Match(Field.CT_STATUS, "dnat"))
    drop = Count(INVALID_DROPPED), Drop()
    return (
        Chain(
            layout.name("note-translated"),
            tuple((*translated, UpdateSet(TRANSLATED, e, TRANSLATED_SECONDS)) for e in ends),
        ),
        Chain(
            layout.name("invalid"),
            (
                (tcp, InSet((Field.SADDR, Field.SPORT), TRANSLATED), *drop),
                (tcp, InSet((Field.DADDR, Field.DPORT), TRANSLATED), *drop),
            ),
        ),
    )


def _localhost_check(layout: Layout, settings: NodeSettings) -> tuple[Rule, ...]:
    """Refuses node ports that are asked for on the loopback address where only TCP is served."""
    if not settings.localhost_node_ports:
        return ()
    loopback = Match(Field.DADDR, _LOOPBACK[settings.family])
    return ((loopback, VerdictMap(NODE_PORT_KEY, layout.name(LOCALHOST_REFUSED))),)


def _refuse_and_count() -> tuple[Rule, ...]:
    """One rule for each protocol, since each has a counter of its own."""
    return tuple((Match(Field.L4PROTO, each), Count(counter), Reject()) for each, counter in LOCALHOST_REJECTED.items())


def node_port_elements(layout: Layout, settings: NodeSettings) -> tuple[Element, ...]:
    """The addresses of this node that take node ports."""
    return tuple(Element(layout.name("nodeport-ips"), address) for address in settings.node_port_addresses or ())


def _external_local(key: Key, cluster: str, local: str, settings: NodeSettings) -> tuple[Rule, ...]:
    """externalTrafficPolicy Local: pods and the node may go anywhere, everyone else stays on this node."""
    pods: tuple[Rule, ...] = ((from_local_pods(settings.local), VerdictMap(key, cluster)),) if settings.local else ()
    return (
        *pods,
        (Match(Field.SADDR_TYPE, "local"), SetMark(settings.masquerade_mark), VerdictMap(key, cluster)),
        (VerdictMap(key, local),),
    )
