"""The kernel's notifications as far as they are about rules of iptables mode, which iptables-nft keeps in nftables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from proxyd.ipt.names import FIREWALL
from proxyd.ipt.ownership import BUILT_IN, TABLES, is_own_chain
from proxyd.kernel.nft.notices import Told, all_told
from proxyd.kernel.nft.notifications import Notifications
from proxyd.model import Family
from proxyd.nft.drift import Drift, Edits

_SHARED = ("filter", FIREWALL)
# A port that nothing has: user space has numbers that fit a process id, or negative ones.
_NOBODY = 0x7FFF_FFFF


class RuleNotice(NamedTuple):
    """One message. See ``kernel.notices.Notice``."""

    message: Told
    family: Family | None = None

    @property
    def author(self) -> int:
        """The netlink port of its author."""
        return self.message.author

    @property
    def ends(self) -> bool:
        """Whether it ends a transaction."""
        return self.message.kind == "end"

    def tell(self, edits: Edits) -> None:
        """Adds what it says. Chains are told with their table: ``nat KUBE-SERVICES``."""
        _, _, kind, table, name, deleted, _ = self.message
        if kind == "table":
            edits.told(f"deleted table {table}")
            edits.all_in_doubt()
        else:
            within = " in" if kind == "rule" else ""
            edits.told(f"{'deleted' if deleted else 'added'} {kind}{within} {name} of table {table}")
            edits.rules(f"{table} {name}")


def rule_notices(data: bytes) -> Iterator[RuleNotice]:
    """The messages of one delivery."""
    for each in all_told(data):
        yield RuleNotice(each, each.family if _matters(each) else None)


def _matters(message: Told) -> bool:
    """Whether it can be about something of ours; what others do elsewhere in the same tables is theirs."""
    _, family, kind, table, name, deleted, body = message
    if family is None or table not in TABLES:
        return False
    if kind == "table":
        return deleted
    if kind == "chain":
        return deleted and is_own_chain(table, name)
    if kind == "rule":
        # Of built-in chains only a jump that goes; the name of where it leads is in the rule. Of the chain that the kubelet
        # has rules in too, only what goes.
        jump = name in BUILT_IN and b"KUBE-" in body
        return is_own_chain(table, name) or (deleted and (jump or (table, name) == _SHARED))
    return False


class OwnAuthor:
    """Tells own changes from foreign ones: each call of a tool is a process, whose id is its netlink port."""

    def __init__(self) -> None:
        self._watch: Notifications | None = None
        self._pid = _NOBODY
        self._lock = threading.Lock()

    def watch(self, drifted: Callable[[Drift], None]) -> Notifications:
        """Makes the one who listens. What others do is told from now on."""
        self._watch = Notifications(lambda: self._pid, drifted, rule_notices)
        return self._watch

    @contextmanager
    def __call__(self, pid: int) -> Iterator[None]:
        """While this process lives, what it does is ours. The kernel looks at the author when the change is made."""
        with self._lock:
            self._set(pid)
            try:
                yield
            finally:
                self._set(_NOBODY)

    def _set(self, pid: int) -> None:
        self._pid = pid
        if self._watch is not None:
            self._watch.ignore(pid)
