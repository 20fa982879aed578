"""A packet that a commit overtakes: sent on by the dispatch as it was before, it finds the rest as it is after."""

from __future__ import annotations

import pytest

from proxyd.model import Family
from proxyd.nft.objects import Element, Transaction
from tests import build
from tests.fakes.ruleset import FakeRuleset
from tests.world import World, even

V4 = Family.IPV4
BALANCER = "203.0.113.10"
HERE, THERE = "10.244.1.2", "10.244.2.2"
SLICE = build.endpoint_slice("web", HERE, build.endpoint(THERE, "node2"))
FRONTENDS = {
    (BALANCER, 80): Element("g1/service-ips", f"{BALANCER} . tcp . 80"),
    (build.NODE_IP[V4], 30080): Element("g1/service-nodeports", "tcp . 30080"),
}


def world(ruleset: FakeRuleset, *, local: bool) -> World:
    made = World(SLICE, ruleset=ruleset)
    policy(made, local=local)
    return made


def policy(made: World, *, local: bool) -> None:
    ports = (build.port(node_port=30080),)
    made.put(build.service(ports=ports, ingress_ips=(BALANCER,), external_local=local))
    made.sync()


def overtake(made: World, before: dict[str, dict[str, str]]) -> None:
    """Has the dispatch lead where it led before, and nothing else."""
    for place in FRONTENDS.values():
        old = place._replace(value=before[place.container][place.key])
        made.ruleset.commit(Transaction(V4, delete_elements=(place,), add_elements=(old,)))


@pytest.mark.parametrize("by", ["outside", "pod", "node"])
@pytest.mark.parametrize("local", [True, False])
def test_a_packet_is_served_at_the_moment_when_the_external_policy_changes(
    ruleset: FakeRuleset, by: str, local: bool
) -> None:
    made = world(ruleset, local=local)
    before = ruleset.elements(V4)
    policy(made, local=not local)
    overtake(made, before)
    for (address, port), place in FRONTENDS.items():
        assert ruleset.elements(V4)[place.container][place.key] == before[place.container][place.key]
        assert made.reaches(address, port, by=by) == even(HERE, THERE)
