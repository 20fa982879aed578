"""The program in iptables mode, in both backends: starts, the way from mode to mode, who else writes rules."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from proxyd.ipt.style import Style
from proxyd.kernel.ipt.iptables import Backend, IptablesTools
from proxyd.kernel.ipt.lock import VARIABLE
from proxyd.kernel.ipt.rules import ToolRules
from proxyd.model import Family
from proxyd.sync.ipt.reconcile import IptReconciler
from tests.cluster.manifests import METRICS_PORT, Connecting, answers, manifest, metric
from tests.cluster.modes import IPTABLES, Mode, flush
from tests.cluster.namespaces import inside
from tests.controlplane.exposition import value
from tests.program import FLAGS, Proxyd, until, write
from tests.scenarios import replay, story
from tests.topology import Topology

pytestmark = IPTABLES


def chains(world: Topology, backend: Backend, family: str = "ip") -> set[str]:
    """Our chains in one backend."""
    tool = "iptables" if family == "ip" else "ip6tables"
    saved = world.node.run(f"{tool}-{backend}-save").stdout
    names = {line[1:].split()[0] for line in saved.splitlines() if line.startswith(":KUBE-")}
    return names - {"KUBE-FIREWALL", "KUBE-KUBELET-CANARY"}


def jumps(world: Topology, backend: Backend) -> list[str]:
    saved = world.node.run(f"iptables-{backend}-save").stdout
    return [line for line in saved.splitlines() if line.startswith("-A") and not line.startswith("-A KUBE")]


def own_tables(world: Topology) -> list[str]:
    return [line for line in world.node.run("nft", "list", "tables").stdout.splitlines() if line.endswith(" proxyd")]


def test_a_restart_loses_no_connection_and_puts_jumps_there_once(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        assert proxyd.events("proxyd starts", iptables_backend=mode.backend)
        assert answers(node) == {"pod1", "pod3"}
        once = jumps(node, mode.backend)
        with Connecting(node) as connecting:
            assert proxyd.stop() == 0
            connecting.more()
            with Proxyd(node, folder, log, flags=mode.flags):
                connecting.more()
        assert set(connecting.counts) == {"pod1", "pod3"}
    assert jumps(node, mode.backend) == once


def test_modes_follow_each_other_without_a_connection_lost_and_leave_nothing(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    with Proxyd(node, folder, log, flags=FLAGS):
        assert answers(node) == {"pod1", "pod3"}
    with Connecting(node) as connecting:
        for flags in (mode.flags, FLAGS):
            with Proxyd(node, folder, log, flags=flags) as proxyd:
                if flags is FLAGS:
                    until(lambda: not chains(node, mode.backend), "no chains of iptables mode are left")
                    assert own_tables(node)
                else:
                    until(lambda: not own_tables(node), "no table of nftables mode is left")
                    assert "KUBE-SERVICES" in chains(node, mode.backend)
                connecting.more()
                assert proxyd.stop() == 0
    assert set(connecting.counts) == {"pod1", "pod3"}


def test_rules_that_somebody_flushed_come_back_and_a_change_is_served(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        for words in (("-t", "nat", "-F", "KUBE-SERVICES"), ("-F",), ("-t", "nat", "-F")):
            before = metric(proxyd, "proxyd_drift_repaired_total")
            node.node.run(f"iptables-{mode.backend}", *words)
            until(lambda b=before: metric(proxyd, "proxyd_drift_repaired_total") > b, "repaired")  # type: ignore[misc]
            assert answers(node) == {"pod1", "pod3"}
        write(folder, "web.yaml", manifest(pods=("pod2",)))
        until(lambda: answers(node, count=3) == {"pod2"}, "the change is served")


@pytest.mark.modes(Mode.LEGACY)
def test_a_lock_that_others_hold_is_told_and_measured_and_the_change_comes_after_it(
    node: Topology, mode: Mode, folder: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "xtables.lock"
    monkeypatch.setenv(VARIABLE, str(file))
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        assert metric(proxyd, "proxyd_iptables_lock_wait_seconds_count") > 0
        before = metric(proxyd, "proxyd_iptables_lock_wait_seconds_sum")
        with file.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            write(folder, "web.yaml", manifest(pods=("pod2",)))
            proxyd.wait_event("somebody holds the lock of iptables, waiting for it", level="warning")
        until(lambda: answers(node, count=3) == {"pod2"}, "the change is served")
        assert metric(proxyd, "proxyd_iptables_lock_wait_seconds_sum") > before + 0.9
        assert metric(proxyd, "proxyd_iptables_lock_failures_total") == 0


def test_packets_that_rules_count_are_metrics_where_the_kernel_can(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    write(folder, "web.yaml", manifest(type="NodePort", ports=ports))

    def counted(what: str) -> float:
        return value(proxyd.get("/metrics", METRICS_PORT)[1], f"kubeproxy_iptables_{what}_packets_total")

    with Proxyd(node, folder, log, "--nodeport-addresses", "0.0.0.0/0", flags=mode.flags) as proxyd:
        if "nfacct" not in node.node.run(f"{mode}-save").stdout:
            pytest.skip("this kernel has no nfacct")
        before = counted("localhost_nodeports_accepted")
        assert len(node.ask("node", "127.0.0.1", 30080, count=3)) == 3
        assert counted("localhost_nodeports_accepted") == before + 3
        assert "\nkubeproxy_iptables_ct_state_invalid_dropped_packets_total " in proxyd.get("/metrics", METRICS_PORT)[1]
        assert "proxyd_service_connections_total" not in proxyd.get("/metrics", METRICS_PORT)[1]


def test_rules_are_counted_as_in_kube_proxy(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        _, page = proxyd.get("/metrics", METRICS_PORT)
        saved = node.node.run(f"iptables-{mode.backend}-save", "-t", "nat").stdout
        own = sum(line.startswith("-A KUBE-") for line in saved.splitlines())
        total = 'kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"}'
        assert f"{total} {float(own)}" in page
        for name in ("restore_failures_total", "partial_restore_failures_total"):
            assert metric(proxyd, f"kubeproxy_sync_proxy_rules_iptables_{name}") == 0
        assert "nftables_sync_failures" not in page


def test_a_service_on_a_node_port_answers_on_127_0_0_1(node: Topology, mode: Mode, folder: Path, log: Path) -> None:
    ports = [{"name": "http", "port": 80, "nodePort": 30080}]
    write(folder, "web.yaml", manifest(type="NodePort", ports=ports))
    with Proxyd(node, folder, log, "--nodeport-addresses", "0.0.0.0/0", flags=mode.flags):
        assert {answer.by for answer in node.ask("node", "127.0.0.1", 30080, count=10)} == {"pod1", "pod3"}


# What a kube-proxy wrote there once: the Service leads to a pod that is gone.
STALE = """*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-OLDOLDOLDOLDOLDO - [0:0]
:KUBE-SEP-OLDOLDOLDOLDOLDO - [0:0]
:SOMEBODYS - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-OLDOLDOLDOLDOLDO
-A KUBE-SVC-OLDOLDOLDOLDOLDO -j KUBE-SEP-OLDOLDOLDOLDOLDO
-A KUBE-SEP-OLDOLDOLDOLDOLDO -p tcp -m tcp -j DNAT --to-destination 10.244.2.99:8080
-A SOMEBODYS -d 10.9.9.9/32 -j ACCEPT
COMMIT
"""


def test_rules_of_a_kube_proxy_in_the_other_backend_go_and_nothing_is_written_there(
    node: Topology, mode: Mode, folder: Path, log: Path
) -> None:
    other = Mode.LEGACY if mode is Mode.NFT else Mode.NFT
    node.node.run(f"{other}-restore", "--noflush", stdin=STALE)
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        assert proxyd.events("proxyd starts", iptables_backend=mode.backend)
        until(lambda: not chains(node, other.backend), "nothing of a service proxy is left in the other backend")
        assert answers(node) == {"pod1", "pod3"}
        assert any(other in json.dumps(each) for each in proxyd.events()), "it was told"
        write(folder, "web.yaml", manifest(pods=("pod2",)))
        until(lambda: answers(node, count=3) == {"pod2"}, "the change is served")
        assert "KUBE-SERVICES" in chains(node, mode.backend)
    assert not chains(node, other.backend)
    assert "-A SOMEBODYS -d 10.9.9.9/32 -j ACCEPT" in node.node.run(f"{other}-save").stdout


def test_bad_objects_are_no_trouble_to_the_tools(world: Topology, mode: Mode) -> None:
    """What is left out, and told, is what the scenario says; what is left is taken, one object after the other."""
    scenario = story.load("bad-objects")
    flush(world)
    for step in scenario.steps:
        played = replay.World(scenario.policy, "iptables")
        played.list(step.objects)
        for family in Family:
            rules = ToolRules(IptablesTools(family, mode.backend))
            played.reconcilers[family] = IptReconciler(family, rules, played.store.service, Style())
        inside(world.node, played.sync)
        for family, reconciler in played.reconcilers.items():
            assert not reconciler.refusals, (step.name, family)
            assert not reconciler.quarantined, (step.name, family)
    flush(world)
