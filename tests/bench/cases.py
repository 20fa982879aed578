"""The loads that are measured, and the measuring of one of them in the network namespace that it is called in."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from proxyd.kernel.libnftables import LibNftables
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, Service
from proxyd.sync.reconcile import Reconciler
from tests.build import decoded, endpoint, endpoint_slice, port, service, settings, store

ENDPOINTS = 10
CHANGES = 40


class Measured(NamedTuple):
    """What one load costs: times in seconds, memory in MB above what the load itself takes."""

    services: int
    full: float
    again: float
    change: float
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


class Case(NamedTuple):
    name: str
    services: int
    make: Callable[[int], Service]


CASES = {
    "1k": Case("1,000 Services", 1000, plain),
    "5k": Case("5,000 Services", 5000, plain),
    "20k": Case("20,000 Services", 20000, plain),
    "local": Case("5,000 load balancers with externalTrafficPolicy Local", 5000, local_load_balancer),
    "affinity": Case(
        "5,000 Services, 1,000 with ClientIP affinity", 5000, lambda i: (affinity if i % 5 == 0 else plain)(i)
    ),
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
    reconciler = Reconciler(Family.IPV4, LibNftables(), held.service)
    full = _pass(reconciler, held)
    changes = []
    for number in range(CHANGES):
        held.slices.put(decoded(_endpoints(number % case.services, shift=1 + number // case.services)))
        changes.append(_pass(reconciler, held))
    memory = _peak() - before
    reconciler.forget()
    again = _pass(reconciler, held)
    reconciler.cleanup()
    return Measured(case.services, full, again, statistics.median(changes), memory)


def _pass(reconciler: Reconciler, held: Store) -> float:
    started = time.perf_counter()
    reconciler.sync(held.take().services, held.keys, settings())
    return time.perf_counter() - started


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
