"""Addresses and ranges as text: what is read, how it is written, what may stand in a rule."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st

from proxyd.addresses import (
    canonical,
    canonical_range,
    collapse,
    contains,
    is_usable_endpoint,
    is_usable_frontend,
)
from proxyd.model import Family

V4, V6 = Family.IPV4, Family.IPV6


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1", (V4, "10.0.0.1")),
        ("255.255.255.255", (V4, "255.255.255.255")),
        ("0.0.0.0", (V4, "0.0.0.0")),
        (" 10.0.0.1\n", (V4, "10.0.0.1")),
        ("10.010.1.7", (V4, "10.10.1.7")),  # iptables would read octal: 10.8.1.7
        ("10.008.1.1", (V4, "10.8.1.1")),
        ("10.180.00.001", (V4, "10.180.0.1")),
        ("0000000010.0.0.1", (V4, "10.0.0.1")),
        ("fd00::1", (V6, "fd00::1")),
        ("FD00:0:0::0001", (V6, "fd00::1")),
        ("\tfd00::1 ", (V6, "fd00::1")),
        ("::", (V6, "::")),
        ("2001:db8:0:0:1:0:0:1", (V6, "2001:db8::1:0:0:1")),
    ],
)
def test_an_address_is_written_canonically(text: str, expected: tuple[Family, str]) -> None:
    assert canonical(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "10.0.0",
        "10.0.0.0.1",
        "10.0.0.256",
        "10.0.0.-1",
        "10.0.0.0x1",
        "10.0.0.1/32",
        "10.0.0.1;",
        "00000000010.0.0.1",
        "167772161",
        "example.org",
        "None",
        "\u0661\u0660.0.0.1",  # digits, but not ours
        "10.0.0.1\n10.0.0.2",
        "fe80::1%eth0",
        "::ffff:10.0.0.1",
        "::ffff:a00:1",
        "fd00:::1",
        "fd00::g",
        "[fd00::1]",
        "fd00::1/64",
    ],
)
def test_what_is_no_plain_address_is_refused(text: str) -> None:
    assert canonical(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("198.51.100.0/24", (V4, "198.51.100.0/24")),
        (" 203.0.113.0/25", (V4, "203.0.113.0/25")),
        ("198.51.100.0/24 ", (V4, "198.51.100.0/24")),
        ("10.1.2.3/8", (V4, "10.0.0.0/8")),
        ("010.001.000.000/016", (V4, "10.1.0.0/16")),
        ("0.0.0.0/0", (V4, "0.0.0.0/0")),
        ("192.0.2.1/32", (V4, "192.0.2.1/32")),
        ("::/0", (V6, "::/0")),
        ("2001:DB8::5/32", (V6, "2001:db8::/32")),
        ("2001:db8::1/128", (V6, "2001:db8::1/128")),
    ],
)
def test_a_range_is_written_canonically(text: str, expected: tuple[Family, str]) -> None:
    assert canonical_range(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/255.0.0.0",
        "10.0.0.0/8/8",
        "10.0.0.0 /8 x",
        "10.0.0.0/\u0668",
        "10.0.0/8",
        "2001:db8::/129",
        "2001:db8::/1000",
        "fe80::%eth0/64",
        "::ffff:10.0.0.0/104",
        "everything/0",
    ],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    assert canonical_range(text) is None


@patiently(deadline=None)
@given(st.ip_addresses())
def test_canonical_text_stays_as_it_is(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    found = canonical(str(address))
    if isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped or address.scope_id):
        assert found is None
    else:
        assert found == (V4 if address.version == 4 else V6, str(address))


@patiently(deadline=None)
@given(st.text(max_size=40) | st.text("0123456789abcdefABCDEF.:/% ", max_size=40))
def test_no_text_raises_and_what_is_accepted_is_an_address_to_everyone_else_too(text: str) -> None:
    address, cidr = canonical(text), canonical_range(text)
    if address is not None:
        assert str(ipaddress.ip_address(address[1])) == address[1]
        assert canonical(address[1]) == address
    if cidr is not None:
        assert str(ipaddress.ip_network(cidr[1])) == cidr[1]
        assert canonical_range(cidr[1]) == cidr


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ((), ()),
        (("10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8"), ("10.0.0.0/8",)),
        (("10.0.0.0/8", "0.0.0.0/0"), ("0.0.0.0/0",)),
        (("10.128.0.0/9", "10.0.0.0/9"), ("10.0.0.0/8",)),
        (("192.0.2.0/24", "10.0.0.0/8"), ("10.0.0.0/8", "192.0.2.0/24")),
        (("2001:db8::/33", "2001:db8:8000::/33"), ("2001:db8::/32",)),
    ],
)
def test_ranges_are_merged_and_sorted(ranges: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert collapse(ranges) == expected


NETWORKS = st.builds(
    lambda address, length: str(ipaddress.ip_network((address, length), strict=False)),
    st.ip_addresses(v=4, network="10.0.0.0/12"),
    st.integers(8, 32),
)


@patiently(deadline=None)
@given(st.lists(NETWORKS, max_size=8), st.ip_addresses(v=4, network="10.0.0.0/12"))
def test_merging_ranges_changes_nothing_about_who_is_in(ranges: list[str], address: ipaddress.IPv4Address) -> None:
    merged = collapse(tuple(ranges))
    assert any(contains(r, str(address)) for r in merged) == any(contains(r, str(address)) for r in ranges)
    networks = [ipaddress.ip_network(r) for r in merged]
    assert not any(a.overlaps(b) for i, a in enumerate(networks) for b in networks[:i])


@pytest.mark.parametrize(
    ("cidr", "address", "expected"),
    [
        ("192.0.2.0/24", "192.0.2.255", True),
        ("192.0.2.0/24", "192.0.3.0", False),
        ("0.0.0.0/0", "192.0.2.1", True),
        ("2001:db8::/32", "2001:db8::1", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("::/0", "192.0.2.1", False),
    ],
)
def test_contains(cidr: str, address: str, expected: bool) -> None:
    assert contains(cidr, address) is expected


@pytest.mark.parametrize(
    ("family", "address", "endpoint", "frontend"),
    [
        (V4, "10.0.0.1", True, True),
        (V4, "0.0.0.1", True, True),
        (V4, "223.255.255.255", True, True),
        (V4, "240.0.0.1", True, True),
        (V4, "169.254.20.10", False, True),  # node-local DNS listens on such an address
        (V4, "169.25.4.1", True, True),
        (V4, "0.0.0.0", False, False),
        (V4, "127.0.0.1", False, False),
        (V4, "127.255.0.1", False, False),
        (V4, "224.0.0.1", False, False),
        (V4, "239.255.255.255", False, False),
        (V6, "fd00::1", True, True),
        (V6, "2001:db8::ff02", True, True),
        (V6, "fec0::1", True, True),
        (V6, "fe80::1", False, True),
        (V6, "febf::1", False, True),
        (V6, "::", False, False),
        (V6, "::1", False, False),
        (V6, "::2", True, True),
        (V6, "ff02::1", False, False),
    ],
)
def test_special_addresses_cannot_be_endpoints_or_frontends(
    family: Family, address: str, endpoint: bool, frontend: bool
) -> None:
    assert bool(is_usable_endpoint(family, address)) is endpoint
    assert bool(is_usable_frontend(family, address)) is frontend
