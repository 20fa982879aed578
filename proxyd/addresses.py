"""Addresses and ranges as text: read leniently where the API server once was lenient, always written canonically.

Rule text is built from these results only, so nothing else may reach the kernel as an address.
"""

from __future__ import annotations

import ipaddress
import re

from proxyd.model import Family

_V4 = re.compile(r"[0-9]{1,10}(?:\.[0-9]{1,10}){3}")
# Nearly all addresses are IPv4 and canonical already, and a big cluster has very many.
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_CANONICAL_V4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
_V4_LOOPBACK_OR_MULTICAST = re.compile(r"(?:127|22[4-9]|23[0-9])\.|0\.0\.0\.0$")
_V6_LINK_LOCAL = re.compile(r"fe[89ab][0-9a-f]:")
_V6_MULTICAST = re.compile(r"ff[0-9a-f]{2}:")


def canonical(text: str) -> tuple[Family, str] | None:
    """Gives (family, canonical text) of an IP address, or None where it is not one that a rule may hold.

    Blanks around it are cut and leading zeros of IPv4 octets are read as decimal (older API servers let both in, and
    iptables would read the zeros as octal). Zones (``fe80::1%eth0``) and IPv4-mapped IPv6 are refused.
    """
    if _CANONICAL_V4.fullmatch(text):
        return Family.IPV4, text
    text = text.strip()
    try:
        if _V4.fullmatch(text):
            octets = [int(part) for part in text.split(".")]
            if max(octets) > 255:
                return None
            return Family.IPV4, ".".join(map(str, octets))
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return None
    if address.scope_id is not None or address.ipv4_mapped is not None:
        return None
    return Family.IPV6, str(address)


def canonical_range(text: str) -> tuple[Family, str] | None:
    """Gives (family, canonical CIDR) of a range, host bits cut (``10.1.2.3/8`` is ``10.0.0.0/8``), or None."""
    base, slash, length = text.strip().partition("/")
    address = canonical(base)
    if not slash or address is None or not re.fullmatch(r"[0-9]{1,3}", length):
        return None
    try:
        return address[0], str(ipaddress.ip_network(f"{address[1]}/{int(length)}", strict=False))
    except ValueError:
        return None


def collapse(ranges: tuple[str, ...]) -> tuple[str, ...]:
    """Merges canonical ranges of one family so that none overlap (interval sets refuse overlaps), sorted."""
    networks = [ipaddress.ip_network(r) for r in ranges]
    return tuple(str(n) for n in ipaddress.collapse_addresses(networks))  # type: ignore[type-var]


def contains(cidr: str, address: str) -> bool:
    """Tells whether a canonical range holds a canonical address (of either family)."""
    network = ipaddress.ip_network(cidr)
    return ipaddress.ip_address(address) in network


def is_loopback(address: str) -> bool:
    """Whether a canonical address means the host itself, whatever its addresses are."""
    return address.startswith("127.") or address == "::1"


def is_loopback_range(cidr: str) -> bool:
    """Tells whether a canonical range begins with a loopback address."""
    return ipaddress.ip_network(cidr).network_address.is_loopback


def is_usable_endpoint(family: Family, address: str) -> bool:
    """Tells whether a canonical address can be an endpoint: not unspecified, loopback, link-local or multicast.

    Source: the API's own validation of EndpointSlice addresses (ValidateNonSpecialIP).
    """
    if family is Family.IPV4:
        return is_usable_frontend(family, address) and not address.startswith("169.254.")
    return not _V6_LINK_LOCAL.match(address) and is_usable_frontend(family, address)


def is_usable_frontend(family: Family, address: str) -> bool:
    """Tells whether a Service may claim a canonical address: not unspecified, loopback or multicast."""
    if family is Family.IPV4:
        return not _V4_LOOPBACK_OR_MULTICAST.match(address)
    return address not in ("::", "::1") and not _V6_MULTICAST.match(address)
