"""The real ruleset: libnftables in this process, through the official Python binding.

A library context belongs to the network namespace in which it was made. Calls release the interpreter lock, so
reflectors go on reading during a commit.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
from typing import Any

from proxyd.errors import CannotWorkHereError
from proxyd.kernel.netlink import NETFILTER, Attributes, Netlink, attribute, attributes, text
from proxyd.kernel.nft import nfnetlink
from proxyd.kernel.nft.ruleset import Contents
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family
from proxyd.nft.layout import TABLE
from proxyd.nft.objects import Transaction
from proxyd.nft.script import script

MINIMUM_VERSION = (1, 0, 6)
# From here on, what older versions crash at is written with every set whose key has only the names of types.
BY_EXPRESSIONS = (1, 1, 3)
_SHOWN = 600
# An answer points at a place in the script; what does not is trouble with the socket. Some of that comes before the kernel
# has been given anything.
_ANSWER = "Error:"
_NOT_SENT = ("cache initialization failed", "Message too long")
_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}
# Attributes of sets; of chains only the name has another number (linux/netfilter/nf_tables.h). Flags of sets.
_TABLE, _NAME, _FLAGS, _CHAIN_NAME = 1, 2, 3, 3
_ANONYMOUS, _MAP_OF_ANY_KIND = 0x1, 0x8 | 0x40
_OUR_TABLE = attribute(_TABLE, TABLE.encode() + b"\0")
# Times that names are read while others change nftables; reading takes milliseconds.
_ATTEMPTS = 20


class NftablesUnavailableError(CannotWorkHereError):
    """nftables cannot be used here at all; the text says what is missing and how to get it."""


class Library:
    """A context of the library: nftables of the namespace in which it is made. Not for use by several threads at once."""

    def __init__(self) -> None:
        """Raises ``NftablesUnavailableError`` where the binding or the library is missing or too old."""
        try:
            from nftables import Nftables  # noqa: PLC0415  (Debian's binding: absent in a plain virtual environment)
        except ImportError as error:
            raise NftablesUnavailableError(
                f"the nftables Python binding is missing ({error}): install Debian's python3-nftables "
                "and use a virtual environment that sees system packages"
            ) from error
        try:
            self._nft: Any = Nftables()
        except (OSError, RuntimeError, AttributeError) as error:
            raise NftablesUnavailableError(f"libnftables cannot be loaded ({error}): install libnftables1") from error
        # Terse: without it, a listing of names reads every element of every set from the kernel.
        self._nft.set_terse_output(True)
        self.version = self._version()

    def run(self, text: str) -> str:
        """Carries a script out whole, and gives what it prints. Raises ``KernelRefusedError``; nothing is done then.

        Raises ``OutcomeUnclearError`` where the kernel's answer is not known.
        """
        code, output, error = self._nft.cmd(text)
        if code:
            known = error.startswith(_ANSWER) or any(each in error for each in _NOT_SENT)
            refused = KernelRefusedError if known else OutcomeUnclearError
            raise refused(_short(error) or f"libnftables returned {code}")
        return str(output)

    def query(self, command: str, *, terse: bool = True) -> list[dict[str, Any]]:
        """What a command, in nft's words or in its JSON, lists: one object each. Raises ``KernelRefusedError``.

        Not ``terse``: with all elements of sets and maps.
        """
        self._nft.set_json_output(True)
        self._nft.set_terse_output(terse)
        try:
            listed: list[dict[str, Any]] = json.loads(self.run(command))["nftables"]
        finally:
            self._nft.set_json_output(False)
            self._nft.set_terse_output(True)
        return listed

    def element(self, family: str, table: str, container: str, key: str) -> str | None:
        """What nft shows of a container with this element alone, None where it has none. Raises ``KernelRefusedError``."""
        self._nft.set_terse_output(False)
        try:
            return self.run(f"get element {family} {table} {container} {{ {key} }}")
        except KernelRefusedError as error:
            if "No such file or directory" in str(error):
                return None
            raise
        finally:
            self._nft.set_terse_output(True)

    def _version(self) -> str:
        """The library's version; the binding tells it only in JSON output, and this listing needs no privilege to fail."""
        try:
            version: str = self.query("list sets ip")[0]["metainfo"]["version"]
        except KernelRefusedError as error:
            raise NftablesUnavailableError(f"nftables cannot be read: {error}{_hint(str(error))}") from error
        except (ValueError, KeyError, IndexError) as error:
            raise NftablesUnavailableError("libnftables was built without JSON support") from error
        if numbers(version) < MINIMUM_VERSION:
            minimum = ".".join(map(str, MINIMUM_VERSION))
            raise NftablesUnavailableError(f"nftables {version} is too old: {minimum} or newer is needed")
        return version


