"""proxyd as a program, fed by manifests: how it starts, restarts and ends, what it answers, and what it refuses to do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxyd import __version__
from tests.cluster.manifests import METRICS_PORT, VIP, Connecting, answers, manifest, objects
from tests.cluster.modes import ALSO_LEGACY, Mode
from tests.program import CLUSTER_CIDR, FLAGS, HEALTH_PORT, PROXYD, Proxyd, until, write
from tests.topology import Topology

FOREIGN = (
    'table ip foreign { comment "not ours"; chain c { type nat hook prerouting priority 5; tcp dport 1 accept; }; }'
)


def many(count: int) -> str:
    """As many Services, as a JSON List."""
    items = [each for n in range(count) for each in objects(f"s{n}", f"10.97.{n // 250}.{n % 250 + 1}")]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def run(world: Topology, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs proxyd to its end, on the node."""
    command = world.node.command(PROXYD, *words)
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=env)


# -- following the files -----------------------------------------------------------------------------------------------


def test_a_changed_file_changes_where_connections_go(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log):
        assert answers(node) == {"pod1", "pod3"}
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")
        write(folder, "other.yaml", manifest("other", "10.96.0.11", ("pod2",)))
        assert node.hosts["client1"].call("ask_until", ip="10.96.0.11", port=80, answer="pod2")
        (folder / "other.yaml").unlink()
        until(lambda: answers(node, ip="10.96.0.11", count=1) == {"unreachable"}, "the Service is gone")
        assert answers(node) == {"pod4"}


def test_a_file_that_cannot_be_read_harms_no_other(node: Topology, folder: Path, log: Path) -> None:
    write(folder, "broken.yaml", "kind: [")
    with Proxyd(node, folder, log) as proxyd:
        assert answers(node) == {"pod1", "pod3"}
        assert proxyd.wait_event("manifest not (fully) used", file="broken.yaml")
        write(folder, "web.yaml", manifest(pods=("pod4",)))
        assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod4")


@ALSO_LEGACY
def test_a_service_that_cannot_be_served_harms_no_other(mode: Mode, node: Topology, folder: Path, log: Path) -> None:
    write(folder, "bad.yaml", manifest("bad", "10.96.0.999") + manifest("worse", "10.96.0.12", externalIPs=["x y"]))
    with Proxyd(node, folder, log, flags=mode.flags) as proxyd:
        assert answers(node) == {"pod1", "pod3"}
        assert answers(node, ip="10.96.0.12") == {"pod1", "pod3"}
        assert proxyd.wait_event("finding", object="default/bad", reason="invalid-address")
        assert proxyd.wait_event("finding", object="default/worse", reason="invalid-address")


# -- what it answers ---------------------------------------------------------------------------------------------------


def test_health_and_metrics_answer_on_the_node(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log) as proxyd:
        for path in ("/healthz", "/livez"):
            status, body = proxyd.get(path)
            assert (status, json.loads(body)["healthy"]) == (200, True)
        assert proxyd.get("/healthz", METRICS_PORT) == (200, "ok")
        assert proxyd.get("/proxyMode", METRICS_PORT) == (200, "nftables")
        status, body = proxyd.get("/metrics", METRICS_PORT)
        assert status == 200
        assert "kubeproxy_sync_proxy_rules_duration_seconds" in body
        assert proxyd.get("/nothing")[0] == 404


def test_health_is_for_load_balancers_and_metrics_for_the_node_only(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log):
        client = node.hosts["client1"]
        assert client.call("http_get", host="192.0.2.11", port=HEALTH_PORT, path="/healthz")[0] == 200
        assert client.call("http_get", host="192.0.2.11", port=METRICS_PORT, path="/metrics")[0] == 0


