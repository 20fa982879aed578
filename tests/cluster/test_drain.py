"""`proxyd drain`: endpoints that end and still hold connections, from the real connection tracker, in both modes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from proxyd.model import Family
from tests.cluster.cases import FAMILIES, VIP, Target
from tests.cluster.flows import READY, TERMINATING, Bench, service, slices, target
from tests.cluster.modes import ALSO_NFT, Mode
from tests.cluster.test_held import Held, web
from tests.program import PROXYD, until
from tests.topology import ADDRESSES, Topology


@pytest.fixture
def held(world: Topology) -> Iterator[Held]:
    held = Held(world)
    yield held
    held.close()


def drain(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    command = world.node.command(PROXYD, "drain", *words)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def told(world: Topology, *words: str) -> tuple[int, list[dict[str, Any]]]:
    done = drain(world, *words, "-o", "json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["endpoints"]


def ended(world: Topology, why: str, address: str) -> tuple[int, list[dict[str, Any]]]:
    """What is told, once the daemon has seen the change."""

    def seen() -> bool:
        return any((each["why"], each["address"]) == (why, address) for each in told(world)[1])

    until(seen, f"{address} is {why}")
    return told(world)


@ALSO_NFT
@FAMILIES
def test_connections_of_an_endpoint_that_terminates_and_then_is_gone(
    mode: Mode, bench: Bench, held: Held, family: Family
) -> None:
    pod = ADDRESSES["pod1"][family]
    bench.world.node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_timestamp=1")
    bench.start()
    bench.put(*web(pod1=READY))
    held.connect(Target(VIP[family], 80))
    assert told(bench.world) == (0, [])
    bench.put(*web(pod1=TERMINATING, pod3=READY))
    status, found = ended(bench.world, "terminating", pod)
    [one] = [each for each in found if each["connections"]]
    assert (status, one["address"], one["port"], one["connections"]) == (1, pod, 8090, 1)
    assert one["terminatingSeconds"] >= 0
    assert one["oldestSeconds"] >= one["terminatingSeconds"]
    bench.put(*web(pod3=READY))
    status, found = ended(bench.world, "gone", pod)
    assert [(each["address"], each["connections"], each["terminatingSeconds"]) for each in found] == [(pod, 1, None)]
    assert (status, drain(bench.world, "default/dns", "--wait", "1s").returncode) == (1, 1)
    held.close()
    assert drain(bench.world, "default/dns", "--wait", "30s").returncode == 0


@ALSO_NFT
@FAMILIES
@pytest.mark.parametrize("frontend", ["cluster ip", "node port"])
def test_datagrams(mode: Mode, bench: Bench, family: Family, frontend: str) -> None:
    bench.world.node.run("sysctl", "-qw", "net.netfilter.nf_conntrack_timestamp=0")
    bench.put(service(), *slices(pod1=READY))
    bench.start()
    assert bench.send(target(frontend, family), 5353) == "pod1"
    bench.put_and_wait(family, service(), *slices(pod1=TERMINATING, pod3=READY))
    status, found = told(bench.world)
    [one] = [each for each in found if each["connections"]]
    assert (status, one["address"], one["protocol"], one["connections"]) == (1, ADDRESSES["pod1"][family], "udp", 1)
    assert one["oldestSeconds"] is None
    assert "nf_conntrack_timestamp is 0" in drain(bench.world).stdout


def test_who_cannot_be_asked(node: Topology, bench: Bench) -> None:
    done = drain(node)
    assert (done.returncode, done.stderr) == (4, "proxyd: no proxyd runs in this network namespace\n")
    for words, text in {
        ("default/web:http",): "a Service must be like default/web, got 'default/web:http'",
        ("--wait", "soon"): "--wait: must be a duration",
        ("--master", "x"): "--master: is no flag of drain",
    }.items():
        done = drain(node, *words)
        assert done.returncode == 2
        assert text in done.stderr
    bench.put(service())
    bench.start()
    done = drain(node, "default/nothing")
    assert (done.returncode, done.stderr) == (2, "proxyd: there is no Service default/nothing here\n")
