"""The kernel's notifications of nftables as it sends them: netlink messages, read as far as they are about our table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from proxyd.kernel.netlink import attributes, messages, text, walk
from proxyd.kernel.nft.nfnetlink import START, SUBSYSTEM
from proxyd.model import Family
from proxyd.nft.drift import Edits
from proxyd.nft.keys import key_text
from proxyd.nft.layout import LASTING, TABLE, declared

# Message numbers of nf_tables: what was made; what was deleted has the number two above.
_KINDS = {0: "table", 3: "chain", 6: "rule", 9: "set", 12: "element", 18: "object", 22: "flowtable"}
_NEW_GENERATION = 15
_END = "end"
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
# Attribute 1 of every message is the table; this one says which chain, set or object (a named counter) it is about.
_NAME_ATTRIBUTE = {"chain": 3, "rule": 2, "set": 2, "element": 2, "object": 2}
_ELEMENTS, _KEY, _KEY_END, _VALUE = 3, 1, 10, 1


class Notice(NamedTuple):
    """One message: the netlink port of its author, whether it ends a transaction, and what it says.

    ``family`` is None where it says nothing about a table of ours.
    """

    author: int
    ends: bool
    family: Family | None = None
    kind: str = ""
    name: str = ""
    deleted: bool = False
    body: bytes = b""

    def tell(self, edits: Edits) -> None:
        """Adds what it says to the edits of its family."""
        if self.kind == "element" and self.name in LASTING:
            # Packets make these; who takes some away or adds some does no harm.
            return
        within = " in" if self.kind in ("rule", "element") else ""
        where = f"{self.kind}{within} {self.name}"
        edits.told(f"{'deleted' if self.deleted else 'added'} {where}")
        if edits.everything:
            return
        if self.kind == "rule":
            edits.rules(self.name)
        elif self.kind == "element":
            self._tell_elements(edits)
        else:
            edits.all_in_doubt()

    def _tell_elements(self, edits: Edits) -> None:
        container = declared(self.name)
        if container is None or self.family is None:
            return  # in a set that is not ours; when it was made, that was told too
        for _, element in walk(attributes(self.body, START).get(_ELEMENTS, b"")):
            parts = attributes(element)
            first, last = (attributes(parts.get(end, b"")).get(_VALUE) for end in (_KEY, _KEY_END))
            key = key_text(container, self.family, first, last, sys.byteorder) if first is not None else None
            if key is None:
                edits.all_in_doubt()
                return
            edits.element(self.name, key, there=not self.deleted)


class Told(NamedTuple):
    """One message about nftables, whoever's table it is about; ``kind`` is "end" at the end of a transaction."""

    author: int
    family: Family | None = None
    kind: str = ""
    table: str = ""
    name: str = ""
    deleted: bool = False
    body: bytes = b""


def all_told(data: bytes) -> Iterator[Told]:
    """The messages of one delivery."""
    for kind, _, _, author, body in messages(data):
        if kind >> 8 == SUBSYSTEM:
            yield _told(kind & 0xFF, author, body)


def notices(data: bytes) -> Iterator[Notice]:
    """The messages of one delivery, read as far as they are about our table of nftables mode."""
    for each in all_told(data):
        if each.family is None or each.table != TABLE:
            yield Notice(each.author, ends=each.kind == _END)
        else:
            yield Notice(each.author, False, each.family, each.kind, each.name, each.deleted, each.body)


def _told(number: int, author: int, body: bytes) -> Told:
    if number == _NEW_GENERATION:
        return Told(author, kind=_END)
    family = _FAMILIES.get(body[0]) if body else None
    kind, deleted = (_KINDS[number], False) if number in _KINDS else (_KINDS.get(number - 2, ""), True)
    if family is None or not kind:
        return Told(author)
    named = attributes(body, START)
    name = text(named.get(_NAME_ATTRIBUTE.get(kind, 1), b""))
    return Told(author, family, kind, text(named.get(1, b"")), name, deleted, body)
