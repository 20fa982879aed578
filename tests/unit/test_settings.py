"""Node settings: node ports' addresses, the node's own address, and how local pods are told."""

from typing import Any

import pytest

from proxyd.desired.settings import NodePolicy, node_settings, relevant_addresses
from proxyd.model import Family, LocalDetector, Node, NodeSettings
from tests.build import NODE, node

V4, V6 = Family.IPV4, Family.IPV6
# The host's addresses, the default route's first.
HOST = (
    (V4, "192.0.2.11"),
    (V6, "2001:db8:2::11"),
    (V4, "10.0.0.11"),
    (V4, "10.0.0.12"),
    (V6, "fd00:1::11"),
)
ANY = "every local address"


def made(family: Family = V4, on: Node | None = None, host: Any = HOST, **policy: Any) -> NodeSettings:
    return node_settings(family, NodePolicy(NODE, **policy), on, host)


def test_everything_of_the_policy_and_the_node() -> None:
    expected = NodeSettings(
        V4,
        NODE,
        zone="za",
        node_ip="192.0.2.11",
        node_port_addresses=("192.0.2.11",),
        local=LocalDetector(cidr="10.244.0.0/16"),
        masquerade_all=True,
        masquerade_mark=0x8000,
    )
    policy: dict[str, Any] = {"masquerade_all": True, "masquerade_mark": 0x8000, "cluster_cidrs": {V4: "10.244.0.0/16"}}
    assert made(on=node(), **policy) == expected


class TestNodePortAddresses:
    @pytest.mark.parametrize(
        ("configured", "v4", "v6"),
        [
            ((), ANY, ANY),
            (("all",), ANY, ANY),
            (("primary",), ["192.0.2.11"], ["2001:db8:2::11"]),
            (("localhost",), [], []),  # loopback never takes node ports in nftables mode
            (("primary", "localhost"), ["192.0.2.11"], ["2001:db8:2::11"]),
            (("primary", "all"), ANY, ANY),
            (("10.0.0.0/24",), ["10.0.0.11", "10.0.0.12"], ANY),
            (("fd00::/8",), ANY, ["fd00:1::11"]),
            (("10.0.0.0/24", "fd00::/8"), ["10.0.0.11", "10.0.0.12"], ["fd00:1::11"]),
            (("10.0.0.11/32", "10.0.0.0/24", "10.0.0.11/32"), ["10.0.0.11", "10.0.0.12"], ANY),
            (("primary", "10.0.0.12/32"), ["192.0.2.11", "10.0.0.12"], ["2001:db8:2::11"]),
            (("10.0.0.12/32", "primary", "192.0.2.0/24"), ["192.0.2.11", "10.0.0.12"], ["2001:db8:2::11"]),
            (("10.0.0.12/32", "all"), ANY, ANY),
            (("localhost", "10.0.0.12/32"), ["10.0.0.12"], []),
            (("172.16.0.0/12",), [], ANY),
            (("0.0.0.0/0",), ANY, ANY),
            (("0.0.0.0/0", "fd00::/8"), ANY, ["fd00:1::11"]),
            (("::/0", "10.0.0.11/32"), ["10.0.0.11"], ANY),
            (("10.0.0.0/24", "::/0"), ["10.0.0.11", "10.0.0.12"], ANY),
        ],
        ids=str,
    )
    def test_keywords_and_ranges_for_each_family(self, configured: tuple[str, ...], v4: Any, v6: Any) -> None:
        for family, expected in ((V4, v4), (V6, v6)):
            found = made(family, node(), node_port_addresses=configured).node_port_addresses
            assert (ANY if found is None else list(found)) == expected

    @pytest.mark.parametrize(
        ("configured", "v4", "v6"),
        [
            ((), False, False),
            (("primary",), False, False),
            (("all",), False, False),
            (("0.0.0.0/0", "::/0"), False, False),
            (("126.0.0.0/7", "::/127"), False, False),  # they only contain it
            (("localhost",), True, True),
            (("primary", "localhost"), True, True),
            (("all", "localhost"), True, True),
            (("127.0.0.0/8",), True, False),
            (("127.0.0.1/32", "10.0.0.0/24"), True, False),
            (("0.0.0.0/0", "127.0.0.0/8"), True, False),
            (("::1/128",), False, True),
            (("::1/128", "127.0.0.5/32", "primary"), True, True),
        ],
        ids=str,
    )
    def test_loopback_takes_node_ports_where_it_is_named(self, configured: tuple[str, ...], v4: bool, v6: bool) -> None:
        found = [made(family, node(), node_port_addresses=configured).localhost_node_ports for family in (V4, V6)]
        assert found == [v4, v6]
        off = {"node_port_addresses": configured, "localhost_node_ports": False}
        assert not made(V4, node(), **off).localhost_node_ports

    def test_primary_without_an_address_of_the_family_is_none_at_all(self) -> None:
        found = made(V6, node(addresses=("192.0.2.11",)), host=HOST[:1])
        assert (found.node_port_addresses, found.node_ip) == ((), "")

    def test_primary_is_the_node_object_s_address_and_not_the_host_s(self) -> None:
        assert made(on=node(addresses=("198.51.100.1",))).node_port_addresses == ("198.51.100.1",)


