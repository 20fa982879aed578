"""Asks the kernel's nftables without the library: lists of objects by name, single elements, counters.

What libnftables lists, it holds whole and as text; a node with tens of thousands of foreign chains would feel that.
"""

from __future__ import annotations

from proxyd.kernel.netlink import NETFILTER, NETFILTER_HEADER, Attributes, Netlink, attribute, attributes

SUBSYSTEM = 10
GET_TABLE, GET_CHAIN, GET_SET, GET_ELEMENT, GET_OBJECT = (SUBSYSTEM << 8 | number for number in (1, 4, 10, 13, 19))
# Where the attributes of a message begin; its first byte is the family.
START = NETFILTER_HEADER.size


def about(family: int, *names: str) -> bytes:
    """The beginning of a question: about a family (0: any), a table, and something in it."""
    named = (attribute(kind, name.encode() + b"\0") for kind, name in enumerate(names, 1))
    return NETFILTER_HEADER.pack(family, 0, 0) + b"".join(named)


def dump(kind: int) -> list[tuple[int, Attributes]]:
    """All objects of one kind in this network namespace, each as (family number, attributes). Raises ``OSError``.

    A list that changed while it was read is read again, a few times; then what came is given.
    """
    with Netlink(NETFILTER) as netlink:
        return [(each[0], attributes(each, START)) for each in netlink.list(kind, about(0))]
