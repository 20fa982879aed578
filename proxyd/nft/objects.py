"""The nftables objects that proxyd uses, as data: statements, rules, chains, sets and maps, elements, a transaction.

Only what the layout needs exists here, so that the in-memory kernel of the tests can carry all of it out.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from proxyd.model import Family


class Field(StrEnum):
    """What a rule can look at in a packet."""

    SADDR = "saddr"
    DADDR = "daddr"
    L4PROTO = "l4proto"
    SPORT = "sport"
    DPORT = "dport"
    IIFNAME = "iifname"
    CT_STATE = "ct state"
    CT_STATUS = "ct status"
    ORIGINAL_DADDR = "ct original daddr"
    ORIGINAL_DPORT = "ct original proto-dst"
    SADDR_TYPE = "fib saddr type"
    DADDR_TYPE = "fib daddr type"


class _Data(msgspec.Struct, frozen=True, gc=False):
    """Base of all objects here: immutable, compared by value and by type."""


class Random(_Data, frozen=True, gc=False):
    """A random number in offset .. offset + modulus - 1; with modulus 1 it is how a constant gets into a key."""

    modulus: int
    offset: int = 0


KeyPart = Field | Random
Key = tuple[KeyPart, ...]


class Match(_Data, frozen=True, gc=False):
    """The field has this value (an address may be a range, an interface may end in ``*``)."""

    field: Field
    value: str
    negate: bool = False


class InSet(_Data, frozen=True, gc=False):
    """The key is an element of the set."""

    key: Key
    set: str
    negate: bool = False


class Chance(_Data, frozen=True, gc=False):
    """True once in ``modulus`` times."""

    modulus: int


class VerdictMap(_Data, frozen=True, gc=False):
    """Looks the key up in a verdict map and follows the verdict; without an element the rule goes on."""

    key: Key
    map: str


class DnatMap(_Data, frozen=True, gc=False):
    """Replaces the destination of packets of one protocol by what the map holds for the key."""

    protocol: str
    key: Key
    map: str


class Dnat(_Data, frozen=True, gc=False):
    """Replaces the destination of packets of one protocol."""

    protocol: str
    address: str
    port: int


class UpdateSet(_Data, frozen=True, gc=False):
    """Adds the key to a dynamic set or starts its timeout (seconds) anew; ends the rule where the set is full."""

    set: str
    key: Key
    timeout: int


class Marked(_Data, frozen=True, gc=False):
    """The packet's mark has this bit."""

    bit: int


class SetMark(_Data, frozen=True, gc=False):
    """Sets one bit of the mark, leaving the others, which belong to other components."""

    bit: int


class FlipMark(_Data, frozen=True, gc=False):
    """Inverts one bit of the mark (after ``Marked``: clears it)."""

    bit: int


class Count(_Data, frozen=True, gc=False):
    """Adds the packet to a named counter."""

    counter: str


class Jump(_Data, frozen=True, gc=False):
    """Goes on in another chain and comes back at its end."""

    chain: str


class Goto(_Data, frozen=True, gc=False):
    """Goes on in another chain for good."""

    chain: str


class Drop(_Data, frozen=True, gc=False):
    """Drops the packet silently."""


class Reject(_Data, frozen=True, gc=False):
    """Refuses the packet, telling the sender: by ICMP, or (TCP only) by a reset."""

    reset: bool = False


class Masquerade(_Data, frozen=True, gc=False):
    """Replaces the source by the address of the outgoing interface, with a fully random port."""


Statement = (
    Match
    | InSet
    | Chance
    | VerdictMap
    | DnatMap
    | Dnat
    | UpdateSet
    | Marked
    | SetMark
    | FlipMark
    | Count
    | Jump
    | Goto
    | Drop
    | Reject
    | Masquerade
)
Rule = tuple[Statement, ...]


class Hook(_Data, frozen=True, gc=False):
    """Where a base chain is called from."""

    type: str
    hook: str
    priority: int


class Chain(_Data, frozen=True, gc=False):
    """A chain with all of its rules. ``comment`` is for people."""

    name: str
    rules: tuple[Rule, ...]
    hook: Hook | None = None
    comment: str = ""


class KeyType(StrEnum):
    """The types of which keys of sets and maps are made."""

    ADDRESS = "address"
    PROTOCOL = "protocol"
    PORT = "port"
    NUMBER = "number"


class Container(_Data, frozen=True, gc=False):
    """A set (``value`` None) or a map; a verdict map has the empty tuple as value type.

    ``protocol`` is set where all ports in it are of one protocol.
    """

    name: str
    key: tuple[KeyType, ...]
    value: tuple[KeyType, ...] | None = None
    counter: bool = False
    interval: bool = False
    timeout: bool = False
    size: int = 0
    protocol: str = ""

    @property
    def is_map(self) -> bool:
        """Whether it is a map."""
        return self.value is not None


class Element(NamedTuple):
    """An element of a set or map: key and value in nft's words (parts joined by " . "), and a comment for people."""

    container: str
    key: str
    value: str = ""
    comment: str = ""


class Transaction(_Data, frozen=True, gc=False):
    """All of it happens or nothing does. The parts are applied in the order of the fields.

    ``table`` is the comment with which to ensure the table, None to take it as it is. Each of ``counters`` is made if
    absent; one that is there goes on counting. Each of ``chains`` is made if absent and its rules replaced. Elements are
    deleted before others are added, since the kernel refuses to add a key that exists with another value.
    """

    family: Family
    table: str | None = None
    containers: tuple[Container, ...] = ()
    counters: tuple[str, ...] = ()
    chains: tuple[Chain, ...] = ()
    delete_elements: tuple[Element, ...] = ()
    add_elements: tuple[Element, ...] = ()
    delete_containers: tuple[tuple[str, bool], ...] = ()
    delete_chains: tuple[str, ...] = ()
    delete_table: bool = False

    @property
    def size(self) -> int:
        """How many operations it has (a rule counts as one)."""
        return (
            len(self.containers)
            + len(self.counters)
            + sum(1 + len(chain.rules) for chain in self.chains)
            + len(self.delete_elements)
            + len(self.add_elements)
            + len(self.delete_containers)
            + len(self.delete_chains)
            + self.delete_table
        )
