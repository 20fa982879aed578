"""The iptables objects that proxyd uses, as data: rules, chains, a transaction.

A rule has a field for everything that any rule of the layout looks at, so that the in-memory kernel of the tests can
carry all of it out; one flat object a rule, since a node may have hundreds of thousands.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from proxyd.model import Family


class Table(StrEnum):
    """A table of iptables."""

    NAT = "nat"
    FILTER = "filter"
    MANGLE = "mangle"


# Targets that are no chains of ours.
ACCEPT, DROP, REJECT, RETURN = "ACCEPT", "DROP", "REJECT", "RETURN"
DNAT, MASQUERADE, MARK = "DNAT", "MASQUERADE", "MARK"
# The state of connections that the jumps to refusals are for.
NEW = "NEW"
# Sources that say nothing. The tools do not print them, and iptables-nft refuses to negate them.
EVERYBODY = frozenset({"0.0.0.0/0", "::/0"})


class Recent(msgspec.Struct, frozen=True, gc=False):
    """The recent match on a list of client addresses. With ``seconds``: seen within that time; 0: note the client."""

    list: str
    seconds: int = 0


class Rule(msgspec.Struct, frozen=True, gc=False):
    """One rule: everything that is set has to hold, then ``target`` (a chain, or one of the targets above; "" none).

    ``source``, ``destination`` are ranges, ``interface`` the incoming one (``+`` at its end: a prefix); a leading ``!``
    negates each of the three. ``port`` is the destination port, of ``protocol``. ``source_local``: the source is an
    address of this node; ``destination_local`` likewise. ``mark``: this bit is set (for the target MARK: the bit to
    set, or with ``clear`` to invert; ``unmarked``: it is not set). ``one_of``: true once in so many times. ``to`` is
    the new destination (DNAT). ``counter`` is an nfacct object that counts matches.
    """

    target: str = ""
    comment: str = ""
    protocol: str = ""
    source: str = ""
    destination: str = ""
    port: int = 0
    interface: str = ""
    source_local: bool = False
    destination_local: bool = False
    states: str = ""
    unmarked: int = 0
    marked: int = 0
    one_of: int = 0
    recent: Recent | None = None
    counter: str = ""
    set_mark: int = 0
    flip_mark: int = 0
    to: str = ""
    random_ports: bool = False


class Chain(msgspec.Struct, frozen=True, gc=False):
    """A chain of ours with all of its rules."""

    table: Table
    name: str
    rules: tuple[Rule, ...] = ()


class Placed(msgspec.Struct, frozen=True, gc=False):
    """One rule in a chain that others have rules in too (a dispatch chain, or a built-in one)."""

    table: Table
    chain: str
    rule: Rule


class ChainName(msgspec.Struct, frozen=True, gc=False, order=True):
    """A chain to be deleted."""

    table: Table
    name: str


class Transaction(msgspec.Struct, frozen=True):
    """What one call of iptables-restore does (one or several of these), table by table, each whole or not at all.

    ``chains`` are made where they are missing, and then have exactly these rules. ``delete`` takes single rules away,
    ``insert`` puts single rules first, after that. ``delete_chains`` empties chains and takes them away.
    """

    family: Family
    chains: tuple[Chain, ...] = ()
    delete: tuple[Placed, ...] = ()
    insert: tuple[Placed, ...] = ()
    delete_chains: tuple[ChainName, ...] = ()

    @property
    def size(self) -> int:
        """How many rules and chains are written or deleted."""
        rules = sum(len(chain.rules) for chain in self.chains)
        return rules + len(self.chains) + len(self.delete) + len(self.insert) + len(self.delete_chains)
