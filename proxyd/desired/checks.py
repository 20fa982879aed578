"""Whether configuration, Node and host agree about address families: what can be told of it before traffic suffers.

Source: cmd/kube-proxy/app/server.go, checkBadConfig and checkBadIPConfig; there some of these end the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from proxyd.addresses import canonical, canonical_range
from proxyd.desired.settings import NodePolicy
from proxyd.model import Family, Node

_KEYWORDS = frozenset({"primary", "localhost", "all"})
_UNSPECIFIED = ("", "0.0.0.0", "::")  # noqa: S104 - an address in a configuration, nothing is bound


class Mismatch(NamedTuple):
    """One thing that does not fit, beginning with its field. ``hopeless``: nothing useful can come of it on this host."""

    message: str
    hopeless: bool = False


def check_families(
    policy: NodePolicy, servers: Mapping[str, str], supported: Sequence[Family], node: Node | None
) -> tuple[Mismatch, ...]:
    """Gives all mismatches that can be told from what is known (``node`` is None while there is none).

    ``servers`` has the hosts of the health and metrics servers by field; ``supported`` the families of this host.
    """
    primary = _primary_family(policy, supported, node)
    if primary is None:
        return ()
    return (
        *_unsupported(primary, supported),
        *_wrong_ranges(policy, primary, supported, node),
        *_wrong_servers(servers, primary, supported),
        *_half_open_node_ports(policy, primary, supported, node),
    )


def _primary_family(policy: NodePolicy, supported: Sequence[Family], node: Node | None) -> Family | None:
    """bindAddress before the Node's first address before the host's only family."""
    first = node.addresses[:1] if node else ()
    candidates = (*([] if policy.bind_address in _UNSPECIFIED else [policy.bind_address]), *first)
    found = next(filter(None, map(canonical, candidates)), None)
    return found[0] if found else supported[0] if len(supported) == 1 else None


def _unsupported(primary: Family, supported: Sequence[Family]) -> Iterator[Mismatch]:
    if primary not in supported:
        yield Mismatch(
            f"bindAddress: this node's first address is {primary}, which this host's kernel does not have", True
        )


def _wrong_ranges(
    policy: NodePolicy, primary: Family, supported: Sequence[Family], node: Node | None
) -> Iterator[Mismatch]:
    """Ranges of pods of the other family only: then no pod of the node's own family counts as local."""
    known = (
        ("clusterCIDR", "ClusterCIDR", frozenset(policy.cluster_cidrs)),
        ("the Node's spec.podCIDRs", "NodeCIDR", _families(node.pod_cidrs if node else ())),
    )
    for what, mode, families in known:
        if families and primary not in families and policy.detect_local_mode == mode:
            only = " and ".join(families)
            yield Mismatch(
                f"{what}: only {only}, while this node's first address is {primary}: no {primary} pod counts as local",
                hopeless=len(supported) == 1,
            )


def _wrong_servers(servers: Mapping[str, str], primary: Family, supported: Sequence[Family]) -> Iterator[Mismatch]:
    for field, host in servers.items():
        found = canonical(host)
        if found and len(supported) == 1 and found[0] is not primary:
            yield Mismatch(f"{field}: an {found[0]} address, on a host that has {primary} only")


def _half_open_node_ports(
    policy: NodePolicy, primary: Family, supported: Sequence[Family], node: Node | None
) -> Iterator[Mismatch]:
    """A family that no range of nodePortAddresses speaks of has its node ports on every local address."""
    covered = _families(policy.node_port_addresses)
    if len(supported) < 2 or len(covered) != 1 or _KEYWORDS.intersection(policy.node_port_addresses):
        return
    dual = (frozenset(policy.cluster_cidrs), _families(node.pod_cidrs if node else ()), _addresses(node))
    if any(len(families) == 2 for families in dual) or primary not in covered:
        (only,) = covered
        other = "they answer on every local address of the other family"
        yield Mismatch(f"nodePortAddresses: only the {only} node ports are restricted; {other}")


def _families(ranges: Iterable[str]) -> frozenset[Family]:
    return frozenset(found[0] for text in ranges if (found := canonical_range(text)))


def _addresses(node: Node | None) -> frozenset[Family]:
    return frozenset(found[0] for text in (node.addresses if node else ()) if (found := canonical(text)))
