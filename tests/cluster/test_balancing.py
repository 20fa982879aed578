"""Which endpoint a connection gets: evenly by chance, or by ClientIP affinity."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from proxyd.model import EndpointSlice, Family, Service, SlicePort
from proxyd.nft import layout
from tests import build
from tests.cluster.cases import FAMILIES, FRONTENDS, NODE_PORT, names, service, slices, target
from tests.cluster.modes import ALSO_LEGACY, NFTABLES
from tests.cluster.rules import Rules
from tests.program import until
from tests.topology import V4, Topology

pytestmark = ALSO_LEGACY

# -- chance ------------------------------------------------------------------------------------------------------------

# Chi-square of three degrees of freedom that chance exceeds once in 10,000 times.
LIMIT = 21.11


def chi_square(counts: Counter[str], expected: float) -> float:
    return sum((counts[pod] - expected) ** 2 / expected for pod in PODS)


@pytest.mark.parametrize(("protocol", "frontend"), [("tcp", "cluster ip"), ("udp", "cluster ip"), ("tcp", "node port")])
def test_connections_are_spread_evenly(world: Topology, rules: Rules, protocol: str, frontend: str) -> None:
    ports = (build.port(name=protocol, protocol=protocol, node_port=NODE_PORT),)
    rules.serve(service(ports=ports), *slices(*PODS, ports=(SlicePort(protocol, protocol, 8080),)))
    counts = Counter(answer.by for answer in world.ask("client1", *target(frontend, V4), protocol, 2000))
    assert counts.total() == 2000
    assert set(counts) == set(PODS)
    assert chi_square(counts, 500) < LIMIT


def test_clients_with_affinity_are_spread_evenly(world: Topology, rules: Rules) -> None:
    rules.serve(service(affinity_seconds=60), *slices(*PODS))
    client = world.hosts["client2"]
    client.ip(V4, ["route add local 198.51.100.128/25 dev lo"])
    world.hosts["other"].ip(V4, ["route add 198.51.100.128/25 dev client2"])
    try:
        to = target("cluster ip", V4)
        counts: Counter[str] = Counter()
        for number in range(128, 248):
            by = {answer.by for answer in world.ask("client2", *to, count=2, source_ip=f"198.51.100.{number}")}
            assert len(by) == 1
            counts.update(by)
        assert chi_square(counts, 30) < LIMIT
    finally:
        client.ip(V4, ["route delete local 198.51.100.128/25 dev lo"])
        world.hosts["other"].ip(V4, ["route delete 198.51.100.128/25 dev client2"])


# -- affinity ----------------------------------------------------------------------------------------------------------

PODS = ("pod1", "pod2", "pod3", "pod4")


@FAMILIES
@pytest.mark.parametrize("host", ["client1", "client2", "node"])
def test_a_client_keeps_its_endpoint_over_all_frontends(
    world: Topology, rules: Rules, host: str, family: Family
) -> None:
    rules.ensure(service(affinity_seconds=60), *slices(*PODS))
    answers = [names(world, host, target(frontend, family), count=10) for frontend in FRONTENDS]
    assert len(answers[0]) == 1
    assert answers == [answers[0]] * len(FRONTENDS)


@FAMILIES
def test_a_client_keeps_its_endpoint_when_everything_is_written_anew(
    world: Topology, rules: Rules, family: Family
) -> None:
    rules.serve(service(affinity_seconds=60), *slices(*PODS))
    answers = []
    for _ in range(12):
        answers += world.ask("client1", *target("cluster ip", family))
        rules.write_anew()
    assert len({answer.by for answer in answers}) == 1


def test_affinity_of_one_service_says_nothing_about_another(world: Topology, rules: Rules) -> None:
    # With 16 Services and 4 endpoints, one and the same choice for all has a chance of 1 in 10^9.
    objects: list[Service | EndpointSlice] = []
    for number in range(16):
        name = f"web{number}"
        objects += [build.service(name, ip=f"10.96.1.{number}", affinity_seconds=60), *slices(*PODS, name=name)]
    rules.serve(*objects)
    assert len({world.ask("client1", f"10.96.1.{number}", 80)[0].by for number in range(16)}) > 1


def expiry(rules: Rules) -> float:
    """Seconds until the only pin of IPv4 is forgotten."""
    listed = rules.node.run("nft", "list", "set", "ip", "proxyd", layout.AFFINITY).stdout
    (text,) = re.findall(r"expires (\S+)", listed)
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|h|m|s)", text))


@NFTABLES
def test_the_time_of_affinity_begins_anew_with_each_connection(world: Topology, rules: Rules) -> None:
    rules.serve(service(affinity_seconds=60), *slices(*PODS))
    to = target("cluster ip", V4)
    first = world.ask("client1", *to)
    before = expiry(rules)
    until(lambda: expiry(rules) < before - 0.5, "time passes")
    old = expiry(rules)
    assert world.ask("client1", *to) == first
    assert expiry(rules) > old


@NFTABLES
def test_a_client_is_forgotten_after_its_time(world: Topology, rules: Rules) -> None:
    rules.serve(service(affinity_seconds=1), *slices(*PODS))
    world.ask("client1", *target("cluster ip", V4))

    def listed() -> str:
        return rules.node.run("nft", "list", "set", "ip", "proxyd", layout.AFFINITY).stdout

    assert "198.51.100.7" in listed()
    until(lambda: "198.51.100.7" not in listed(), "the pin is gone")


@NFTABLES
@FAMILIES
def test_clients_are_served_when_there_is_no_room_for_pins(
    world: Topology, rules: Rules, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "AFFINITY_SIZE", 1)
    rules.serve(service(affinity_seconds=60), *slices("pod1", "pod3"))
    pinned = names(world, "client1", target("cluster ip", family))
    assert len(pinned) == 1
    assert names(world, "client2", target("cluster ip", family)) == {"pod1", "pod3"}
    assert names(world, "client1", target("cluster ip", family)) == pinned


def test_affinity_and_local_policy_go_together(world: Topology, rules: Rules) -> None:
    rules.serve(service(affinity_seconds=60, external_local=True), *slices("pod1", "pod2", "pod3", "pod4"))
    answers = names(world, "client1", target("load balancer", V4))
    assert len(answers) == 1
    assert answers < {"pod1", "pod2"}
