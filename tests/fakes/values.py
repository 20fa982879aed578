"""Keys, values and verdicts of elements as the kernel reads them: parsed, or refused with a reason."""

from __future__ import annotations

import ipaddress
import re
from typing import Any, NamedTuple

from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft.objects import Container, Element, KeyType

# One part of a key or value: an address as text, a protocol, a port or a number.
Part = str | int
Plain = tuple[Part, ...]
# A key of a container: Plain, or in interval sets one (from, to) for each part, with addresses as numbers.
StoredKey = tuple[Any, ...]

NUMBERS = 1 << 32
COMMENT_LENGTH = 128
_PROTOCOLS = {"tcp", "udp", "sctp", "icmp", "ipv6-icmp"}
_NAME = re.compile(r"[A-Za-z._][A-Za-z0-9/._-]{0,254}")


class Verdict(NamedTuple):
    """What a verdict map leads to; ``chain`` is empty for drop, accept, return and continue."""

    kind: str
    chain: str = ""


class Entry(NamedTuple):
    """An element as it is stored. ``value`` is None in sets."""

    key: StoredKey
    value: Plain | Verdict | None
    element: Element


def entry(container: Container, element: Element, family: Family) -> Entry:
    """Reads a whole element, as for adding it."""
    key = read_key(container, element.key, family)
    check_comment(element.comment)
    if container.value is None:
        if element.value:
            raise KernelRefusedError(f"set is not a map: {element}")
        return Entry(key, None, element)
    if container.value == ():
        return Entry(key, verdict(element.value), element)
    return Entry(key, _plain(container.value, element.value, family), element)


def read_key(container: Container, text: str, family: Family) -> StoredKey:
    """Reads a key in the container's types."""
    if container.interval:
        parts = _split(container.key, text)
        return tuple(_interval(kind, part, family) for kind, part in zip(container.key, parts, strict=True))
    return _plain(container.key, text, family)


def verdict(text: str) -> Verdict:
    """Reads a verdict."""
    kind, _, chain = text.partition(" ")
    if (kind in ("goto", "jump")) == bool(chain) and kind in ("goto", "jump", "drop", "accept", "return", "continue"):
        return Verdict(kind, chain)
    raise KernelRefusedError(f"not a verdict: {text!r}")


def check_name(name: str) -> None:
    """Refuses names that nft's grammar does not take for chains, sets and maps."""
    if not _NAME.fullmatch(name):
        raise KernelRefusedError(f"syntax error in name {name!r}")


def check_comment(comment: str) -> None:
    """Refuses comments that nft's grammar or its limit does not take."""
    if '"' in comment or len(comment.encode()) > COMMENT_LENGTH:
        raise KernelRefusedError(f"comment not possible: {comment!r}")


def check_address(text: str, family: Family) -> str:
    """Refuses what is not an address of the family."""
    try:
        return str(_address_type(family)(text))
    except ValueError as error:
        raise KernelRefusedError(f"could not resolve hostname: {text!r}") from error


def check_range(text: str, family: Family) -> tuple[int, int]:
    """Reads an address or CIDR as the first and the last address in it."""
    base, slash, length = text.partition("/")
    address = int(_address_type(family)(check_address(base, family)))
    width = 32 if family is Family.IPV4 else 128
    bits = width - check_number(length, width) if slash else 0
    return address >> bits << bits, address | ((1 << bits) - 1)


def check_number(text: str, highest: int) -> int:
    """Reads a number of at most ``highest``."""
    if not text.isascii() or not text.isdigit() or int(text) > highest:
        raise KernelRefusedError(f"not a number up to {highest}: {text!r}")
    return int(text)


def address_number(text: str) -> int:
    """A valid address as a number."""
    return int(ipaddress.ip_address(text))


def _address_type(family: Family) -> type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address]:
    return ipaddress.IPv4Address if family is Family.IPV4 else ipaddress.IPv6Address


def _split(kinds: tuple[KeyType, ...], text: str) -> list[str]:
    parts = text.split(" . ")
    if len(parts) != len(kinds):
        raise KernelRefusedError(f"datatype mismatch: {text!r} for {kinds}")
    return parts


def _plain(kinds: tuple[KeyType, ...], text: str, family: Family) -> Plain:
    return tuple(_part(kind, part, family) for kind, part in zip(kinds, _split(kinds, text), strict=True))


def _part(kind: KeyType, text: str, family: Family) -> Part:
    match kind:
        case KeyType.ADDRESS:
            return check_address(text, family)
        case KeyType.PROTOCOL:
            if text not in _PROTOCOLS:
                raise KernelRefusedError(f"could not resolve protocol name {text!r}")
            return text
        case KeyType.PORT:
            return check_number(text, 65535)
        case KeyType.NUMBER:
            return check_number(text, NUMBERS - 1)


def _interval(kind: KeyType, text: str, family: Family) -> tuple[Part, Part]:
    if kind is KeyType.ADDRESS:
        return check_range(text, family)
    part = _part(kind, text, family)
    return part, part
