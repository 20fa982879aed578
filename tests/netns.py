"""A real kernel's nftables in a network namespace of its own.

The namespace has no name: a thread that lives for a moment makes it, and the netlink sockets that were opened in that
thread keep it until they are closed. So nothing can be left behind, and the test's own namespace is never touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from proxyd.kernel.libnftables import LibNftables
from proxyd.kernel.ruleset import Contents, KernelRefusedError
from proxyd.model import Family
from proxyd.nft.layout import TABLE
from proxyd.nft.objects import Transaction
from proxyd.nft.script import FAMILY_WORD
from tests.fakes.ruleset import FakeRuleset

_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Why no namespace can be made here; empty where one can."""
    return "" if os.geteuid() == 0 else "needs root: makes a network namespace and writes nftables rules in it"


class RealRuleset:
    """A ``LibNftables`` in a namespace of its own, that can also be asked for elements as a FakeRuleset can."""

    def __init__(self, also: Callable[[RealRuleset], None] = lambda _: None) -> None:
        """``also`` opens more sockets in the namespace; it is called there."""
        failures: list[Exception] = []
        thread = threading.Thread(target=self._open, args=(failures, also))
        thread.start()
        thread.join()
        if failures:
            raise failures[0]

    def _open(self, failures: list[Exception], also: Callable[[RealRuleset], None]) -> None:
        from nftables import Nftables  # noqa: PLC0415  (Debian's binding: absent in a plain virtual environment)

        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.unshare(_CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "unshare")
            self.library = LibNftables()
            self._lister: Any = Nftables()
            self._lister.set_json_output(True)
            also(self)
        except Exception as error:  # noqa: BLE001  (for the thread that waits)
            failures.append(error)

    def commit(self, transaction: Transaction) -> None:
        self.library.commit(transaction)

    def contents(self, family: Family) -> Contents:
        return self.library.contents(family)

    def other(self, text: str) -> None:
        """Has somebody else write: another library context, with a socket of its own."""
        self._lister.set_json_output(False)
        code, _, error = self._lister.cmd(text)
        self._lister.set_json_output(True)
        assert code == 0, error

    def elements(self, family: Family) -> dict[str, dict[str, str]]:
        """Keys and values of all elements by container, in the words in which they were added."""
        return {each["name"]: dict(map(_element, each.get("elem", ()))) for each in self._list(family, "set", "map")}

    def rules(self, family: Family) -> dict[str, int]:
        """How many rules each chain has."""
        counts = {each["name"]: 0 for each in self._list(family, "chain")}
        for rule in self._list(family, "rule"):
            counts[rule["chain"]] += 1
        return counts

    def _list(self, family: Family, *kinds: str) -> Iterator[dict[str, Any]]:
        code, output, error = self._lister.cmd(f"list table {FAMILY_WORD[family]} {TABLE}")
        if code:
            assert "No such file" in error, error
            return
        for entry in json.loads(output)["nftables"]:
            for kind in kinds:
                if kind in entry:
                    yield entry[kind]


def _element(listed: Any) -> tuple[str, str]:
    """One element as nft lists it: a key, or key and value; a key with a comment or counter is wrapped in "elem"."""
    key, value = listed if isinstance(listed, list) else (listed, "")
    return _text(key), _text(value)


def _text(listed: Any) -> str:
    if not isinstance(listed, dict):
        return str(listed)
    ((kind, value),) = listed.items()
    match kind:
        case "elem":
            return _text(value["val"])
        case "concat":
            return " . ".join(map(_text, value))
        case "prefix":
            return f"{value['addr']}/{value['len']}"
        case "goto" | "jump":
            return f"{kind} {value['target']}"
        case _:
            return str(kind)


class MirroredRuleset(FakeRuleset):
    """The in-memory kernel, with a real one that is told the same and must answer the same."""

    def __init__(self) -> None:
        super().__init__()
        self._real = RealRuleset()

    def _carry_out(self, transaction: Transaction) -> None:
        refused = ""
        try:
            self._real.commit(transaction)
        except KernelRefusedError as error:
            refused = str(error)
        try:
            super()._carry_out(transaction)
        except KernelRefusedError as error:
            if not refused:
                raise AssertionError("only the in-memory kernel refuses") from error
            raise
        assert not refused, f"only the real kernel refuses: {refused}"

    def contents(self, family: Family) -> Contents:
        contents = super().contents(family)
        assert contents == self._real.contents(family)
        return contents

    def check(self) -> None:
        """Compares everything that both hold."""
        for family in Family:
            assert self.elements(family) == self._real.elements(family)
            table = self.tables.get(family)
            assert self._real.rules(family) == (
                {name: len(chain.rules) for name, chain in table.chains.items()} if table is not None else {}
            )
