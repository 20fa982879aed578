"""Whether configuration, Node and host agree about address families."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from proxyd.desired.checks import check_families
from proxyd.desired.settings import NodePolicy
from proxyd.model import FAMILIES, Family, Node

V4, V6 = Family.IPV4, Family.IPV6
RANGES = {V4: "10.244.0.0/16", V6: "fd00:10:244::/48"}


def said(
    policy: NodePolicy,
    supported: Sequence[Family] = FAMILIES,
    node: Node | None = None,
    servers: dict[str, str] | None = None,
) -> list[tuple[str, bool]]:
    """The field that each mismatch begins with, and whether it is hopeless."""
    found = check_families(policy, servers or {}, supported, node)
    return [(each.message.partition(":")[0], each.hopeless) for each in found]


def node(*addresses: str, pods: tuple[str, ...] = ()) -> Node:
    return Node("n1", addresses, pod_cidrs=pods)


def policy(**fields: object) -> NodePolicy:
    return NodePolicy("n1", **fields)  # type: ignore[arg-type]


def test_what_fits_is_not_spoken_of() -> None:
    dual = node("192.0.2.1", "2001:db8::1", pods=tuple(RANGES.values()))
    assert said(policy(cluster_cidrs=RANGES), FAMILIES, dual) == []
    assert said(policy(cluster_cidrs=RANGES), (V4,), node("192.0.2.1")) == []
    assert said(policy(cluster_cidrs={V6: RANGES[V6]}), FAMILIES, node("2001:db8::1", "192.0.2.1")) == []
    assert said(policy(detect_local_mode="NodeCIDR"), FAMILIES, node("192.0.2.1")) == [], "not there yet"


@pytest.mark.parametrize(
    ("supported", "of_node", "bind", "expected"),
    [
        ((V4,), None, "0.0.0.0", [("clusterCIDR", True)]),
        ((V4,), "192.0.2.1", "", [("clusterCIDR", True)]),
        (FAMILIES, None, "", []),  # which family is the node's is not known yet
        (FAMILIES, "192.0.2.1", "", [("clusterCIDR", False)]),
        (FAMILIES, "2001:db8::1", "", []),
        (FAMILIES, "2001:db8::1", "192.0.2.1", [("clusterCIDR", False)]),
        (FAMILIES, None, "192.0.2.1", [("clusterCIDR", False)]),
        (FAMILIES, "192.0.2.1", "::", [("clusterCIDR", False)]),
    ],
)
def test_pod_ranges_of_the_other_family_only(
    supported: tuple[Family, ...], of_node: str | None, bind: str, expected: list[tuple[str, bool]]
) -> None:
    given = policy(cluster_cidrs={V6: RANGES[V6]}, bind_address=bind)
    assert said(given, supported, node(of_node) if of_node else None) == expected


def test_pod_ranges_count_in_their_own_mode_only() -> None:
    wrong = node("192.0.2.1", pods=(RANGES[V6],))
    assert said(policy(detect_local_mode="NodeCIDR", cluster_cidrs={V6: RANGES[V6]}), FAMILIES, wrong) == [
        ("the Node's spec.podCIDRs", False)
    ]
    assert said(policy(detect_local_mode="NodeCIDR"), (V4,), wrong) == [("the Node's spec.podCIDRs", True)]
    assert said(policy(cluster_cidrs=RANGES), FAMILIES, wrong) == []
    assert said(policy(detect_local_mode="BridgeInterface", cluster_cidrs={V6: RANGES[V6]}), FAMILIES, wrong) == []


def test_a_family_that_the_host_does_not_have() -> None:
    assert said(policy(), (V4,), node("2001:db8::1")) == [("bindAddress", True)]
    assert said(policy(bind_address="2001:db8::1"), (V4,), None) == [("bindAddress", True)]
    assert said(policy(bind_address="::"), (V4,), None) == []


def test_servers_of_a_family_that_the_host_does_not_have() -> None:
    servers = {"healthzBindAddress": "::", "metricsBindAddress": "127.0.0.1"}
    assert said(policy(), (V4,), None, servers) == [("healthzBindAddress", False)]
    assert said(policy(), FAMILIES, node("192.0.2.1"), servers) == []


@pytest.mark.parametrize(
    ("addresses", "fields", "of_node", "expected"),
    [
        (("192.0.2.0/24",), {"cluster_cidrs": RANGES}, node("192.0.2.1"), True),
        (("192.0.2.0/24",), {}, node("192.0.2.1", "2001:db8::1"), True),
        (("192.0.2.0/24",), {}, node("192.0.2.1", pods=tuple(RANGES.values())), True),
        (("192.0.2.0/24",), {}, node("192.0.2.1"), False),
        (("192.0.2.0/24",), {"cluster_cidrs": RANGES}, None, False),
        (("192.0.2.0/24",), {}, node("2001:db8::1"), True),
        (("192.0.2.0/24", "2001:db8::/32"), {"cluster_cidrs": RANGES}, node("192.0.2.1"), False),
        (("192.0.2.0/24", "primary"), {"cluster_cidrs": RANGES}, node("192.0.2.1"), False),
        (("primary",), {"cluster_cidrs": RANGES}, node("192.0.2.1"), False),
        ((), {"cluster_cidrs": RANGES}, node("192.0.2.1"), False),
    ],
)
def test_node_ports_that_are_restricted_in_one_family_only(
    addresses: tuple[str, ...], fields: dict[str, object], of_node: Node | None, expected: bool
) -> None:
    given = policy(node_port_addresses=addresses, **fields)
    assert said(given, FAMILIES, of_node) == ([("nodePortAddresses", False)] if expected else [])
