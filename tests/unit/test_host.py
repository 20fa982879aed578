"""Which addresses of the host count, and in which order."""

from __future__ import annotations

import pytest

from proxyd.desired.host import local_addresses
from proxyd.model import Family, HostAddress, HostState

V4, V6 = Family.IPV4, Family.IPV6
ETH, VETH = 2, 7


def counted(*addresses: HostAddress, default: int = ETH) -> list[str]:
    return [address for _, address in local_addresses(HostState(addresses, {V4: default, V6: default}))]


@pytest.mark.parametrize(
    "address",
    [
        HostAddress(V4, "127.0.0.1", 1, "host"),
        HostAddress(V4, "127.0.0.5", 1, "global"),
        HostAddress(V6, "::1", 1, "host"),
        HostAddress(V6, "fe80::1", ETH, "link"),
        HostAddress(V6, "2001:db8::1", ETH, usable=False),
        HostAddress(V4, "192.0.2.1", ETH, usable=False),
        HostAddress(V6, "::ffff:192.0.2.1", ETH),
    ],
    ids=lambda each: f"{each.address} {each.scope}",
)
def test_addresses_at_which_nobody_is_served(address: HostAddress) -> None:
    assert counted(address) == []


def test_addresses_at_which_somebody_is() -> None:
    given = [
        HostAddress(V4, "192.0.2.1", 1, "global"),
        HostAddress(V4, "169.254.20.10", ETH, "link"),
        HostAddress(V6, "fec0::1", ETH, "site"),
        HostAddress(V6, "2001:db8::1", ETH, preferred=False),
    ]
    assert set(counted(*given)) == {each.address for each in given}


def test_the_order_is_default_route_then_scope_then_preference_then_the_kernels() -> None:
    assert counted(
        HostAddress(V4, "10.0.0.1", VETH),
        HostAddress(V6, "2001:db8::1", ETH, preferred=False),
        HostAddress(V4, "169.254.0.1", ETH, "link"),
        HostAddress(V6, "2001:db8::3", ETH),
        HostAddress(V6, "2001:db8::2", ETH),
        HostAddress(V6, "2001:db8::4", VETH),
    ) == ["2001:db8::3", "2001:db8::2", "2001:db8::1", "169.254.0.1", "10.0.0.1", "2001:db8::4"]


def test_each_family_has_a_default_route_of_its_own() -> None:
    state = HostState(
        (HostAddress(V4, "10.0.0.1", 2), HostAddress(V4, "10.0.0.2", 3), HostAddress(V6, "fd00::1", 2)), {V4: 3}
    )
    assert [address for _, address in local_addresses(state)] == ["10.0.0.2", "10.0.0.1", "fd00::1"]


def test_an_address_on_two_interfaces_is_one() -> None:
    assert counted(HostAddress(V4, "10.0.0.1", VETH), HostAddress(V4, "10.0.0.1", ETH)) == ["10.0.0.1"]
