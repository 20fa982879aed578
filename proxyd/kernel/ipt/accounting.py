"""Named counters of the kernel that rules of iptables mode count packets with (nfacct), where it has them.

They belong to the network namespace and outlive rules and processes, kube-proxy's too. Two parts of the kernel are needed,
either of which may be missing: what keeps counters (nfnetlink_acct), and the match that rules use (xt_nfacct). A rule with
a match that is not there is refused, and with it all others of that call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

import structlog

from proxyd.ipt.objects import DROP, Rule
from proxyd.ipt.restore import rule_text
from proxyd.kernel.ipt.iptables import Iptables, IptablesRefusedError, IptablesUnavailableError
from proxyd.kernel.netlink import NETFILTER, NETFILTER_HEADER, Netlink, attribute, attributes

log = structlog.get_logger("proxyd.kernel")

# linux/netfilter/nfnetlink_acct.h
_SUBSYSTEM = 7
_NEW, _GET = (_SUBSYSTEM << 8 | number for number in (0, 1))
_NAME, _PACKETS = 1, 2
# A rule is tried in it, where nothing leads to.
TRIAL = "PROXYD-TRIAL"


class Accounting(Protocol):
    """The counters of one network namespace, by name. For any thread."""

    def ensure(self, name: str) -> None:
        """Makes a counter where there is none. Raises ``OSError``, as where the kernel has no counters."""

    def packets(self, name: str) -> int | None:
        """What a counter has counted since it was made; None where it cannot be read."""


class NetlinkAccounting:
    """The real one, in the namespace of the thread that makes it."""

    def __init__(self) -> None:
        self._netlink = Netlink(NETFILTER)
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes the socket."""
        self._netlink.close()

    def ensure(self, name: str) -> None:
        """See ``Accounting``."""
        try:
            self._ask(_GET, name)
        except FileNotFoundError:
            self._ask(_NEW, name)

    def packets(self, name: str) -> int | None:
        """See ``Accounting``."""
        try:
            for answer in self._ask(_GET, name):
                return int.from_bytes(attributes(answer, NETFILTER_HEADER.size)[_PACKETS], "big")
        except OSError as error:
            log.debug("counter not read", counter=name, error=error.strerror or str(error))
        return None

    def _ask(self, kind: int, name: str) -> list[bytes]:
        body = NETFILTER_HEADER.pack(0, 0, 0) + attribute(_NAME, name.encode() + b"\0")
        with self._lock:
            return list(self._netlink.ask(kind, body))


def usable(accounting: Accounting, names: Iterable[str], tools: Sequence[Iptables]) -> tuple[frozenset[str], str]:
    """Makes the counters and tries a rule with each; gives those that rules may use, and why there are none.

    All or none: rules that count and rules that do not are for nodes that differ, not for one.
    """
    wanted = tuple(names)
    try:
        for name in wanted:
            accounting.ensure(name)
        for each in tools:
            # In two calls: of a rule that comes and goes in one, the legacy tools do not tell the kernel.
            each.restore(_trial(*(f"-A {TRIAL}{rule_text(Rule(DROP, counter=name))}" for name in wanted)))
            each.restore(_trial(f"-X {TRIAL}"))
    except OSError as error:
        return frozenset(), f"counters: {error.strerror or error}"
    except (IptablesRefusedError, IptablesUnavailableError) as error:
        return frozenset(), str(error)
    return frozenset(wanted), ""


def _trial(*lines: str) -> str:
    return "\n".join(("*filter", f":{TRIAL} - [0:0]", *lines, "COMMIT\n"))