class TestNodeAddress:
    def test_the_first_of_the_family_in_the_node_object(self) -> None:
        on = node(addresses=("2001:db8::1", "192.0.2.1", "192.0.2.2", "2001:db8::2"))
        assert (made(V4, on).node_ip, made(V6, on).node_ip) == ("192.0.2.1", "2001:db8::1")

    def test_the_bind_address_comes_first_in_its_family(self) -> None:
        assert made(V4, node(), bind_address="192.0.2.77").node_ip == "192.0.2.77"
        assert made(V6, node(), bind_address="192.0.2.77").node_ip == "2001:db8:2::11"
        assert made(V6, node(), bind_address="2001:db8::77").node_ip == "2001:db8::77"

    @pytest.mark.parametrize("unspecified", ["", "0.0.0.0", "::"])
    def test_an_unspecified_bind_address_is_none(self, unspecified: str) -> None:
        assert made(V4, node(), bind_address=unspecified).node_ip == "192.0.2.11"
        assert made(V6, node(), bind_address=unspecified).node_ip == "2001:db8:2::11"

    @pytest.mark.parametrize("on", [None, Node(NODE)])
    def test_without_one_in_a_node_object_it_is_the_default_route_s(self, on: Node | None) -> None:
        assert (made(V4, on).node_ip, made(V6, on).node_ip) == ("192.0.2.11", "2001:db8:2::11")
        assert made(V4, on).node_port_addresses == ("192.0.2.11",)

    def test_without_anything_it_is_unknown(self) -> None:
        found = made(host=())
        assert (found.node_ip, found.node_port_addresses, found.zone) == ("", (), "")


class TestDetector:
    CIDRS = pytest.mark.parametrize(("family", "cidr"), [(V4, "10.244.0.0/16"), (V6, "fd00:10:244::/48")])

    @CIDRS
    def test_cluster_cidr_of_each_family(self, family: Family, cidr: str) -> None:
        cidrs = {V4: "10.244.0.0/16", V6: "fd00:10:244::/48"}
        assert made(family, cluster_cidrs=cidrs).local == LocalDetector(cidr=cidr)
        assert made(family, cluster_cidrs={family: cidr}).local == LocalDetector(cidr=cidr)

    def test_a_family_without_a_cluster_cidr_has_none(self) -> None:
        assert made(V6, cluster_cidrs={V4: "10.244.0.0/16"}).local is None
        assert made(V4).local is None

    @pytest.mark.parametrize(
        ("cidrs", "v4", "v6"),
        [
            (("10.244.1.0/24", "fd00:10:244:1::/64"), "10.244.1.0/24", "fd00:10:244:1::/64"),
            (("fd00:10:244:1::/64", "10.244.1.0/24", "10.244.9.0/24"), "10.244.1.0/24", "fd00:10:244:1::/64"),
            (("10.244.1.7/24",), "10.244.1.0/24", ""),
            (("bogus", "10.244.1.0/24"), "10.244.1.0/24", ""),
            ((), "", ""),
        ],
        ids=str,
    )
    def test_node_cidr_of_each_family(self, cidrs: tuple[str, ...], v4: str, v6: str) -> None:
        for family, expected in ((V4, v4), (V6, v6)):
            found = made(family, node(pod_cidrs=cidrs), detect_local_mode="NodeCIDR").local
            assert found == (LocalDetector(cidr=expected) if expected else None)

    def test_node_cidr_without_a_node_has_none_and_ignores_the_cluster_cidr(self) -> None:
        assert made(detect_local_mode="NodeCIDR", cluster_cidrs={V4: "10.244.0.0/16"}).local is None

    @pytest.mark.parametrize("family", [V4, V6])
    def test_interfaces_are_the_same_for_both_families(self, family: Family) -> None:
        bridge = made(family, detect_local_mode="BridgeInterface", bridge_interface="cni0")
        assert bridge.local == LocalDetector(interface="cni0")
        prefix = made(family, detect_local_mode="InterfaceNamePrefix", interface_name_prefix="veth")
        assert prefix.local == LocalDetector(interface="veth*")

    def test_a_prefix_as_long_as_names_can_be_is_a_name(self) -> None:
        policy: dict[str, Any] = {"detect_local_mode": "InterfaceNamePrefix"}
        assert made(**policy, interface_name_prefix="v" * 14).local == LocalDetector(interface="v" * 14 + "*")
        assert made(**policy, interface_name_prefix="v" * 15).local == LocalDetector(interface="v" * 15)


class TestRelevantAddresses:
    @pytest.mark.parametrize(
        ("configured", "expected"),
        [
            (("primary",), HOST[:2]),
            ((), HOST[:2]),
            (("10.0.0.12/32",), (*HOST[:2], (V4, "10.0.0.12"))),
            (("primary", "10.0.0.0/8", "fd00::/8"), HOST),
            (("0.0.0.0/0",), (HOST[0], HOST[1], HOST[2], HOST[3])),
        ],
        ids=str,
    )
    def test_the_first_of_each_family_and_those_in_a_range(self, configured: tuple[str, ...], expected: Any) -> None:
        assert relevant_addresses(NodePolicy(NODE, node_port_addresses=configured), HOST) == expected

    @pytest.mark.parametrize(
        "configured", [("primary",), (), ("all",), ("10.0.0.0/24",), ("fd00::/8", "primary")], ids=str
    )
    @pytest.mark.parametrize("on", [None, node(), Node(NODE)], ids=["no node", "node", "node without addresses"])
    @pytest.mark.parametrize("family", [V4, V6])
    def test_no_other_can_make_a_difference(self, configured: tuple[str, ...], on: Node | None, family: Family) -> None:
        policy = NodePolicy(NODE, node_port_addresses=configured)
        relevant = relevant_addresses(policy, HOST)
        assert node_settings(family, policy, on, relevant) == node_settings(family, policy, on, HOST)
