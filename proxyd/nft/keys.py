"""Keys of elements: from the kernel's bytes to the words in which we add them, and from a key to its frontend."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from proxyd.model import Family
from proxyd.nft.objects import Container, KeyType

_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
# The kernel fills each field of a concatenation up to a multiple of this.
_REGISTER = 4


def key_text(container: Container, family: Family, first: bytes, last: bytes | None, order: str) -> str | None:
    """A key as ``Element.key`` has it, None where the bytes are not such a key.

    ``last`` is the end of the range in interval containers, else None. ``order`` ("little" or "big") is that of the
    host, in which the kernel keeps numbers; addresses and ports have network order.
    """
    if container.interval != (last is not None):
        return None
    lows, highs = (list(_fields(container, family, each)) for each in (first, last if last is not None else first))
    if not lows or len(lows) != len(highs):
        return None
    if container.interval:
        # Only the last field is a range with us.
        if lows[:-1] != highs[:-1]:
            return None
        parts = [*_plain(container, lows[:-1], order), _range(lows[-1], highs[-1])]
    else:
        parts = _plain(container, lows, order)
    return None if "" in parts else " . ".join(parts)


def _plain(container: Container, fields: list[bytes], order: str) -> list[str]:
    return [_part(kind, field, order) for kind, field in zip(container.key, fields, strict=False)]


def _fields(container: Container, family: Family, data: bytes) -> Iterator[bytes]:
    """The fields of a key; none where its length is wrong."""
    widths = [_width(kind, family) for kind in container.key]
    spaces = [-(-width // _REGISTER) * _REGISTER for width in widths] if len(widths) > 1 else widths
    if sum(spaces) != len(data):
        return
    offset = 0
    for width, space in zip(widths, spaces, strict=True):
        yield data[offset : offset + width]
        offset += space


def _width(kind: KeyType, family: Family) -> int:
    match kind:
        case KeyType.ADDRESS:
            return 4 if family is Family.IPV4 else 16
        case KeyType.PROTOCOL:
            return 1
        case KeyType.PORT:
            return 2
        case KeyType.NUMBER:
            return 4


def _part(kind: KeyType, field: bytes, order: str) -> str:
    if kind is KeyType.ADDRESS:
        return str(ipaddress.ip_address(field))
    if kind is KeyType.PROTOCOL:
        return _PROTOCOLS.get(field[0], str(field[0]))
    return str(int.from_bytes(field, "little" if kind is KeyType.NUMBER and order == "little" else "big"))


def _range(low: bytes, high: bytes) -> str:
    """An address range as CIDR; empty where it is none, which we never write."""
    first, last = int.from_bytes(low, "big"), int.from_bytes(high, "big")
    size = last - first + 1
    if size < 1 or size & (size - 1) or first % size:
        return ""
    address = ipaddress.ip_address(low)
    return f"{address}/{address.max_prefixlen - size.bit_length() + 1}"


def frontend_of(container: Container, key: str) -> str:
    """The frontend that an element is about, as it is in keys of dispatch; empty where it is about none."""
    if KeyType.PORT not in container.key:
        return ""
    parts = key.split(" . ")[: container.key.index(KeyType.PORT) + 1]
    if container.protocol:
        # Endpoint maps have their protocol in their name.
        parts.insert(-1, container.protocol)
    return " . ".join(parts)
