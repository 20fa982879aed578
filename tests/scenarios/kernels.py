"""The kernels in memory that a scenario can be played on, one for each mode."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Protocol

from proxyd.desired.services import Lookup
from proxyd.ipt.style import Style
from proxyd.model import FAMILIES, Family
from proxyd.sync.family import FamilyRules
from proxyd.sync.ipt.reconcile import IptReconciler
from proxyd.sync.nft.reconcile import NftReconciler
from tests import ipt_world, world
from tests.fakes import ipt_packets, packets
from tests.fakes.ipt_kernel import FakeKernel
from tests.fakes.packets import Host, Outcome, Packet
from tests.fakes.ruleset import FakeRuleset


class Kernel(Protocol):
    """All rules of a node in one mode."""

    rejects_other_ports: bool
    """Whether what is sent to other ports of a cluster IP is refused."""

    def rules(self, family: Family, lookup: Lookup) -> FamilyRules:
        """What writes the rules of a family."""

    def distribution(self, family: Family, packet: Packet, host: Host) -> list[tuple[Fraction, Outcome]]:
        """All outcomes of a packet with their probabilities."""

    def normal(self, family: Family) -> Any:
        """What it holds, without what may differ between equals."""

    def refused(self) -> list[Any]:
        """The writes that were refused."""


class Nftables:
    """nftables mode."""

    rejects_other_ports = True

    def __init__(self) -> None:
        self._ruleset = FakeRuleset()

    def rules(self, family: Family, lookup: Lookup) -> FamilyRules:
        return NftReconciler(family, self._ruleset, lookup)

    def distribution(self, family: Family, packet: Packet, host: Host) -> list[tuple[Fraction, Outcome]]:
        return packets.distribution(self._ruleset, packet, host)

    def normal(self, family: Family) -> Any:
        return world.normal(self._ruleset, family)

    def refused(self) -> list[Any]:
        return list(self._ruleset.refused)


class Iptables:
    """iptables mode."""

    rejects_other_ports = False

    def __init__(self) -> None:
        self._kernels = {family: FakeKernel(family) for family in FAMILIES}

    def rules(self, family: Family, lookup: Lookup) -> FamilyRules:
        return IptReconciler(family, self._kernels[family], lookup, Style())

    def distribution(self, family: Family, packet: Packet, host: Host) -> list[tuple[Fraction, Outcome]]:
        return ipt_packets.distribution(self._kernels[family].rules, packet, host)

    def normal(self, family: Family) -> Any:
        return ipt_world.normal(self._kernels[family])

    def refused(self) -> list[Any]:
        return [each for kernel in self._kernels.values() for each in kernel.refused]


KERNELS: dict[str, type[Nftables] | type[Iptables]] = {"nftables": Nftables, "iptables": Iptables}
