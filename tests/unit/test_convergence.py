"""Any history of changes and refusals ends where a fresh start from the last state begins."""

from __future__ import annotations

import os
from itertools import product
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from proxyd.model import Endpoint, EndpointSlice, Family, Service, ServicePort, SlicePort
from tests import build
from tests.fakes.ipt_kernel import FakeKernel
from tests.fakes.ruleset import FakeRuleset
from tests.world import ORIGINS, World, normal

ADDRESSES = ["10.96.0.1", "10.96.0.2", "198.51.100.1", "198.51.100.2"]
PORTS = [("http", "tcp", 80), ("dns", "udp", 80), ("https", "tcp", 443)]
NODE_PORTS = [30080, 30443]
NAMES = ["a", "b", "c"]
ENDPOINTS = [f"10.244.{i % 2 + 1}.{i}" for i in range(1, 6)]
SETTINGS = settings(
    max_examples=int(os.environ.get("PROXYD_EXAMPLES", "60")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


def several(pool: list[str], most: int = 2) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(pool), max_size=most, unique=True).map(tuple)


def port(known: tuple[str, str, int]) -> st.SearchStrategy[ServicePort]:
    name, protocol, number = known
    return st.sampled_from([0, 0, *NODE_PORTS]).map(lambda node_port: ServicePort(name, protocol, number, node_port))


ports = st.lists(st.sampled_from(PORTS), min_size=1, max_size=3, unique=True).flatmap(
    lambda chosen: st.tuples(*map(port, chosen))
)
services = st.builds(
    Service,
    st.sampled_from(NAMES).map(build.key),
    ports=ports,
    cluster_ips=st.sampled_from(ADDRESSES[:3]).map(lambda ip: (ip,)),
    external_ips=several(ADDRESSES),
    ingress_ips=several(ADDRESSES[1:]),
    source_ranges=several(["203.0.113.0/24", "203.0.113.0/25", "192.0.2.0/24", "10.0.0.0/8", "nonsense"]),
    affinity_seconds=st.sampled_from([0, 0, 60, 10800]),
    internal_local=st.booleans(),
    external_local=st.booleans(),
    created=st.sampled_from(["", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
)
endpoints = st.builds(
    Endpoint,
    st.sampled_from(ENDPOINTS),
    ready=st.sampled_from([True, True, False]),
    serving=st.booleans(),
    terminating=st.booleans(),
    node=st.sampled_from([build.NODE, "node2", None]),
    zone_hints=st.sampled_from([(), ("za",), ("zb",)]),
)
slices = st.builds(
    lambda owner, name, found, named: EndpointSlice(
        "default", f"{owner}-{name}", build.key(owner), Family.IPV4, tuple(found), named
    ),
    st.sampled_from(NAMES),
    st.sampled_from(["1", "2"]),
    st.lists(endpoints, max_size=4),
    st.sampled_from([8080, 9090]).map(lambda n: tuple(SlicePort(name, proto, n) for name, proto, _ in PORTS)),
)


class Batch(NamedTuple):
    """Changes that come between two passes, and the trouble that the kernel makes then: its first ``after`` commits
    are fine, then comes a refusal, or a commit of which it wrongly says that it was refused."""

    changes: list[tuple[bool, Service | EndpointSlice]]
    trouble: str = ""
    after: int = 0


batches = st.lists(
    st.builds(
        Batch,
        st.lists(st.tuples(st.sampled_from([True, True, True, False]), services | slices), min_size=1, max_size=4),
        st.sampled_from(["", "", "", "refused", "unclear"]),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=6,
)


@SETTINGS
@given(st.lists(services | slices, max_size=6), batches)
def test_any_history_ends_in_the_forwarding_of_a_fresh_start(
    first: list[Service | EndpointSlice], history: list[Batch]
) -> None:
    lived = World(*first)
    lived.try_sync()
    for batch in history:
        for present, each in batch.changes:
            (lived.put if present else lived.remove)(each)
        make_trouble(lived.ruleset, batch)
        lived.try_sync()
        lived.ruleset.recover()
        if len(batch.changes) == 1:
            lived.settle()
    lived.settle()
    lived.sync(lived.quarantined())
    lived.settle()

    fresh = World(*lived.store.services.objects.values(), *lived.store.slices.objects.values())
    fresh.settle()
    assert normal(lived.ruleset, Family.IPV4) == normal(fresh.ruleset, Family.IPV4)
    assert lived.reconciler.findings == fresh.reconciler.findings
    assert lived.reconciler.tally.total == fresh.reconciler.tally.total
    for how in _connections():
        assert lived.ask(**how) == fresh.ask(**how), how


def make_trouble(kernel: FakeRuleset | FakeKernel, batch: Batch) -> None:
    """Has a kernel in memory make the trouble of a batch."""
    seen = iter(range(batch.after + 1))

    def now(_: object) -> bool:
        return next(seen, None) == batch.after

    if batch.trouble == "refused":
        kernel.refuse_if(now)
    elif batch.trouble == "unclear":
        kernel.unclear_if(now)


def _connections() -> list[dict[str, Any]]:
    """Every frontend that could exist, from everywhere."""
    frontends = [(a, p, n) for a, (_, p, n) in product(ADDRESSES, PORTS)]
    frontends += [(build.NODE_IP[Family.IPV4], p, n) for p, n in product(("tcp", "udp"), NODE_PORTS)]
    return [
        {"destination": a, "protocol": p, "port": n, "by": by}
        for (a, p, n), by in product(frontends, ORIGINS[Family.IPV4])
    ]