def test_a_taken_health_port_is_tried_again_while_traffic_is_served(node: Topology, folder: Path, log: Path) -> None:
    code = f"import socket; s = socket.create_server(('', {HEALTH_PORT})); print('taken', flush=True); input()"
    taker = subprocess.Popen(
        node.node.command(sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "taken\n"
        with Proxyd(node, folder, log, wait=False) as proxyd:
            proxyd.wait_event("cannot listen yet", address=f"0.0.0.0:{HEALTH_PORT}")
            assert node.hosts["client1"].call("ask_until", ip=VIP, port=80, answer="pod3")
            taker.kill()
            taker.wait()
            proxyd.wait_healthy()


# -- faults of our own -------------------------------------------------------------------------------------------------

WITH_FAULT = """
import sys
from proxyd.cli import main
from proxyd.sync.loop import SyncLoop
{fault}
sys.exit(main(sys.argv[1:]))
"""


class Faulty:
    """A proxyd with a fault planted into its code."""

    def __init__(self, node: Topology, folder: Path, log: Path, fault: str) -> None:
        self._node, self._log = node, log
        words = [sys.executable, "-c", WITH_FAULT.format(fault=fault), "run", "--manifests", str(folder)]
        with log.open("a") as stream:
            self.process = node.start([*words, *FLAGS, "--logging-format", "json"], stdout=stream, stderr=stream)

    def __enter__(self) -> Faulty:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def wait_for(self, line: str) -> None:
        until(lambda: line in self._log.read_text(), f"{line} in\n{self._log.read_text()}")


def test_a_thread_that_dies_ends_the_process_to_be_started_anew(node: Topology, folder: Path, log: Path) -> None:
    fault = "SyncLoop._wait_and_work = lambda self: 1 / 0"
    with Faulty(node, folder, log, fault) as proxyd:
        assert proxyd.process.wait(30) == 1
    dead = [json.loads(line) for line in log.read_text().splitlines() if "a thread has died" in line]
    assert [(each["thread"], each["level"]) for each in dead] == [("sync", "critical")]
    assert "ZeroDivisionError" in json.dumps(dead[0]["exception"])
    assert answers(node) == {"pod1", "pod3"}


def test_a_thread_that_hangs_does_not_keep_it_from_ending_in_time(node: Topology, folder: Path, log: Path) -> None:
    fault = "import time; SyncLoop._wait_and_work = lambda self: (print('IT HANGS', flush=True), time.sleep(60))"
    with Faulty(node, folder, log, fault) as proxyd:
        proxyd.wait_for("IT HANGS")
        proxyd.process.terminate()
        assert proxyd.process.wait(10) == 0
    assert answers(node) == {"pod1", "pod3"}


# -- ending and coming back --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_end_it_exits_0_and_its_rules_stay(
    node: Topology, folder: Path, log: Path, number: signal.Signals
) -> None:
    with Proxyd(node, folder, log) as proxyd:
        assert proxyd.stop(number) == 0
        assert answers(node) == {"pod1", "pod3"}


STOPPED_EARLY = """
import importlib.abc, os, signal, sys
from proxyd import cli
from proxyd.kernel import lock

class Interrupted(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGTERM)

def interrupted(lock_namespace=lock.lock_namespace):
    if sys.argv[1] == "lock":
        os.kill(os.getpid(), signal.SIGTERM)
    return lock_namespace()

sys.meta_path.insert(0, Interrupted())
lock.lock_namespace = interrupted
sys.exit(cli.main(sys.argv[2:]))
"""


@pytest.mark.parametrize("moment", ["proxyd.daemon", "lock"])
def test_asked_to_end_before_it_has_begun_it_exits_0(node: Topology, folder: Path, moment: str) -> None:
    """Process 1 of a container is not told of signals that it has no handler for, so that is there before all else."""
    words = [sys.executable, "-c", STOPPED_EARLY, moment, "run", "--manifests", str(folder), *FLAGS]
    done = subprocess.run(node.node.command(*words), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_asked_to_end_in_the_middle_of_work_it_exits_0_in_time_and_what_was_served_still_is(
    node: Topology, folder: Path, log: Path
) -> None:
    with Proxyd(node, folder, log) as proxyd:
        proxyd.stop()
    write(folder, "many.json", many(8000))
    log.unlink()
    with Proxyd(node, folder, log, wait=False) as proxyd, Connecting(node) as connecting:
        proxyd.wait_event("manifests read")
        proxyd.process.send_signal(signal.SIGTERM)
        assert proxyd.process.wait(5) == 0
        assert not proxyd.events("rules written", ip_family="IPv6"), "it was too quick for this test"
        connecting.more()
    assert set(connecting.counts) == {"pod1", "pod3"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_costs_no_connection(node: Topology, folder: Path, log: Path, number: signal.Signals) -> None:
    with Proxyd(node, folder, log) as proxyd, Connecting(node) as connecting:
        proxyd.stop(number)
        connecting.more()
        with Proxyd(node, folder, log):
            connecting.more()
    assert set(connecting.counts) == {"pod1", "pod3"}


def test_after_a_restart_it_serves_what_the_files_say_now(node: Topology, folder: Path, log: Path) -> None:
    write(folder, "other.yaml", manifest("other", "10.96.0.11"))
    with Proxyd(node, folder, log) as proxyd:
        proxyd.stop(signal.SIGKILL)
    (folder / "other.yaml").unlink()
    write(folder, "web.yaml", manifest(pods=("pod2",)))
    with Proxyd(node, folder, log):
        assert answers(node) == {"pod2"}
        assert answers(node, ip="10.96.0.11", count=1) == {"unreachable"}


def test_after_a_restart_nothing_of_the_old_rules_is_left(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log) as proxyd:
        proxyd.stop()
    with Proxyd(node, folder, log):

        def generations() -> set[str]:
            return set(re.findall(r"\bg\d+/", node.node.run("nft", "list", "ruleset").stdout))

        until(lambda: len(generations()) == 1, "one generation is left")


def test_a_second_one_on_the_node_says_so_and_ends(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log) as proxyd:
        second = run(node, "run", "--manifests", str(folder), *FLAGS)
        assert (second.returncode, second.stdout) == (1, "")
        assert "another proxyd runs in this network namespace" in second.stderr
        assert "Traceback" not in second.stderr
        assert proxyd.get("/healthz")[0] == 200
        assert answers(node) == {"pod1", "pod3"}


# -- cleanup -----------------------------------------------------------------------------------------------------------


def test_cleanup_leaves_nothing_of_ours_and_others_as_they_were(node: Topology, folder: Path, log: Path) -> None:
    node.node.run("nft", FOREIGN)
    before = node.node.run("nft", "list", "ruleset").stdout
    with Proxyd(node, folder, log) as proxyd:
        assert node.node.run("nft", "list", "table", "ip", "foreign").stdout == before
        proxyd.stop()
    assert node.node.run("nft", "list", "ruleset").stdout != before
    for _ in range(2):
        done = run(node, "cleanup")
        assert (done.returncode, done.stderr) == (0, "")
        assert node.node.run("nft", "list", "ruleset").stdout == before


# -- what keeps it from starting ---------------------------------------------------------------------------------------


def test_without_cap_net_admin_it_says_so(node: Topology, folder: Path) -> None:
    command = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", PROXYD]
    for words in (["run", "--manifests", str(folder), *FLAGS], ["cleanup"]):
        done = node.node.run(*command, *words, check=False)
        assert done.returncode == 1
        assert "CAP_NET_ADMIN" in done.stderr
        assert "Traceback" not in done.stderr


def test_in_a_user_namespace_of_its_own_it_works(folder: Path, log: Path) -> None:
    """As in rootless clusters: all capabilities, but none over the machine."""
    with log.open("a") as stream:
        words = [PROXYD, "run", "--manifests", str(folder), *FLAGS, "--logging-format", "json"]
        process = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--net", *words], stdout=stream, stderr=stream
        )
    try:
        until(lambda: log.read_text().count("rules written") == 2 or process.poll() is not None, "all rules")
    finally:
        process.terminate()
    assert process.wait(30) == 0, log.read_text()


def test_without_the_nftables_binding_it_names_the_package(node: Topology, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "nftables.py").write_text("raise ImportError('not here')\n")
    for words in (["run", "--manifests", str(folder), *FLAGS], ["cleanup"]):
        done = run(node, *words, PYTHONPATH=str(tmp_path))
        assert done.returncode == 1
        assert "python3-nftables" in done.stderr
        assert "Traceback" not in done.stderr


def test_all_that_is_wrong_with_a_configuration_is_listed(node: Topology, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
        "kind: KubeProxyConfiguration\n"
        "mode: nftabels\n"
        "clusterCIDR: 10.244.0.0\n"
        "nftables: {masqueradeBit: 99}\n"
        "healthzBindAddress: nowhere\n"
    )
    done = run(node, "run", "--config", str(config))
    assert done.returncode == 2
    for field in ("mode", "clusterCIDR", "nftables.masqueradeBit", "healthzBindAddress"):
        assert field in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 4


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--manifests", "/nonexistent"), "/nonexistent"),
        (("--manifests", "/etc/passwd"), "/etc/passwd"),
        (("--kubeconfig", "/nonexistent"), "/nonexistent"),
        (("--config", "/nonexistent"), "/nonexistent"),
        (("--proxy-mode", "ipvs"), "ipvs"),
        (("--cluster-cidr", "10.244.0.0"), "10.244.0.0"),
        (("--no-such-flag",), "--no-such-flag"),
        ((), "kubeconfig"),
    ],
)
def test_what_the_user_got_wrong_ends_it_with_2_and_one_message(
    node: Topology, flags: tuple[str, ...], words: str
) -> None:
    common = () if "--proxy-mode" in flags else ("--proxy-mode", "nftables")
    done = run(node, "run", *common, *flags)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert node.node.run("nft", "list", "ruleset").stdout == ""


def test_version_and_help(node: Topology) -> None:
    assert run(node, "--version").stdout == f"proxyd {__version__}\n"
    done = run(node, "--help")
    assert done.returncode == 0
    for word in ("--manifests", "--proxy-mode", "--cluster-cidr", "cleanup"):
        assert word in done.stdout


def test_flags_decide_about_the_source_as_the_config_file_does(node: Topology, folder: Path, log: Path) -> None:
    config = folder.parent / "config.yaml"
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\n"
        "kind: KubeProxyConfiguration\n"
        "mode: nftables\n"
        f"clusterCIDR: {CLUSTER_CIDR}\n"
        "nftables: {masqueradeAll: true}\n"
    )
    for flags, source in (
        (FLAGS, "10.244.1.12"),
        (("--config", str(config), "--hostname-override", "node1"), "10.244.1.1"),
    ):
        write(folder, "web.yaml", manifest(pods=("pod1",)))
        with Proxyd(node, folder, log, flags=flags):
            assert set(node.ask("pod2", VIP, 80, count=5)) == {("pod1", source)}
