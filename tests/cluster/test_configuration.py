"""Configuration and a running proxyd: what becomes of a file that changes, and commands that do one thing and end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from proxyd.config import as_file, load, parse_file, read_arguments, resolve
from tests.cluster.manifests import METRICS_PORT, VIP, answers
from tests.program import CLUSTER_CIDR, PROXYD, Proxyd, until, write
from tests.topology import Topology

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
GOOD = f"{HEAD}mode: nftables\nclusterCIDR: {CLUSTER_CIDR}\n"
OTHER = f"{GOOD}nftables: {{masqueradeAll: true}}\n"
NONSENSE = f"{GOOD}oomScoreAdj: 5000\nnodePortAddresses: [nowhere]\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return path


def flags(config: Path) -> tuple[str, ...]:
    return ("--config", str(config), "--hostname-override", "node1")


def run(world: Topology, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs proxyd to its end, on the node."""
    return world.node.run(PROXYD, *words, check=False)


def sources(world: Topology) -> set[str]:
    """The source addresses that servers see of a pod on the node."""
    return {source for _, source in world.ask("pod2", VIP, 80, count=5)}


# -- a file that changes -----------------------------------------------------------------------------------------------


def test_another_configuration_ends_it_for_a_start_with_that_one(
    node: Topology, folder: Path, log: Path, config: Path
) -> None:
    with Proxyd(node, folder, log, flags=flags(config)) as proxyd:
        assert sources(node) == {"10.244.1.12"}, "the pod's own address"
        write(config.parent, config.name, OTHER)
        assert proxyd.process.wait(30) == 3
        assert answers(node) == {"pod1", "pod3"}, "all rules stay"
    with Proxyd(node, folder, log, flags=flags(config)):
        assert "10.244.1.12" not in sources(node), "everything is masqueraded"


def test_nonsense_is_told_and_the_old_configuration_serves_on(
    node: Topology, folder: Path, log: Path, config: Path
) -> None:
    def refused() -> bool:
        return 'proxyd_findings{reason="configuration-refused"} 1.0' in proxyd.get("/metrics", METRICS_PORT)[1]

    with Proxyd(node, folder, log, flags=flags(config)) as proxyd:
        write(config.parent, config.name, NONSENSE)
        until(refused, "a finding is counted")
        problems = [event["problem"] for event in proxyd.events("the new configuration is not used")]
        assert [problem.partition(":")[0] for problem in problems] == ["oomScoreAdj", "nodePortAddresses[0]"]
        assert proxyd.wait_event("finding", reason="configuration-refused", object=str(config))
        assert proxyd.get("/healthz")[0] == 200
        assert answers(node) == {"pod1", "pod3"}
        write(config.parent, config.name, f"# mended\n{GOOD}")
        until(lambda: not refused(), "the finding is gone")
        assert proxyd.process.poll() is None
        assert len(proxyd.events("the new configuration is not used")) == 2, "told once"


def test_a_configuration_of_another_family_than_the_nodes_is_told_and_serves(
    node: Topology, folder: Path, log: Path, config: Path
) -> None:
    of_node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node1"}}
    addresses = {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}
    write(folder, "node.yaml", yaml.safe_dump({**of_node, "status": addresses}))
    config.write_text(f"{HEAD}clusterCIDR: fd00:10:244::/48\n")
    with Proxyd(node, folder, log, flags=flags(config)) as proxyd:
        finding = proxyd.wait_event("finding", reason="family-mismatch", object="node1")
        assert finding["detail"].startswith("clusterCIDR: only IPv6, while this node's first address is IPv4")
        assert answers(node) == {"pod1", "pod3"}


# -- what is told of it ------------------------------------------------------------------------------------------------


def test_configz_is_the_whole_configuration_in_force(node: Topology, folder: Path, log: Path, config: Path) -> None:
    config.write_text(OTHER)
    with Proxyd(node, folder, log, flags=flags(config)) as proxyd:
        told = json.loads(proxyd.get("/configz", METRICS_PORT)[1])["kubeproxy.config.k8s.io"]
    line = read_arguments([*flags(config), "--logging-format=json"])
    assert yaml.safe_load(as_file(load(line))[0]) == told
    assert (told["nftables"]["masqueradeAll"], told["hostnameOverride"]) == (True, "node1")
    assert parse_file(json.dumps(told)).warnings == ()