class LibNftables(Library):
    """Our tables in the namespace in which the object is made. Not for use by several threads at once."""

    def __init__(self) -> None:
        """Raises ``NftablesUnavailableError``, see ``Library``."""
        self._names = Netlink(NETFILTER)
        before = _netfilter_sockets()
        super().__init__()
        ((self._descriptor, _),) = _netfilter_sockets() - before

    @property
    def port(self) -> int:
        """The netlink port that the library's changes come from; it may change when the library opens a new socket."""
        with socket.socket(fileno=os.dup(self._descriptor)) as same:
            port: int = same.getsockname()[0]
            return port

    def commit(self, transaction: Transaction) -> None:
        """See ``Ruleset``."""
        if transaction.size or transaction.table is not None:
            self.run(script(transaction, by_expressions=numbers(self.version) >= BY_EXPRESSIONS))

    def contents(self, family: Family) -> Contents:
        """See ``Ruleset``. Not by the library, which would hold the chains of all others (tens of MB of them)."""
        try:
            chains = self._list(nfnetlink.GET_CHAIN, family)
            containers = self._list(nfnetlink.GET_SET, family)
        except OSError as error:
            raise KernelRefusedError(error.strerror or str(error)) from error
        # Without flags where there are none.
        named = ((each, int.from_bytes(each.get(_FLAGS, b""), "big")) for each in containers)
        return Contents(
            frozenset(text(each[_CHAIN_NAME]) for each in chains),
            {text(each[_NAME]): bool(flags & _MAP_OF_ANY_KIND) for each, flags in named if not flags & _ANONYMOUS},
        )

    def _list(self, kind: int, family: Family) -> list[Attributes]:
        """What our table has of one kind. The kernel gives the chains of all tables; others are dropped as they come."""
        found = self._names.list(kind, nfnetlink.about(_AF[family]), _OUR_TABLE, _ATTEMPTS)
        if not self._names.whole:
            raise KernelRefusedError("nftables of this node changes faster than the names in it can be read")
        return [attributes(each, nfnetlink.START) for each in found]


def numbers(version: str) -> tuple[int, ...]:
    """The parts of a version, to be compared."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _netfilter_sockets() -> set[tuple[int, int]]:
    """This process's netlink sockets of netfilter: descriptor and inode, as a number may be used anew meanwhile."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{entry}")
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(entry))) as each:
                    if each.family == socket.AF_NETLINK and each.proto == NETFILTER:
                        found.add((int(entry), status.st_ino))
        except OSError:
            continue  # closed meanwhile
    return found


def _short(error: str) -> str:
    """The message of the first error and the word it points at; the command line it quotes may be very long."""
    lines = [line for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    quoted = ""
    if len(lines) > 2 and "^" in lines[2]:
        start, end = lines[2].index("^"), lines[2].rindex("^") + 1
        quoted = f": {lines[1][:60].strip()} ... {lines[1][start:end].strip()}"
    return (lines[0] + quoted)[:_SHOWN]


def _hint(message: str) -> str:
    return " (CAP_NET_ADMIN is needed)" if "Operation not permitted" in message else ""
