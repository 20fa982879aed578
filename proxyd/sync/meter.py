"""Reads the kernel's counters now and then, on a thread of its own, and keeps the totals for whoever shows them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import structlog

from proxyd.kernel.nft.counters import Counters, CountersError
from proxyd.model import Family
from proxyd.nft.layout import INVALID_DROPPED, LOCALHOST_REJECTED
from proxyd.sync.traffic import Limits, Totals, Traffic

log = structlog.get_logger("proxyd.sync")

# Seconds between two readings ...
PERIOD = 10.0
# ... and more of them where reading would take a larger share of one core than this.
SHARE = 0.01

# Seconds until the first reading; which Services to ask about endpoints is known from the second one on.
FIRST = 1.0


class Meter:
    """Totals of all families as of the last reading; ``traffic`` is immutable and swapped whole."""

    def __init__(self, counters: Counters, families: Sequence[Family], limits: Limits, period: float = PERIOD) -> None:
        self._counters = counters
        self._families = tuple(families)
        self._limits = limits
        self._period = period
        self._totals: dict[Family, Totals] = {}
        self._error = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)
        self.traffic: Mapping[Family, Traffic] = {}

    def start(self) -> None:
        """Notes what another process has left, and starts the thread. To be called before anything is written."""
        for family in self._families:
            try:
                old = self._counters.generations(family)
            except CountersError:
                old = frozenset()  # said at the first reading, if it lasts
            self._totals[family] = Totals(family, self._limits, old)
        self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """Ends the thread."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        rest = min(self._period, FIRST)
        while not self._stopped.wait(rest):
            started = time.thread_time()
            self._read()
            rest = max(self._period, (time.thread_time() - started) * (1 / SHARE - 1))

    def _read(self) -> None:
        try:
            self.traffic = {family: self._traffic(family, totals) for family, totals in self._totals.items()}
        except CountersError as error:
            self._tell(str(error))
        except Exception:
            log.exception("fault in reading counters")
        else:
            self._tell("")

    def _traffic(self, family: Family, totals: Totals) -> Traffic:
        totals.read(self._counters, time.monotonic())
        rejected = {protocol: self._counters.named(family, name) for protocol, name in LOCALHOST_REJECTED.items()}
        return Traffic(totals.snapshot(), self._counters.named(family, INVALID_DROPPED), rejected)

    def _tell(self, error: str) -> None:
        """The same again and again is worth one line."""
        if error and error != self._error:
            log.warning("counters not read, will be tried again", error=error)
        elif self._error and not error:
            log.info("counters read again")
        self._error = error
