"""iptables mode with packets, in both backends: what is true of Services in nftables mode is true here."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyd.ipt.style import Style
from proxyd.kernel.ipt_rules import ToolRules
from proxyd.kernel.iptables import Backend, IptablesTools
from proxyd.kernel.xtables_lock import VARIABLE
from proxyd.model import EndpointSlice, Family, Service
from proxyd.sync.ipt_reconcile import IptReconciler
from tests import build
from tests.cluster.conftest import Rules
from tests.cluster.manifests import METRICS_PORT, Connecting, answers, manifest, metric
from tests.cluster.namespaces import inside
from tests.cluster.test_traffic import test_a_pod_reaches_itself  # noqa: F401  (the same claim, on this module's fixture)
from tests.controlplane.exposition import value
from tests.netns import forget_flows
from tests.program import FLAGS, Proxyd, until, write
from tests.topology import Topology

BACKENDS = tuple(map(str, Backend))
_EMPTY = "".join(f"*{table}\\nCOMMIT\\n" for table in ("nat", "filter", "mangle"))
IPTABLES = ("--proxy-mode", "iptables", *FLAGS[2:])


def flush(world: Topology) -> None:
    """A node without any rules, in all backends."""
    world.node.run("nft", "flush", "ruleset")
    for tool in ("iptables", "ip6tables"):
        world.node.run("sh", "-c", f"printf '{_EMPTY}' | {tool}-legacy-restore")
    inside(world.node, forget_flows)


class IptablesRules(Rules):
    """The node's rules in iptables mode."""

    def __init__(self, topology: Topology, backend: Backend) -> None:
        super().__init__(topology)
        self._topology, self._backend = topology, backend

    def serve(self, *objects: Service | EndpointSlice, **settings: Any) -> None:
        flush(self._topology)
        self._served = None
        self._store = build.store(*objects)
        self._store.take()
        self._reconcilers = [
            (
                IptReconciler(family, ToolRules(IptablesTools(family, self._backend)), self._store.service, Style()),
                build.settings(family, **settings),
            )
            for family in Family
        ]
        self._sync(self._store.keys())
        self._served = (objects, settings)

    def change(self, *objects: Service | EndpointSlice, gone: Iterable[Service | EndpointSlice] = ()) -> None:
        for each in (*objects, *gone):
            intake: Any = self._store.services if isinstance(each, Service) else self._store.slices
            decoded = build.decoded(each)
            if each in objects:
                intake.put(decoded)
            else:
                intake.remove(decoded.key)
        self._served = None
        self._sync(self._store.take().services)

    def write_anew(self) -> None:
        for reconciler, _ in self._reconcilers:
            reconciler.forget()
        self._sync(self._store.keys())
        self.cleanup()

    def cleanup(self) -> None:
        for reconciler, _ in self._reconcilers:
            inside(self.node, reconciler.cleanup)

    def _sync(self, dirty: Iterable[Any]) -> None:
        for reconciler, of_family in self._reconcilers:
            inside(self.node, lambda r=reconciler, s=of_family: r.sync(dirty, self._store.keys, s))  # type: ignore[misc]
            assert not reconciler.refusals, "a call was refused"


@pytest.fixture(scope="module", params=BACKENDS)
def rules(world: Topology, request: pytest.FixtureRequest) -> Iterator[Rules]:
    yield IptablesRules(world, Backend(request.param))
    flush(world)


# The program


def chains(world: Topology, backend: str, family: str = "ip") -> set[str]:
    """Our chains in one backend."""
    tool = "iptables" if family == "ip" else "ip6tables"
    saved = world.node.run(f"{tool}-{backend}-save").stdout
    names = {line[1:].split()[0] for line in saved.splitlines() if line.startswith(":KUBE-")}
    return names - {"KUBE-FIREWALL", "KUBE-KUBELET-CANARY"}


def jumps(world: Topology, backend: str) -> list[str]:
    saved = world.node.run(f"iptables-{backend}-save").stdout
    return [line for line in saved.splitlines() if line.startswith("-A") and not line.startswith("-A KUBE")]


def own_tables(world: Topology) -> list[str]:
    return [line for line in world.node.run("nft", "list", "tables").stdout.splitlines() if line.endswith(" proxyd")]


