"""What can be read of counters: the same claims on the in-memory kernel and on the real one."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.kernel.nft.counters import Counters, EndpointCount, FrontendCount, NetlinkCounters
from proxyd.model import FAMILIES, Family, ServicePort, SlicePort
from proxyd.nft.layout import INVALID_DROPPED, LOCAL_BASE, TABLE_COMMENT
from proxyd.nft.objects import Element, Transaction
from proxyd.sync.nft.reconcile import NftReconciler
from tests import build
from tests.fakes.counters import FakeCounters
from tests.fakes.ruleset import FakeRuleset
from tests.kernel.conftest import EitherRuleset
from tests.netns import RealRuleset, why_not

CLUSTER_IP = {Family.IPV4: "10.96.0.1", Family.IPV6: "fd00:10:96::1"}
LOAD_BALANCER = {Family.IPV4: "203.0.113.9", Family.IPV6: "2001:db8:113::9"}
LONG = "n" * 63


def pod(family: Family, number: int) -> str:
    return f"10.244.{number // 250}.{number % 250 + 1}" if family is Family.IPV4 else f"fd00:10:244::{number + 1:x}"


class Kernel:
    """A kernel that can be written to, and its counters."""

    def __init__(self, ruleset: EitherRuleset, counters: Counters) -> None:
        self.ruleset, self.counters = ruleset, counters

    def serve(self, family: Family, pods: int = 2, generation: int = 1, **service: Any) -> NftReconciler:
        fields = {"cluster_ips": (CLUSTER_IP[family],), "ports": (build.port(),), **service}
        slice_ = build.endpoint_slice(
            "web",
            *(build.endpoint(pod(family, n), "node1" if n % 2 else "node2") for n in range(pods)),
            namespace=service.get("namespace", "default"),
            family=family,
            ports=tuple(SlicePort(port.name, port.protocol, 8080) for port in fields["ports"]),
        )
        store = build.store(build.service("web", **fields), slice_)
        reconciler = NftReconciler(family, self.ruleset, store.service)
        for _ in range(generation):
            reconciler.forget()
            reconciler.sync(store.keys(), store.keys, build.settings(family))
        return reconciler

    def frontends(self, family: Family, generation: int = 1) -> dict[FrontendKey, FrontendCount]:
        found: list[FrontendCount] = []
        assert self.counters.frontends(family, generation, found.append)
        assert len({each.key for each in found}) == len(found)
        return {each.key: each for each in found}


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kernel)])
def kernel(request: pytest.FixtureRequest) -> Kernel:
    if request.param == "fake":
        fake = FakeRuleset()
        return Kernel(fake, FakeCounters(fake))
    if reason := why_not():
        pytest.skip(reason)
    counters: list[NetlinkCounters] = []
    real = RealRuleset(also=lambda _: counters.append(NetlinkCounters()))
    return Kernel(real, counters[0])


def element(kernel: Kernel, family: Family, container: str, key: str, comment: str = "") -> Element:
    return Element(container, key, kernel.ruleset.elements(family)[container][key], comment)


@pytest.mark.parametrize("family", FAMILIES)
def test_frontends_are_told_with_what_they_have_counted_and_whose_they_are(kernel: Kernel, family: Family) -> None:
    kernel.serve(
        family,
        ports=(ServicePort("http", "tcp", 80, 30080), ServicePort("dns", "udp", 53)),
        ingress_ips=(LOAD_BALANCER[family],),
    )
    for key, packets in ((f"{CLUSTER_IP[family]} . tcp . 80", 7), (f"{LOAD_BALANCER[family]} . udp . 53", 2**40)):
        comment = "default/web:http" if "tcp" in key else "default/web:dns"
        kernel.ruleset.has_passed(family, element(kernel, family, "g1/service-ips", key, comment), packets)
    node_port = element(kernel, family, "g1/service-nodeports", "tcp . 30080", "default/web:http")
    kernel.ruleset.has_passed(family, node_port, 3)
    address, balanced = CLUSTER_IP[family], LOAD_BALANCER[family]
    told = {
        key: (each.generation, each.comment, each.packets, each.leads_to)
        for key, each in kernel.frontends(family).items()
    }
    assert told == {
        (address, "tcp", 80): (1, "default/web:http", 7, "g1/lb-tcp-2"),
        (address, "udp", 53): (1, "default/web:dns", 0, "g1/lb-udp-2"),
        (balanced, "tcp", 80): (1, "default/web:http", 0, "g1/external-lb-tcp-2"),
        (balanced, "udp", 53): (1, "default/web:dns", 2**40, "g1/external-lb-udp-2"),
        ("", "tcp", 30080): (1, "default/web:http", 3, "g1/external-np-tcp-2"),
    }


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pods", [0, 1, 31, 32, 33, 70])
def test_endpoints_are_told_up_to_the_last_or_as_many_as_wanted(kernel: Kernel, family: Family, pods: int) -> None:
    kernel.serve(family, pods)
    key = FrontendKey(CLUSTER_IP[family], "tcp", 80)
    if pods:
        last = element(kernel, family, "g1/endpoints-tcp", f"{key.address} . 80 . {pods - 1}")
        kernel.ruleset.has_passed(family, last, 5)
    expected = [EndpointCount(1, key, n, Backend(pod(family, n), 8080), 5 if n == pods - 1 else 0) for n in range(pods)]
    assert kernel.counters.endpoints(family, 1, key, 1000) == expected
    for most in (1, 32, 40):
        assert kernel.counters.endpoints(family, 1, key, most) == expected[:most]


@pytest.mark.parametrize("family", FAMILIES)
def test_both_lists_of_a_frontend_are_told(kernel: Kernel, family: Family) -> None:
    kernel.serve(
        family,
        3,
        ports=(ServicePort("http", "tcp", 80, 30080),),
        ingress_ips=(LOAD_BALANCER[family],),
        external_local=True,
    )
    for key in (FrontendKey(LOAD_BALANCER[family], "tcp", 80), FrontendKey("", "tcp", 30080)):
        found = {each.place: each.endpoint.address for each in kernel.counters.endpoints(family, 1, key, 10)}
        assert found == {**{n: pod(family, n) for n in range(3)}, LOCAL_BASE: pod(family, 1)}


@pytest.mark.parametrize("family", FAMILIES)
def test_affinity_has_no_endpoints_that_count(kernel: Kernel, family: Family) -> None:
    kernel.serve(family, affinity_seconds=60)
    key = FrontendKey(CLUSTER_IP[family], "tcp", 80)
    assert kernel.frontends(family)[key].leads_to.startswith("g1/affinity-")
    assert kernel.counters.endpoints(family, 1, key, 10) == []


def test_generations_are_told_by_family(kernel: Kernel) -> None:
    four, six = FAMILIES
    assert kernel.counters.generations(four) == frozenset()
    reconciler = kernel.serve(four, generation=2)
    assert kernel.counters.generations(four) == {1, 2}
    assert kernel.counters.generations(six) == frozenset()
    reconciler.cleanup()
    assert kernel.counters.generations(four) == {2}
    assert kernel.frontends(four, 2)


def test_what_is_gone_is_neither_whole_nor_an_error(kernel: Kernel) -> None:
    nothing: list[FrontendCount] = []
    assert not kernel.counters.frontends(Family.IPV4, 1, nothing.append)
    assert kernel.counters.endpoints(Family.IPV4, 1, FrontendKey("10.96.0.1", "tcp", 80), 10) == []
    assert nothing == []


def test_the_longest_name_is_told_as_far_as_a_comment_reaches(kernel: Kernel) -> None:
    kernel.serve(Family.IPV4, namespace=LONG)
    (count,) = kernel.frontends(Family.IPV4).values()
    assert count.comment == f"{LONG}/web:http"


def test_a_named_counter_is_told_and_one_that_is_not_there_has_counted_nothing(kernel: Kernel) -> None:
    family = Family.IPV4
    assert kernel.counters.named(family, INVALID_DROPPED) == 0
    kernel.ruleset.commit(Transaction(family, table=TABLE_COMMENT))
    assert kernel.counters.named(family, INVALID_DROPPED) == 0
    kernel.ruleset.has_counted(family, INVALID_DROPPED, 2**33)
    assert kernel.counters.named(family, INVALID_DROPPED) == 2**33


@pytest.mark.kernel
@pytest.mark.parametrize("family", FAMILIES)
def test_thousands_are_told_once_each(family: Family) -> None:
    if reason := why_not():
        pytest.skip(reason)
    counters: list[NetlinkCounters] = []
    kernel = Kernel(RealRuleset(also=lambda _: counters.append(NetlinkCounters())), counters[0])
    kernel.serve(family, ports=tuple(ServicePort(f"p{n}", "tcp", 1000 + n) for n in range(3000)))
    assert len(kernel.frontends(family)) == 3000
