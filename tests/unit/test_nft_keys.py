"""Keys of elements as the kernel has them: each reads back as the text that the element was added with."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyd.model import FAMILIES, Family
from proxyd.nft.keys import frontend_of, key_text
from proxyd.nft.layout import Layout, declared
from proxyd.nft.objects import Container, KeyType

V4, V6 = FAMILIES
A, P, N, PORT = KeyType.ADDRESS, KeyType.PROTOCOL, KeyType.NUMBER, KeyType.PORT
FRONTEND = Container("f", (A, P, PORT), ())
ENDPOINT = Container("e", (A, PORT, N), (A, PORT), protocol="tcp")
SOURCES = Container("s", (A, P, PORT, A), interval=True)


def hexed(text: str) -> bytes:
    return bytes.fromhex(text)


@pytest.mark.parametrize(
    ("container", "family", "first", "last", "text"),
    [
        # All of these came from a kernel (6.18, little-endian).
        (Container("c", (A,)), V4, "0a600909", None, "10.96.9.9"),
        (ENDPOINT, V4, "0a600001 00500000 01000000", None, "10.96.0.1 . 80 . 1"),
        (Container("n", (PORT, N), (A, PORT), protocol="tcp"), V4, "75800000 01000000", None, "30080 . 1"),
        (FRONTEND, V6, "20010db8000000000000000000000001 11000000 00350000", None, "2001:db8::1 . udp . 53"),
        (
            SOURCES,
            V4,
            "cb00710a 06000000 01bb0000 c6336400",
            "cb00710a 06000000 01bb0000 c63364ff",
            "203.0.113.10 . tcp . 443 . 198.51.100.0/24",
        ),
        # Protocols that we do not write have no name here.
        (FRONTEND, V4, "0a600001 2f000000 00000000", None, "10.96.0.1 . 47 . 0"),
    ],
)
def test_a_key_reads_as_it_was_added(
    container: Container, family: Family, first: str, last: str | None, text: str
) -> None:
    assert key_text(container, family, hexed(first), hexed(last) if last else None, "little") == text


@pytest.mark.parametrize(
    ("container", "first", "last"),
    [
        (FRONTEND, "0a600001 06000000", None),
        (FRONTEND, "0a600001 06000000 00500000 00000000", None),
        (FRONTEND, "0a600001 06000000 00500000", "0a600001 06000000 00510000"),
        (SOURCES, "cb00710a 06000000 01bb0000 c6336400", None),
        (SOURCES, "cb00710a 06000000 01bb0000 c6336400", "cb00710b 06000000 01bb0000 c63364ff"),
        (SOURCES, "cb00710a 06000000 01bb0000 c6336400", "cb00710a 06000000 01bb0000 c6336402"),
        (SOURCES, "cb00710a 06000000 01bb0000 c6336401", "cb00710a 06000000 01bb0000 c6336402"),
        (SOURCES, "cb00710a 06000000 01bb0000 c6336402", "cb00710a 06000000 01bb0000 c6336401"),
        (Container("c", (A,)), "", None),
    ],
)
def test_what_we_would_not_write_is_no_key(container: Container, first: str, last: str | None) -> None:
    assert key_text(container, V4, hexed(first), hexed(last) if last else None, "little") is None


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**32 - 1), st.sampled_from(["little", "big"]))
def test_any_key_of_an_endpoint_reads_back(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, index: int, order: str
) -> None:
    family = V4 if address.version == 4 else V6
    data = address.packed + port.to_bytes(2, "big") + bytes(2)
    data += index.to_bytes(4, "little" if order == "little" else "big")
    assert key_text(ENDPOINT, family, data, None, order) == f"{address} . {port} . {index}"


@given(st.ip_addresses(), st.integers(0, 128))
def test_any_range_of_sources_reads_back(address: ipaddress.IPv4Address | ipaddress.IPv6Address, length: int) -> None:
    network = ipaddress.ip_network((address, min(length, address.max_prefixlen)), strict=False)
    family = V4 if address.version == 4 else V6
    start = address.packed + hexed("06000000 01bb0000")
    first, last = (start + each.packed for each in (network[0], network[-1]))
    assert key_text(SOURCES, family, first, last, "little") == f"{address} . tcp . 443 . {network}"


@pytest.mark.parametrize(
    ("name", "key", "frontend"),
    [
        ("g7/service-ips", "10.96.0.1 . udp . 53", "10.96.0.1 . udp . 53"),
        ("g7/endpoints-udp", "10.96.0.1 . 53 . 2", "10.96.0.1 . udp . 53"),
        ("g7/nodeport-endpoints-tcp", "30080 . 65536", "tcp . 30080"),
        ("g7/nodeport-local-only", "tcp . 30080", "tcp . 30080"),
        ("g7/firewall-sources", "10.96.0.1 . tcp . 80 . 10.0.0.0/8", "10.96.0.1 . tcp . 80"),
        ("g7/cluster-ips", "10.96.0.1", ""),
    ],
)
def test_the_frontend_of_an_element(name: str, key: str, frontend: str) -> None:
    container = declared(name)
    assert container is not None
    assert frontend_of(container, key) == frontend


def test_every_container_of_a_generation_is_known_by_its_name_and_others_are_not() -> None:
    for each in Layout(V6, 12, 1).containers():
        known = declared(each.name)
        assert known is not None
        assert (known.key, known.value, known.interval, known.protocol) == (
            each.key,
            each.value,
            each.interval,
            each.protocol,
        )
    assert declared("theirs") is None
    assert declared("g1/theirs") is None