@pytest.fixture(params=BACKENDS)
def backend(world: Topology, request: pytest.FixtureRequest) -> Iterator[str]:
    """A node whose kubelet uses this backend."""
    flush(world)
    world.node.run(f"iptables-{request.param}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    yield request.param
    flush(world)


def test_a_restart_loses_no_connection_and_puts_jumps_there_once(
    world: Topology, backend: str, folder: Path, log: Path
) -> None:
    with Proxyd(world, folder, log, flags=IPTABLES) as proxyd:
        assert proxyd.events("proxyd starts", iptables_backend=backend)
        assert answers(world) == {"pod1", "pod3"}
        once = jumps(world, backend)
        with Connecting(world) as connecting:
            assert proxyd.stop() == 0
            connecting.more()
            with Proxyd(world, folder, log, flags=IPTABLES):
                connecting.more()
        assert set(connecting.counts) == {"pod1", "pod3"}
    assert jumps(world, backend) == once


def test_modes_follow_each_other_without_a_connection_lost_and_leave_nothing(
    world: Topology, backend: str, folder: Path, log: Path
) -> None:
    with Proxyd(world, folder, log, flags=FLAGS):
        assert answers(world) == {"pod1", "pod3"}
    with Connecting(world) as connecting:
        for flags in (IPTABLES, FLAGS):
            with Proxyd(world, folder, log, flags=flags) as proxyd:
                if flags is FLAGS:
                    until(lambda: not chains(world, backend), "no chains of iptables mode are left")
                    assert own_tables(world)
                else:
                    until(lambda: not own_tables(world), "no table of nftables mode is left")
                    assert "KUBE-SERVICES" in chains(world, backend)
                connecting.more()
                assert proxyd.stop() == 0
    assert set(connecting.counts) == {"pod1", "pod3"}


def test_rules_that_somebody_flushed_come_back_and_a_change_is_served(
    world: Topology, backend: str, folder: Path, log: Path
) -> None:
    with Proxyd(world, folder, log, flags=IPTABLES) as proxyd:
        for words in (("-t", "nat", "-F", "KUBE-SERVICES"), ("-F",), ("-t", "nat", "-F")):
            before = metric(proxyd, "proxyd_drift_repaired_total")
            world.node.run(f"iptables-{backend}", *words)
            until(lambda b=before: metric(proxyd, "proxyd_drift_repaired_total") > b, "repaired")  # type: ignore[misc]
            assert answers(world) == {"pod1", "pod3"}
        write(folder, "web.yaml", manifest(pods=("pod2",)))
        until(lambda: answers(world, count=3) == {"pod2"}, "the change is served")


def test_a_lock_that_others_hold_is_told_and_measured_and_the_change_comes_after_it(
    world: Topology, folder: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "xtables.lock"
    monkeypatch.setenv(VARIABLE, str(file))
    flush(world)
    world.node.run("iptables-legacy", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
    with Proxyd(world, folder, log, flags=IPTABLES) as proxyd:
        assert metric(proxyd, "proxyd_iptables_lock_wait_seconds_count") > 0
        before = metric(proxyd, "proxyd_iptables_lock_wait_seconds_sum")
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            write(folder, "web.yaml", manifest(pods=("pod2",)))
            proxyd.wait_event("somebody holds the lock of iptables, waiting for it", level="warning")
        until(lambda: answers(world, count=3) == {"pod2"}, "the change is served")
        assert metric(proxyd, "proxyd_iptables_lock_wait_seconds_sum") > before + 0.9
        assert metric(proxyd, "proxyd_iptables_lock_failures_total") == 0
    flush(world)


def test_packets_that_rules_count_are_metrics_where_the_kernel_can(
    world: Topology, backend: str, folder: Path, log: Path
) -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    write(folder, "web.yaml", manifest(type="NodePort", ports=ports))

    def counted(what: str) -> float:
        return value(proxyd.get("/metrics", METRICS_PORT)[1], f"kubeproxy_iptables_{what}_packets_total")

    with Proxyd(world, folder, log, "--nodeport-addresses", "0.0.0.0/0", flags=IPTABLES) as proxyd:
        if "nfacct" not in world.node.run(f"iptables-{backend}-save").stdout:
            pytest.skip("this kernel has no nfacct")
        before = counted("localhost_nodeports_accepted")
        assert len(world.ask("node", "127.0.0.1", 30080, count=3)) == 3
        assert counted("localhost_nodeports_accepted") == before + 3
        assert "\nkubeproxy_iptables_ct_state_invalid_dropped_packets_total " in proxyd.get("/metrics", METRICS_PORT)[1]
        assert "proxyd_service_connections_total" not in proxyd.get("/metrics", METRICS_PORT)[1]


def test_rules_are_counted_as_in_kube_proxy(world: Topology, backend: str, folder: Path, log: Path) -> None:
    with Proxyd(world, folder, log, flags=IPTABLES) as proxyd:
        _, page = proxyd.get("/metrics", METRICS_PORT)
        saved = world.node.run(f"iptables-{backend}-save", "-t", "nat").stdout
        own = sum(line.startswith("-A KUBE-") for line in saved.splitlines())
        total = 'kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"}'
        assert f"{total} {float(own)}" in page
        for name in ("restore_failures_total", "partial_restore_failures_total"):
            assert metric(proxyd, f"kubeproxy_sync_proxy_rules_iptables_{name}") == 0
        assert "nftables_sync_failures" not in page


def test_a_service_on_a_node_port_answers_on_127_0_0_1(world: Topology, backend: str, folder: Path, log: Path) -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    write(folder, "web.yaml", manifest(type="NodePort", ports=ports))
    with Proxyd(world, folder, log, "--nodeport-addresses", "0.0.0.0/0", flags=IPTABLES):
        assert {answer.by for answer in world.ask("node", "127.0.0.1", 30080, count=10)} == {"pod1", "pod3"}
    assert backend