def test_a_taken_port_ends_it_where_that_is_wanted(node: Topology, folder: Path, log: Path, config: Path) -> None:
    code = "import socket; s = socket.create_server(('', 10256)); print('taken', flush=True); input()"
    words = node.node.command(sys.executable, "-c", code)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as taker:
        assert taker.stdout is not None
        assert taker.stdout.readline() == "taken\n"
        with Proxyd(node, folder, log, "--bind-address-hard-fail", flags=flags(config), wait=False) as proxyd:
            ignored = proxyd.wait_event("ignored because --config is given: --bind-address-hard-fail")
            assert ignored["level"] == "warning"
            proxyd.wait_event("cannot listen yet", address="0.0.0.0:10256")
            proxyd.stop()
        config.write_text(f"{GOOD}bindAddressHardFail: true\n")
        with Proxyd(node, folder, log, flags=flags(config), wait=False) as proxyd:
            assert proxyd.process.wait(30) == 1
            assert proxyd.wait_event("cannot listen, and bindAddressHardFail is set")
        taker.kill()


# -- one thing, and the end --------------------------------------------------------------------------------------------


def test_the_flag_cleanup_does_what_the_command_does_whatever_the_configuration(
    node: Topology, folder: Path, log: Path, config: Path
) -> None:
    with Proxyd(node, folder, log, flags=flags(config)) as proxyd:
        proxyd.stop()
    assert "table" in node.node.run("nft", "list", "ruleset").stdout
    config.write_text(NONSENSE)
    done = run(node, "--cleanup", "--config", str(config), "--proxy-mode=ipvs")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("proxyd's rules removed: nftables table ip proxyd\n")
    assert node.node.run("nft", "list", "ruleset").stdout == ""


def test_flags_that_are_none_keep_cleanup_from_anything(node: Topology, folder: Path, log: Path, config: Path) -> None:
    with Proxyd(node, folder, log, flags=flags(config)) as proxyd:
        proxyd.stop()
    for words in (["--cleanup", "--dry-run"], ["cleanup", "now"], ["cleanup", "--init-only=maybe"]):
        assert run(node, *words).returncode == 2
    assert answers(node) == {"pod1", "pod3"}


def test_init_only_writes_no_rules_and_needs_no_free_namespace(
    node: Topology, folder: Path, log: Path, config: Path
) -> None:
    done = run(node, "--init-only", *flags(config))
    assert done.returncode == 0
    assert done.stdout.startswith("host settings: nf_conntrack_max=")
    assert node.node.run("nft", "list", "ruleset").stdout == ""
    with Proxyd(node, folder, log, flags=flags(config)):
        assert run(node, "--init-only", *flags(config)).returncode == 0


def test_write_config_to_writes_what_starts_it_just_so(node: Topology, config: Path, tmp_path: Path) -> None:
    config.write_text(OTHER)
    written = tmp_path / "written.yaml"
    done = run(node, *flags(config), "--write-config-to", str(written))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    line = read_arguments(flags(config))
    assert resolve(parse_file(written.read_text()), line).document == load(line).document
    assert run(node, "--v=2", "--write-config-to", str(tmp_path)).stderr.endswith(": Is a directory\n")
    assert run(node, "--proxy-mode=x", f"--write-config-to={tmp_path}/x").returncode == 2
    assert not (tmp_path / "x").exists()
    assert node.node.run("nft", "list", "ruleset").stdout == ""


@pytest.mark.parametrize("words", [("-h",), ("--help",), ("run", "--help=true"), ("cleanup", "--no-such", "-h")])
def test_help_is_grouped_and_has_every_flag(node: Topology, words: tuple[str, ...]) -> None:
    done = run(node, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert {line for line in done.stdout.splitlines() if re.match(r"[A-Z].*:$", line)} >= {"Rules:", "Log:"}
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_version(node: Topology) -> None:
    assert run(node, "--version=raw").stdout == run(node, "--version").stdout
    assert run(node, "--version=v1.2.3").stderr == 'proxyd: --version: must be true or false, got "v1.2.3"\n'


@pytest.mark.parametrize(
    "broken",
    [
        "",
        "words",
        "current-context: a\ncontexts: []\n",
        "current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: []\n",
        "current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://192.0.2.1'}}]\nusers: [{name: u, user: {tokenFile: none}}]\n",
        "current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'https://192.0.2.1', certificate-authority: config.yaml}}]\n",
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_the_users_error(node: Topology, config: Path, broken: str) -> None:
    kubeconfig = config.with_name("kubeconfig")
    kubeconfig.write_text(broken)
    config.write_text(f"{GOOD}clientConnection: {{kubeconfig: {kubeconfig}}}\n")
    done = run(node, *flags(config))
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("proxyd: "))
    assert os.fspath(config.parent) in line
    assert "Traceback" not in done.stderr
    assert node.node.run("nft", "list", "ruleset").stdout == ""
