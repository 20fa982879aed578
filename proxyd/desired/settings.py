"""What rules depend on beside Services: worked out from configuration, the Node object and the host's addresses."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from proxyd.addresses import canonical_range, contains, is_loopback_range
from proxyd.model import Family, LocalDetector, Node, NodeSettings

# Letters that the name of an interface may have (IFNAMSIZ, less its end).
LONGEST_INTERFACE = 15
PRIMARY, LOCALHOST, ALL = "primary", "localhost", "all"


class NodePolicy(msgspec.Struct, frozen=True):
    """The part of the configuration that decides about the node (KubeProxyConfiguration v1alpha1 field names).

    ``node_port_addresses`` holds keywords and canonical CIDRs; ``cluster_cidrs`` a CIDR for each family that has one.
    ``localhost_node_ports``: whether node ports may be served on the loopback address where the former asks for it.
    """

    node_name: str
    detect_local_mode: str = "ClusterCIDR"
    cluster_cidrs: dict[Family, str] = {}
    bridge_interface: str = ""
    interface_name_prefix: str = ""
    node_port_addresses: tuple[str, ...] = (PRIMARY,)
    bind_address: str = ""
    masquerade_all: bool = False
    masquerade_mark: int = 0x4000
    reset_gone_tcp: bool = False
    drop_invalid: bool = True
    localhost_node_ports: bool = True


def node_settings(
    family: Family, policy: NodePolicy, node: Node | None, local_addresses: Sequence[tuple[Family, str]]
) -> NodeSettings:
    """Settings of one family. ``local_addresses`` are the host's, the default route's first; they stand in for a Node."""
    own = _node_addresses(family, policy, node, local_addresses)
    return NodeSettings(
        family=family,
        node_name=policy.node_name,
        zone=node.zone if node else "",
        node_ip=own[0] if own else "",
        node_port_addresses=_node_port_addresses(family, policy, own, local_addresses),
        local=_detector(family, policy, node),
        masquerade_all=policy.masquerade_all,
        masquerade_mark=policy.masquerade_mark,
        reset_gone_tcp=policy.reset_gone_tcp,
        drop_invalid=policy.drop_invalid,
        localhost_node_ports=policy.localhost_node_ports and _asks_for_loopback(family, policy),
    )


def relevant_addresses(
    policy: NodePolicy, local_addresses: Sequence[tuple[Family, str]]
) -> tuple[tuple[Family, str], ...]:
    """Those of the host's addresses that ``node_settings`` can depend on, whatever the Node says; their order is kept.

    The first of each family, which stands in for a Node, and those in a range of nodePortAddresses. Pods may bring and
    take any number of others.
    """
    ranges = _ranges(policy)
    first = dict(reversed(local_addresses))
    return tuple(
        (family, address)
        for family, address in local_addresses
        if first[family] == address or any(each is family and contains(text, address) for each, text in ranges)
    )


def _node_addresses(
    family: Family, policy: NodePolicy, node: Node | None, local_addresses: Sequence[tuple[Family, str]]
) -> list[str]:
    """bindAddress before the Node's address before the default route's interface."""
    word = ":" if family is Family.IPV6 else "."
    bound = policy.bind_address if policy.bind_address not in ("", "0.0.0.0", "::") else ""  # noqa: S104
    listed = [bound, *(node.addresses if node else ())] if bound else list(node.addresses if node else ())
    own = [address for address in listed if word in address]
    return own[:1] or [address for each, address in local_addresses if each is family][:1]


def _node_port_addresses(
    family: Family, policy: NodePolicy, own: list[str], local_addresses: Sequence[tuple[Family, str]]
) -> tuple[str, ...] | None:
    """Addresses that take node ports, None for all. A family that no CIDR speaks of is not restricted (as upstream)."""
    keywords = [each for each in policy.node_port_addresses if "/" not in each]
    mine = [text for each, text in _ranges(policy) if each is family]
    if ALL in keywords or any(text.endswith("/0") for text in mine) or not (mine or keywords):
        return None
    chosen = dict.fromkeys(own if PRIMARY in keywords else ())
    inside = (a for each, a in local_addresses if each is family and any(contains(text, a) for text in mine))
    return tuple(chosen | dict.fromkeys(inside))


def _asks_for_loopback(family: Family, policy: NodePolicy) -> bool:
    """Whether loopback is named: a range that merely contains it does not count (as in kube-proxy 1.37)."""
    named = any(each is family and is_loopback_range(text) for each, text in _ranges(policy))
    return LOCALHOST in policy.node_port_addresses or named


def _ranges(policy: NodePolicy) -> list[tuple[Family, str]]:
    return [parsed for each in policy.node_port_addresses if (parsed := canonical_range(each))]


def _detector(family: Family, policy: NodePolicy, node: Node | None) -> LocalDetector | None:
    """How to tell packets of local pods (detectLocalMode); None where nothing is known for the family."""
    if policy.detect_local_mode == "BridgeInterface":
        return LocalDetector(interface=policy.bridge_interface)
    if policy.detect_local_mode == "InterfaceNamePrefix":
        prefix = policy.interface_name_prefix
        # No name goes on after its last possible letter, and neither tool takes a wildcard there.
        return LocalDetector(interface=prefix if len(prefix) >= LONGEST_INTERFACE else f"{prefix}*")
    if policy.detect_local_mode == "NodeCIDR":
        ranges = (canonical_range(each) for each in (node.pod_cidrs if node else ()))
        cidr = next((each[1] for each in ranges if each and each[0] is family), "")
    else:
        cidr = policy.cluster_cidrs.get(family, "")
    return LocalDetector(cidr=cidr) if cidr else None
