"""A node in memory in iptables mode: as ``tests.world``, with the in-memory rules of iptables."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from proxyd.ipt.style import Style
from proxyd.kernel.ruleset import KernelRefusedError
from proxyd.model import Family, Reason, ServiceKey
from proxyd.sync.ipt_reconcile import IptReconciler
from tests import build
from tests.fakes.ipt_kernel import FakeKernel
from tests.fakes.ipt_packets import distribution
from tests.fakes.packets import Packet
from tests.world import HOST, ORIGINS, Object, Outcomes


class IptWorld:
    """One family of one node."""

    def __init__(
        self, *objects: Object, family: Family = Family.IPV4, kernel: FakeKernel | None = None, **settings: Any
    ) -> None:
        self.family = family
        self.store = build.store(*objects)
        self.kernel = kernel if kernel is not None else FakeKernel(family)
        self.settings = build.settings(family, **settings)
        self.stopped = False
        self.style = Style()
        self.cleaned: list[dict[Any, Any]] = []
        self.restart()

    def restart(self) -> None:
        """A new daemon on the rules that the old one left."""
        self.reconciler = IptReconciler(
            self.family,
            self.kernel,
            self.store.service,
            self.style,
            lambda: self.stopped,
            clean_flows=lambda _, changed: self.cleaned.append(dict(changed)),
        )

    def put(self, *objects: Object) -> None:
        for each in objects:
            self.store_of(each).put(build.decoded(each))

    def remove(self, *objects: Object) -> None:
        for each in objects:
            self.store_of(each).remove(build.decoded(each).key)

    def store_of(self, each: Object) -> Any:
        kinds = {"Service": self.store.services, "EndpointSlice": self.store.slices, "Node": self.store.nodes}
        return kinds[type(each).__name__]

    def sync(self, dirty: set[ServiceKey] | frozenset[ServiceKey] = frozenset()) -> None:
        """One pass over what changed."""
        self.reconciler.sync(self.store.take().services | set(dirty), self.store.keys, self.settings)

    def try_sync(self) -> bool:
        """One pass; gives whether it succeeded."""
        try:
            self.sync()
        except KernelRefusedError:
            return False
        return True

    def settle(self, passes: int = 10) -> None:
        """Passes until nothing is owed, then deletes what is not used any more."""
        for _ in range(passes):
            if self.try_sync():
                break
        else:
            raise AssertionError("still owed")
        while self.reconciler.cleanup_owed:
            self.reconciler.cleanup()

    def quarantined(self) -> set[ServiceKey]:
        refused = Reason.KERNEL_REFUSED
        return {k for k, found in self.reconciler.findings.items() if any(each.reason is refused for each in found)}

    def ask(self, destination: str, port: int = 80, *, by: str = "outside", protocol: str = "tcp") -> Outcomes:
        """All outcomes of a connection from a pod, the node itself or outside."""
        source, iif = ORIGINS[self.family][by]
        return distribution(self.kernel.rules, Packet(source, destination, port, protocol, iif), HOST)

    def reaches(self, destination: str, port: int = 80, **how: Any) -> dict[str, Fraction]:
        """The endpoints' addresses that a connection may get to, with probabilities; or a verdict other than accept."""
        found: Counter[str] = Counter()
        for probability, outcome in self.ask(destination, port, **how):
            found[outcome.destination[0] if outcome.verdict == "accept" else outcome.verdict] += probability  # type: ignore[assignment]
        return {name: Fraction(each) for name, each in found.items()}


def normal(kernel: FakeKernel) -> dict[tuple[str, str], list[str]]:
    """What a kernel holds, without the order of what Services have in common chains."""
    return {
        (table, name): sorted(map(repr, rules)) if _common(name) else list(map(repr, rules))
        for table, chains in kernel.rules.tables.items()
        for name, rules in chains.items()
    }


def _common(name: str) -> bool:
    return name.count("-") == 1 or name in ("KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL")
