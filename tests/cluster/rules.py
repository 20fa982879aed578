"""A node's rules, written by proxyd's own parts in this process, in any mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from proxyd.ipt.style import Style
from proxyd.kernel.ipt.iptables import IptablesTools
from proxyd.kernel.ipt.rules import ToolRules
from proxyd.kernel.nft.libnftables import LibNftables
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, NodeSettings, Service, ServiceKey
from proxyd.sync.family import FamilyRules
from proxyd.sync.ipt.reconcile import IptReconciler
from proxyd.sync.nft.reconcile import NftReconciler
from tests import build
from tests.cluster.modes import Mode, flush
from tests.cluster.namespaces import inside
from tests.topology import Topology


class Rules:
    """One node, and what is served on it."""

    def __init__(self, topology: Topology, mode: Mode = Mode.NFTABLES) -> None:
        self.node = topology.node
        self.mode = mode
        self._topology = topology
        self._served: object = None
        self._reconcilers: list[tuple[FamilyRules, NodeSettings]] = []
        self._make: Callable[[Family, Store], FamilyRules] = self._iptables
        if mode is Mode.NFTABLES:
            nft = inside(self.node, LibNftables)
            self._make = lambda family, store: NftReconciler(family, nft, store.service)

    def _iptables(self, family: Family, store: Store) -> FamilyRules:
        return IptReconciler(family, ToolRules(IptablesTools(family, self.mode.backend)), store.service, Style())

    def serve(self, *objects: Service | EndpointSlice, **settings: Any) -> None:
        """Takes all rules away, and writes those for these objects; ``settings`` are fields of NodeSettings."""
        flush(self._topology, legacy=self.mode is Mode.LEGACY)
        self._served = None
        self._store = store = build.store(*objects)
        store.take()
        self._reconcilers = [(self._make(family, store), build.settings(family, **settings)) for family in Family]
        self._sync(store.keys())
        self._served = (objects, settings)

    def ensure(self, *objects: Service | EndpointSlice, **settings: Any) -> None:
        """As ``serve``; does nothing where exactly this is being served. For tests that only look."""
        if self._served != (objects, settings):
            self.serve(*objects, **settings)

    def change(self, *objects: Service | EndpointSlice, gone: Iterable[Service | EndpointSlice] = ()) -> None:
        """Takes objects as they are now, and others away, and writes what follows in one pass, which must just work."""
        for each in (*objects, *gone):
            intake: Any = self._store.services if isinstance(each, Service) else self._store.slices
            decoded = build.decoded(each)
            if each in objects:
                intake.put(decoded)
            else:
                intake.remove(decoded.key)
        self._served = None
        self._sync(self._store.take().services)
        assert not any(reconciler.refusals for reconciler, _ in self._reconcilers), "a write was refused"

    def forget_served(self) -> None:
        """Has the next ``ensure`` write; for tests that took rules away themselves."""
        self._served = None

    def cleanup(self) -> None:
        """Deletes what nothing uses any more."""
        for reconciler, _ in self._reconcilers:
            inside(self.node, reconciler.cleanup)

    def write_anew(self) -> None:
        """Writes everything once more, beside or over what is there, as after a restart."""
        for reconciler, _ in self._reconcilers:
            reconciler.forget()
        self._sync(self._store.keys())
        self.cleanup()

    def _sync(self, dirty: Iterable[ServiceKey]) -> None:
        for reconciler, of_family in self._reconcilers:
            inside(self.node, lambda r=reconciler, s=of_family: r.sync(dirty, self._store.keys, s))  # type: ignore[misc]
