"""A node in memory in iptables mode: as ``tests.world``, with the in-memory rules of iptables."""

from __future__ import annotations

from typing import Any

from proxyd.ipt.style import Style
from proxyd.model import Family
from proxyd.sync.ipt.reconcile import IptReconciler
from tests.fakes.ipt_kernel import FakeKernel
from tests.fakes.ipt_packets import distribution
from tests.fakes.packets import Host, Packet
from tests.world import AnyWorld, Object, Outcomes


class IptWorld(AnyWorld):
    """iptables mode."""

    reconciler: IptReconciler

    def __init__(
        self, *objects: Object, family: Family = Family.IPV4, kernel: FakeKernel | None = None, **settings: Any
    ) -> None:
        super().__init__(*objects, family=family, **settings)
        self.kernel = kernel if kernel is not None else FakeKernel(family)
        self.style = Style()
        self.restart()

    def restart(self) -> None:
        self.reconciler = IptReconciler(
            self.family,
            self.kernel,
            self.store.service,
            self.style,
            lambda: self.stopped,
            clean_flows=lambda _, changed: self.cleaned.append(dict(changed)),
        )

    def outcomes(self, packet: Packet, host: Host) -> Outcomes:
        return distribution(self.kernel.rules, packet, host)


def normal(kernel: FakeKernel) -> dict[tuple[str, str], list[str]]:
    """What a kernel holds, without the order of what Services have in common chains."""
    return {
        (table, name): sorted(map(repr, rules)) if _common(name) else list(map(repr, rules))
        for table, chains in kernel.rules.tables.items()
        for name, rules in chains.items()
    }


def _common(name: str) -> bool:
    return name.count("-") == 1 or name in ("KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL")
