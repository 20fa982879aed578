"""Notices when somebody else changes rules of the legacy backend, whose kernel side tells nobody.

It does give the number of rules and bytes of a table at once, however large that is. Where these change and no call of
ours was the reason, the tables are read and their rules counted, by a tool. What keeps both is found by the clock only.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import structlog

from proxyd.ipt.audit import audit
from proxyd.ipt.objects import Table
from proxyd.kernel.ipt.iptables import Iptables, IptablesRefusedError, IptablesUnavailableError
from proxyd.model import Family
from proxyd.nft.drift import Drift

log = structlog.get_logger("proxyd.kernel")

# Seconds between looks at the sizes.
PERIOD = 1.0
# Seconds between comparisons of all rules with what is wanted, for what keeps the sizes (kube-proxy's full sync: the same).
COMPARED_EVERY = 3600.0
# Reading tables may take this share of the time: after t seconds of it the next one waits t * (1/share - 1).
SHARE = 0.1
# include/uapi/linux/netfilter_ipv4/ip_tables.h: the option, and struct ipt_getinfo, which begins with the table's name.
_GET_INFO = 64
_INFO_SIZE, _NAME_SIZE = 84, 32
_DOMAIN = {Family.IPV4: (socket.AF_INET, socket.IPPROTO_IP), Family.IPV6: (socket.AF_INET6, socket.IPPROTO_IPV6)}

# How many rules there should be in each chain (see ``ipt.audit``); empty where that is not known.
Expected = Callable[[], Mapping[tuple[Table, str], int]]


class Sizes:
    """Reads the sizes of all tables of one family, in the namespace in which it is made."""

    def __init__(self, family: Family) -> None:
        domain, self._level = _DOMAIN[family]
        self._socket = socket.socket(domain, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self._library = ctypes.CDLL(None, use_errno=True)

    def read(self) -> tuple[bytes, ...]:
        """What the kernel says about each table. Raises ``OSError``."""
        return tuple(self._info(table) for table in Table)

    def _info(self, table: Table) -> bytes:
        # Not by the socket's own method: the kernel reads the name out of the buffer.
        answer = ctypes.create_string_buffer(table.encode(), _INFO_SIZE)
        size = ctypes.c_uint32(_INFO_SIZE)
        if self._library.getsockopt(self._socket.fileno(), self._level, _GET_INFO, answer, ctypes.byref(size)):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return answer.raw[_NAME_SIZE:]


class _Place:
    """One family. ``known`` are the sizes that our last call or look left, None before; ``changed``: not any more."""

    def __init__(self, tools: Iptables, expected: Expected) -> None:
        self.tools = tools
        self.expected = expected
        self.known: tuple[bytes, ...] | None = None
        self.changed = False
        self.calls = 0


class LegacyWatch:
    """Calls ``drifted``, on a thread of its own, where rules of ours are missing or others are among them."""

    def __init__(
        self,
        families: Sequence[Family],
        sizes: Callable[[Family], Sizes] = Sizes,
        compared_every: float = COMPARED_EVERY,
    ) -> None:
        """``compared_every``: so many seconds apart, a Drift of no edits has everything compared."""
        self._compared_every = compared_every
        self._sizes = {family: sizes(family) for family in families}
        self._places: dict[Family, _Place] = {}
        self._drifted: Callable[[Drift], None] = lambda _: None
        # Held while a call of ours runs, so that its changes are not taken for others'.
        self._locks = {family: threading.Lock() for family in families}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rules", daemon=True)

    def author(self, family: Family) -> Callable[[int], AbstractContextManager[None]]:
        """What ``IptablesTools`` is to enter around each call that changes something."""
        return lambda _: self._writing(family)

    def watch(
        self, places: Mapping[Family, tuple[Iptables, Expected]], drifted: Callable[[Drift], None]
    ) -> LegacyWatch:
        """Says what to look at, and whom to tell."""
        self._places = {family: _Place(*each) for family, each in places.items()}
        self._drifted = drifted
        return self

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends it."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    @contextmanager
    def _writing(self, family: Family) -> Iterator[None]:
        place = self._places.get(family)
        with self._locks[family]:
            if place is None:
                yield
                return
            self._look(family, place)
            place.calls += 1
            try:
                yield
            finally:
                place.known = None
                try:
                    place.known = self._sizes[family].read()
                except OSError as error:
                    log.debug("sizes of tables not read", ip_family=family, error=str(error))

    def _look(self, family: Family, place: _Place) -> None:
        if place.known is not None and self._sizes[family].read() != place.known:
            place.changed = True

    def _run(self) -> None:
        rest = PERIOD
        compare_at = time.monotonic() + self._compared_every
        while not self._stopped.wait(rest):
            started = time.monotonic()
            if started >= compare_at:
                compare_at = started + self._compared_every
                for family in self._places:
                    self._drifted(Drift(family, "compared by the clock", edits=0, everything=True))
            for family, place in self._places.items():
                try:
                    self._check(family, place)
                except (OSError, IptablesRefusedError, IptablesUnavailableError) as error:
                    log.debug("rules not looked at", ip_family=family, error=str(error))
                except Exception:
                    log.exception("rules not looked at", ip_family=family)
            rest = max(PERIOD, (time.monotonic() - started) * (1 / SHARE - 1))

    def _check(self, family: Family, place: _Place) -> None:
        if not self._locks[family].acquire(blocking=False):
            return  # a call of ours runs; the next look is soon
        try:
            self._look(family, place)
            sizes = self._sizes[family].read()
        finally:
            self._locks[family].release()
        expected, calls = place.expected(), place.calls
        if not expected:
            return
        if place.known is None:
            place.changed = True  # as after a start that had nothing to write: what there is has to be looked at once
        if not place.changed:
            return
        wrong = audit({table: place.tools.save(table) for table in Table}, expected)
        with self._locks[family]:
            if place.calls != calls or place.expected() is not expected:
                return  # something was written meanwhile
            place.changed, place.known = False, sizes
        if wrong is None:
            self._drifted(Drift(family, "rules of Services are missing, or others are among them", everything=True))
        elif wrong:
            what = "rules missing or added in " + ", ".join(sorted(wrong)[:5])
            self._drifted(Drift(family, what, chains=wrong))
