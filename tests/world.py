"""A node in memory: a store, one family's reconciler and a kernel, with packets to ask what the rules do."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from typing import Any

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.kernel.refused import KernelRefusedError
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, Node, Reason, Service, ServiceKey
from proxyd.nft.objects import Chain
from proxyd.sync.family import FamilyRules
from proxyd.sync.nft.reconcile import NftReconciler
from tests import build
from tests.fakes.packets import Host, Outcome, Packet, distribution
from tests.fakes.ruleset import FakeRuleset

HOST = Host(frozenset(build.NODE_IP.values()))
# Where connections can come from, by family: source address and incoming interface.
ORIGINS = {
    Family.IPV4: {"pod": ("10.244.1.99", "veth9"), "node": ("192.0.2.11", ""), "outside": ("203.0.113.9", "eth0")},
    Family.IPV6: {
        "pod": ("fd00:10:244:1::99", "veth9"),
        "node": ("2001:db8:2::11", ""),
        "outside": ("2001:db8:9::9", "eth0"),
    },
}
Object = Service | EndpointSlice | Node
Outcomes = list[tuple[Fraction, Outcome]]


class AnyWorld(ABC):
    """One family of one node in either mode: what changes, what is written, where connections go then."""

    reconciler: FamilyRules

    def __init__(self, *objects: Object, family: Family, **settings: Any) -> None:
        self.family = family
        self.store: Store = build.store(*objects)
        self.settings = build.settings(family, **settings)
        self.stopped = False
        # What was handed over for a look at its flows.
        self.cleaned: list[dict[FrontendKey, Live]] = []

    @abstractmethod
    def restart(self) -> None:
        """A new daemon on the rules that the old one left."""

    @abstractmethod
    def outcomes(self, packet: Packet, host: Host) -> Outcomes:
        """All outcomes of a packet."""

    def put(self, *objects: Object) -> None:
        for each in objects:
            self._intake(each).put(build.decoded(each))

    def remove(self, *objects: Object) -> None:
        for each in objects:
            self._intake(each).remove(build.decoded(each).key)

    def _intake(self, each: Object) -> Any:
        match each:
            case Service():
                return self.store.services
            case EndpointSlice():
                return self.store.slices
            case _:
                return self.store.nodes

    def sync(self, dirty: Iterable[ServiceKey] = ()) -> None:
        """One pass over what changed."""
        self.reconciler.sync(self.store.take().services | set(dirty), self.store.keys, self.settings)

    def try_sync(self) -> bool:
        """One pass; gives whether it succeeded."""
        try:
            self.sync()
        except KernelRefusedError:
            return False
        return True

    def retry_quarantined(self) -> None:
        """Services that were refused are tried once more, as from time to time."""
        self.reconciler.retry_quarantined(self.store.keys)

    def settle(self, passes: int = 10) -> None:
        """Passes until nothing is owed, then deletes what is not used any more."""
        for _ in range(passes):
            if self.try_sync():
                break
        else:
            raise AssertionError("still owed")
        for _ in range(passes):
            if not self.reconciler.cleanup_owed:
                return
            with suppress(KernelRefusedError):
                self.reconciler.cleanup()
        raise AssertionError("cleanup still owed")

    def quarantined(self) -> set[ServiceKey]:
        return {
            key
            for key, findings in self.reconciler.findings.items()
            if any(each.reason is Reason.KERNEL_REFUSED for each in findings)
        }

    def ask(
        self, destination: str, port: int = 80, *, by: str = "outside", protocol: str = "tcp", host: Host = HOST
    ) -> Outcomes:
        """All outcomes of a connection from a pod, the node itself or outside."""
        source, iif = ORIGINS[self.family][by]
        return self.outcomes(Packet(source, destination, port, protocol, iif), host)

    def reaches(self, destination: str, port: int = 80, **how: Any) -> dict[str, Fraction]:
        """The endpoints' addresses that a connection may get to, with probabilities; or a verdict other than accept."""
        found: Counter[str] = Counter()
        for probability, outcome in self.ask(destination, port, **how):
            found[outcome.destination[0] if outcome.verdict == "accept" else outcome.verdict] += probability  # type: ignore[assignment]
        return {name: Fraction(each) for name, each in found.items()}


class World(AnyWorld):
    """nftables mode."""

    reconciler: NftReconciler

    def __init__(
        self,
        *objects: Object,
        family: Family = Family.IPV4,
        ruleset: FakeRuleset | None = None,
        clean_flows: Callable[[Family, Mapping[FrontendKey, Live]], None] | None = None,
        grace: float = 0.0,
        **settings: Any,
    ) -> None:
        super().__init__(*objects, family=family, **settings)
        self.grace = grace
        self.ruleset = ruleset if ruleset is not None else FakeRuleset()
        self.clean_flows = clean_flows or (lambda _, changed: self.cleaned.append(dict(changed)))
        self.restart()

    def restart(self) -> None:
        self.reconciler = NftReconciler(
            self.family,
            self.ruleset,
            self.store.service,
            lambda: self.stopped,
            clean_flows=self.clean_flows,
            grace=self.grace,
        )

    def outcomes(self, packet: Packet, host: Host) -> Outcomes:
        return distribution(self.ruleset, packet, host)


def even(*names: str) -> dict[str, Fraction]:
    """Each of these with the same probability."""
    return {name: Fraction(1, len(names)) for name in names}


_GENERATION = re.compile(r"g\d+/")
_LISTS = re.compile(r"g/(nodeport-)?endpoints-")


def normal(ruleset: FakeRuleset, family: Family) -> dict[str, object]:
    """What a kernel holds, without what may differ between equals: number of the generation, order of endpoints."""
    table = ruleset.tables.get(family)
    chains = table.chains.values() if table is not None else ()
    out: dict[str, object] = {_plain(each.name): _rules(each) for each in chains}
    for name, elements in ruleset.elements(family).items():
        plain = _plain(name)
        if _LISTS.match(plain):
            out[plain] = _lists(elements)
        else:
            out[plain] = {key: _plain(value) for key, value in elements.items()}
    return out


def _lists(elements: dict[str, str]) -> dict[str, tuple[list[int], list[str]]]:
    """Of each endpoint list the indexes and the endpoints, each sorted."""
    found: dict[str, tuple[list[int], list[str]]] = {}
    for key, value in elements.items():
        frontend, _, index = key.rpartition(" . ")
        base = int(index) >> 16
        indexes, values = found.setdefault(f"{frontend} {base}", ([], []))
        indexes.append(int(index))
        values.append(value)
    return {frontend: (sorted(indexes), sorted(values)) for frontend, (indexes, values) in found.items()}


def _rules(chain: Chain) -> str:
    return _plain(repr(chain.rules))


def _plain(text: str) -> str:
    return _GENERATION.sub("g/", text)
