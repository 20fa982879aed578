"""From kube-proxy to proxyd in the same chains, and from mode to mode of proxyd, under load: no connection fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxyd.ipt.ownership import OWN_MARK
from tests.cluster_api.test_migration import (
    Load,
    cleanup,
    config,  # noqa: F401  (a fixture)
    rules,
    sources,
    start_kube_proxy,
    world,  # noqa: F401  (a fixture)
)
from tests.controlplane import objects
from tests.controlplane.api import path_of
from tests.controlplane.plane import Plane
from tests.program import FLAGS, Proxyd, until
from tests.topology import ADDRESSES, V4, Topology

IPTABLES = ("--proxy-mode", "iptables", *FLAGS[2:])
BACKENDS = ("nft", "legacy")
TABLES = ["table ip proxyd", "table ip6 proxyd"]


def marks(world: Topology) -> list[str]:  # noqa: F811
    return [line for line in rules(world) if OWN_MARK in line]


def without_marks(world: Topology) -> list[str]:  # noqa: F811
    return sorted(line for line in rules(world) if OWN_MARK not in line)


def of_service(world: Topology, name: str) -> list[str]:  # noqa: F811
    return [line for line in rules(world) if f"default/{name}:" in line]


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as made:
        yield made


@pytest.fixture
def leaving(plane: Plane) -> Iterator[str]:
    """A Service that goes while nobody looks; gives its name."""
    made = [objects.service("leaving"), objects.endpoint_slice("leaving", [ADDRESSES["pod1"][V4]])]
    for each in made:
        plane.admin.create(each)
    yield "leaving"
    plane.admin.delete_all(made)


@pytest.mark.parametrize("backend", BACKENDS)
def test_proxyd_and_kube_proxy_take_over_each_others_chains_and_no_connection_fails(
    world: Topology,  # noqa: F811
    config: Path,  # noqa: F811
    plane: Plane,
    leaving: str,
    tmp_path: Path,
    backend: str,
) -> None:
    kubeconfig = ("--kubeconfig", str(config))
    mode = f"iptables-{backend}"
    with start_kube_proxy(world, tmp_path, config, mode) as kube_proxy, Load(world) as load:
        until(lambda: of_service(world, leaving), "the Service is served")
        load.more()
        kube_proxy.stop()
        seen = sources(world)
        plane.admin.delete(path_of(objects.service(leaving)))
        with Proxyd(world, None, tmp_path / "proxyd.log", *kubeconfig, flags=IPTABLES) as proxyd:
            assert proxyd.events("proxyd starts", iptables_backend=backend)
            until(lambda: not of_service(world, leaving), "rules of the Service that has gone")
            assert len(marks(world)) == 2, "one in each family"
            load.more()
            assert sources(world) == seen, "with proxyd"
            proxyds = without_marks(world)
            assert not [each for each in proxyd.events(level="info") if each["event"].startswith("rules of ")]
            assert proxyd.stop() == 0
        load.more()
        with start_kube_proxy(world, tmp_path, config, mode):
            until(lambda: not marks(world), "kube-proxy has taken over")
            assert without_marks(world) == proxyds, "every rule is both's"
            load.more()
            assert sources(world) == seen, "with kube-proxy again"
            assert cleanup(world, "--own").stderr == ""
            assert without_marks(world) == proxyds, "kube-proxy's rules are left alone"
            load.more()
        load.end()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mode_of_a_node_is_changed_without_a_connection_lost_or_a_rule_left(
    world: Topology,  # noqa: F811
    config: Path,  # noqa: F811
    tmp_path: Path,
    stack: contextlib.ExitStack,
    backend: str,
) -> None:
    kubeconfig = ("--kubeconfig", str(config))
    for tool in ("iptables", "ip6tables"):
        world.node.run(f"{tool}-{backend}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    others = sorted(rules(world))
    with Proxyd(world, None, tmp_path / "proxyd.log", *kubeconfig) as first:
        load = stack.enter_context(Load(world))
        seen = sources(world)
        assert first.stop() == 0
    whose = "rules of proxyd's other mode"
    for number, flags in enumerate((IPTABLES, FLAGS, IPTABLES)):
        log = tmp_path / f"proxyd-{number}.log"
        with Proxyd(world, None, log, *kubeconfig, flags=flags) as proxyd:
            if flags is FLAGS:
                until(lambda: sorted(rules(world)) == sorted([*others, *TABLES]), "only the tables of nftables mode")
            else:
                until(lambda: not set(rules(world)) & set(TABLES), "no table of nftables mode")
                assert len(marks(world)) == 2
            load.more()
            assert sources(world) == seen
            assert proxyd.stop() == 0
            told = {each["event"] for each in proxyd.events(level="info") if each["event"].startswith("rules of ")}
            assert told == {f"{whose} found, removing them", f"{whose} removed"}
        load.more()
    load.end()
    assert cleanup(world, "--own").stderr == ""
    assert sorted(rules(world)) == others
