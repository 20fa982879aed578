"""The kernel's notifications of nftables as it sends them: netlink messages, read as far as they are about our table."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from proxyd.model import Family
from proxyd.nft.drift import Edits
from proxyd.nft.keys import key_text
from proxyd.nft.layout import LASTING, TABLE, declared

_SUBSYSTEM_NFTABLES = 10
# Message numbers of nf_tables: what was made; what was deleted has the number two above.
_KINDS = {0: "table", 3: "chain", 6: "rule", 9: "set", 12: "element", 18: "object", 22: "flowtable"}
_NEW_GENERATION = 15
_END = "end"
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
# Attribute 1 of every message is the table; this one says which chain, set or object (a named counter) it is about.
_NAME_ATTRIBUTE = {"chain": 3, "rule": 2, "set": 2, "element": 2, "object": 2}
_ELEMENTS, _KEY, _KEY_END, _VALUE = 3, 1, 10, 1
# The two highest bits of an attribute's number are flags.
_NUMBER = 0x3FFF


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
        for listed in _values(self.body, _ELEMENTS):
            for element in _values(listed, 1, 0):
                first, last = (next(_nested(element, number), None) for number in (_KEY, _KEY_END))
                text = key_text(container, self.family, first, last, sys.byteorder) if first is not None else None
                if text is None:
                    edits.all_in_doubt()
                    return
                edits.element(self.name, text, there=not self.deleted)


class Message(NamedTuple):
    """One message about nftables, whoever's table it is about; ``kind`` is "end" at the end of a transaction."""

    author: int
    family: Family | None = None
    kind: str = ""
    table: str = ""
    name: str = ""
    deleted: bool = False
    body: bytes = b""


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one delivery."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, _, _, author = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            return
        if kind >> 8 == _SUBSYSTEM_NFTABLES:
            yield _message(kind & 0xFF, author, data[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def notices(data: bytes) -> Iterator[Notice]:
    """The messages of one delivery, read as far as they are about our table of nftables mode."""
    for each in messages(data):
        if each.family is None or each.table != TABLE:
            yield Notice(each.author, ends=each.kind == _END)
        else:
            yield Notice(each.author, False, each.family, each.kind, each.name, each.deleted, each.body)


def _message(number: int, author: int, body: bytes) -> Message:
    if number == _NEW_GENERATION:
        return Message(author, kind=_END)
    family = _FAMILIES.get(body[0]) if body else None
    kind, deleted = (_KINDS[number], False) if number in _KINDS else (_KINDS.get(number - 2, ""), True)
    if family is None or not kind:
        return Message(author)
    name = _name(body, _NAME_ATTRIBUTE.get(kind, 1))
    return Message(author, family, kind, _name(body, 1), name, deleted, body)


def _name(body: bytes, number: int) -> str:
    value = next(_values(body, number), b"")
    return value.rstrip(b"\0").decode("utf-8", "replace")


def _nested(body: bytes, number: int) -> Iterator[bytes]:
    """The bytes of data (a key) that is an attribute of an element."""
    for data in _values(body, number, 0):
        yield from _values(data, _VALUE, 0)


def _values(body: bytes, wanted: int, offset: int = 4) -> Iterator[bytes]:
    """The values of all attributes with this number; a message begins with four bytes that are none."""
    while offset + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, offset)
        if length < _ATTRIBUTE.size:
            return
        if kind & _NUMBER == wanted:
            yield body[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3
