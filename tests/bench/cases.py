"""The loads that are measured, and the measuring of one of them in the network namespace that it is called in."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from typing import NamedTuple

from proxyd.ipt.style import Style
from proxyd.kernel.ipt.iptables import Backend, IptablesTools
from proxyd.kernel.ipt.rules import ToolRules
from proxyd.kernel.nft.libnftables import LibNftables
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, Service
from proxyd.sync.ipt.reconcile import IptReconciler
from proxyd.sync.nft.reconcile import NftReconciler
from tests.build import decoded, endpoint, endpoint_slice, port, service, settings, store

ENDPOINTS = 10
CHANGES = 40
# In a case with slow changes: that many, and so many of many at once.
FEW, AT_ONCE = 5, 10


class Measured(NamedTuple):
    """What one load costs: times in seconds, memory in MB above what the load itself takes.

    ``full``: everything written; ``again``: everything written beside what is there; ``change``: one endpoint of one
    Service replaced; ``churn``: a pass that takes ``AT_ONCE`` of these.
    """

    services: int
    full: float
    again: float
    change: float
    churn: float
    memory: float


def plain(index: int) -> Service:
    return service(f"s{index}", ip=_vip(index))


def local_load_balancer(index: int) -> Service:
    """Worst for elements: two endpoint lists for the address and for the node port."""
    return service(
        f"s{index}",
        ip=_vip(index),
        ports=(port(node_port=10000 + index),),
        ingress_ips=(f"203.{index // 62500}.{index // 250 % 250}.{index % 250 + 1}",),
        external_local=True,
    )


def affinity(index: int) -> Service:
    """Worst for chains: one with rules for every endpoint, for each Service."""
    return service(f"s{index}", ip=_vip(index), affinity_seconds=10800)


def nftables(held: Store) -> NftReconciler:
    return NftReconciler(Family.IPV4, LibNftables(), held.service)


def iptables_nft(held: Store) -> IptReconciler:
    return _iptables(held, Backend.NFT)


def iptables_legacy(held: Store) -> IptReconciler:
    return _iptables(held, Backend.LEGACY)


def _iptables(held: Store, backend: Backend) -> IptReconciler:
    return IptReconciler(Family.IPV4, ToolRules(IptablesTools(Family.IPV4, backend)), held.service, Style())


class Case(NamedTuple):
    """A load, and what writes it. Cases with the same ``rules`` are compared with the first of them."""

    name: str
    services: int
    make: Callable[[int], Service]
    rules: Callable[[Store], NftReconciler | IptReconciler] = nftables
    changes: int = CHANGES


CASES = {
    "1k": Case("1,000 Services", 1000, plain),
    "5k": Case("5,000 Services", 5000, plain),
    "20k": Case("20,000 Services", 20000, plain),
    "local": Case("5,000 load balancers with externalTrafficPolicy Local", 5000, local_load_balancer),
    "affinity": Case(
        "5,000 Services, 1,000 with ClientIP affinity", 5000, lambda i: (affinity if i % 5 == 0 else plain)(i)
    ),
    "ipt-nft-500": Case("iptables mode, nft: 500 Services", 500, plain, iptables_nft, FEW),
    "ipt-nft-2k": Case("iptables mode, nft: 2,000 Services", 2000, plain, iptables_nft, FEW),
    "ipt-legacy-500": Case("iptables mode, legacy: 500 Services", 500, plain, iptables_legacy, FEW),
    "ipt-legacy-2k": Case("iptables mode, legacy: 2,000 Services", 2000, plain, iptables_legacy, FEW),
}


def _vip(index: int) -> str:
    return f"10.{100 + index // 62500}.{index // 250 % 250 + 1}.{index % 250 + 1}"


def _endpoints(index: int, shift: int = 0) -> EndpointSlice:
    numbers = (index * ENDPOINTS + each for each in range(shift, shift + ENDPOINTS))
    addresses = (f"10.{200 + n // 62500}.{n // 250 % 250}.{n % 250 + 1}" for n in numbers)
    # Every third one on this node, so that Local policies have both lists.
    built = (endpoint(address, "node1" if i % 3 == 0 else "node2") for i, address in enumerate(addresses))
    return endpoint_slice(f"s{index}", *built)


def _objects(case: Case) -> Iterator[Service | EndpointSlice]:
    for index in range(case.services):
        yield case.make(index)
        yield _endpoints(index)


def measure(case: Case) -> Measured:
    """Loads everything, changes one endpoint many times, then loads everything beside what is there."""
    held = store(*_objects(case))
    before = _peak()
    rules = case.rules(held)
    full = _pass(rules, held)
    numbers = count()
    change = statistics.median(_changed(rules, held, case, numbers, 1) for _ in range(case.changes))
    churn = statistics.median(_changed(rules, held, case, numbers, AT_ONCE) for _ in range(FEW))
    memory = _peak() - before
    rules.forget()
    again = _pass(rules, held)
    rules.cleanup()
    return Measured(case.services, full, again, change, churn, memory)


def _changed(rules: NftReconciler | IptReconciler, held: Store, case: Case, numbers: Iterator[int], many: int) -> float:
    """Replaces one endpoint of each of so many Services, in one pass."""
    for number in islice(numbers, many):
        held.slices.put(decoded(_endpoints(number % case.services, shift=1 + number // case.services)))
    return _pass(rules, held)


def _pass(rules: NftReconciler | IptReconciler, held: Store) -> float:
    started = time.perf_counter()
    rules.sync(held.take().services, held.keys, settings())
    return time.perf_counter() - started


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
