"""A connection tracker in memory. tests/kernel/test_flows_contract.py holds it against the real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.desired.flows import Live, is_stale
from proxyd.kernel.flows import FlowsError, Newer
from proxyd.model import Family

Given = Mapping[FrontendKey, Live]


class Flow(NamedTuple):
    """A tracked flow: who sent it where, and where its answers come from (the destination itself: not translated)."""

    source: Backend
    destination: Backend
    answers: Backend
    protocol: str = "udp"
    zone: int = 0


class FakeFlowTable:
    """Implements ``FlowTable`` in memory. ``calls`` are the families and frontends that were asked about."""

    def __init__(self) -> None:
        self.flows: dict[Family, set[Flow]] = {family: set() for family in Family}
        self.addresses: dict[Family, list[str]] = {Family.IPV4: ["127.0.0.1"], Family.IPV6: ["::1"]}
        self.calls: list[tuple[Family, Given]] = []
        self.trouble: list[Exception] = []
        self.waits: Callable[[], object] = lambda: None
        self._lock = threading.Lock()

    def add(self, family: Family, *flows: Flow) -> None:
        self.flows[family].update(flows)

    def listed(self, family: Family) -> set[Flow]:
        return set(self.flows[family])

    def add_address(self, family: Family, address: str) -> None:
        self.addresses[family].append(address)

    def fail_next(self, *errors: Exception | str) -> None:
        """Fails as often as this, each time before anything is deleted."""
        self.trouble += [FlowsError(each) if isinstance(each, str) else each for each in errors]

    def delete_stale(self, family: Family, frontends: Given, newer: Newer = dict) -> int:
        """See ``FlowTable``."""
        self.waits()
        frontends = {**frontends, **newer()}
        with self._lock:
            self.calls.append((family, dict(frontends)))
            if self.trouble:
                raise self.trouble.pop(0)
            stale = {flow for flow in self.flows[family] if self._is_stale(family, flow, frontends)}
            self.flows[family] -= stale
            return len(stale)

    def _is_stale(self, family: Family, flow: Flow, frontends: Given) -> bool:
        address, port = flow.destination
        live = frontends.get(FrontendKey(address, flow.protocol, port))
        if not live and address in self.addresses[family]:
            live = frontends.get(FrontendKey("", flow.protocol, port), live)
        return live is not None and is_stale(flow.protocol, flow.destination, flow.answers, live)
