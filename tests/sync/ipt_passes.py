"""What tests of passes in iptables mode ask of a world, and the drift that they tell it of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxyd.ipt import names
from proxyd.ipt.objects import Table, Transaction
from proxyd.ipt.ownership import OWN_MARK
from proxyd.model import Family
from proxyd.nft.drift import Drift
from tests.fakes.ipt_kernel import FakeKernel
from tests.ipt_world import IptWorld
from tests.world import even

V4, V6 = Family.IPV4, Family.IPV6
NAT, FILTER = Table.NAT, Table.FILTER


def served(world: IptWorld, number: int, endpoints: int = 2) -> bool:
    """Whether the Service with this number of ``cluster`` leads evenly to all of its endpoints."""
    return world.reaches(f"10.96.0.{number}") == even(*(f"10.244.{number}.{i + 1}" for i in range(endpoints)))


def after_each_call(world: IptWorld, note: Callable[[], object]) -> list[Any]:
    """Collects what ``note`` gives after each call from now on."""
    noted: list[Any] = []
    world.kernel.watchers.append(lambda: noted.append(note()))
    return noted


def touches(number: int) -> Callable[[Transaction], bool]:
    """Tells calls that write a rule to an endpoint of the Service with this number of ``cluster``."""
    start = f"10.244.{number}."
    return lambda t: any(rule.to.startswith(start) for chain in t.chains for rule in chain.rules)


def service_chains(kernel: FakeKernel) -> set[str]:
    return {name for name in kernel.rules.tables[NAT] if name.startswith(names.PREFIXES)} - {OWN_MARK}


def drift(*chains: str, everything: bool = False) -> Drift:
    return Drift(V4, "test", chains=frozenset(chains), everything=everything)
