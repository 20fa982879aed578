"""File and flags to the Config in effect: real files, precedence, and all problems at once."""

from pathlib import Path

import msgspec
import pytest

from proxyd.config import CommandLine, Config, ConfigError, Conntrack, Document, Parsed, load, parse_file, resolve
from proxyd.model import Family
from tests.config.support import HEAD, by_file, flags, plain, refused

DEFAULT = Config(
    mode="nftables",
    kubeconfig="",
    master="",
    manifests=None,
    hostname_override="",
    sync_period=30.0,
    min_sync_period=1.0,
    masquerade_all=False,
    masquerade_mark=0x4000,
    localhost_node_ports=True,
    cluster_cidrs={},
    detect_local_mode="ClusterCIDR",
    bridge_interface="",
    interface_name_prefix="",
    node_port_addresses=("primary",),
    bind_address="0.0.0.0",
    healthz_address=("0.0.0.0", 10256),
    metrics_address=("127.0.0.1", 10249),
    page_address=("127.0.0.1", 10253),
    bind_address_hard_fail=False,
    verbosity=0,
    logging_format="",
    conntrack=Conntrack(),
    oom_score_adj=-999,
)


def default(**changes: object) -> Config:
    return msgspec.structs.replace(DEFAULT, **changes)


def test_nothing_given() -> None:
    assert plain(resolve(Parsed(Document()), flags())) == DEFAULT
    assert plain(load(CommandLine({}))) == DEFAULT
    assert by_file("") == DEFAULT


def test_the_block_of_the_active_mode_counts() -> None:
    blocks = """
iptables: {masqueradeAll: true, masqueradeBit: 0, minSyncPeriod: 2s, syncPeriod: 3s, localhostNodePorts: false}
nftables: {masqueradeAll: false, masqueradeBit: 31, minSyncPeriod: 4s, syncPeriod: 5s}
"""
    in_nftables = by_file("mode: nftables" + blocks)
    assert in_nftables == default(
        sync_period=5.0,
        min_sync_period=4.0,
        masquerade_mark=0x80000000,
        unused=(
            "iptables.masqueradeBit",
            "iptables.masqueradeAll",
            "iptables.syncPeriod",
            "iptables.minSyncPeriod",
            "iptables.localhostNodePorts",
        ),
    )
    assert by_file(blocks) == in_nftables, "an empty mode is nftables"
    assert by_file("nodePortAddresses: [all]\nmode: iptables" + blocks) == default(
        mode="iptables",
        sync_period=3.0,
        min_sync_period=2.0,
        masquerade_all=True,
        masquerade_mark=1,
        localhost_node_ports=False,
        node_port_addresses=("all",),
        unused=(
            "nftables.masqueradeBit",
            "nftables.syncPeriod",
            "nftables.minSyncPeriod",
        ),
    )


def test_what_is_acted_on_is_not_unused() -> None:
    config = by_file(
        """
mode: nftables
hostnameOverride: " Node-A "
clientConnection: {kubeconfig: /k}
clusterCIDR: 10.0.0.0/8
detectLocalMode: BridgeInterface
detectLocal: {bridgeInterface: br0, interfaceNamePrefix: veth}
nodePortAddresses: [10.1.2.3/8, localhost]
nftables: {masqueradeAll: true, masqueradeBit: 1, minSyncPeriod: 2s, syncPeriod: 3s}
healthzBindAddress: 192.0.2.1
metricsBindAddress: "[::1]:1"
bindAddress: 192.0.2.01
bindAddressHardFail: true
logging: {format: text, verbosity: 3}
configSyncPeriod: 1m
"""
    )
    assert config == default(
        kubeconfig="/k",
        hostname_override="node-a",
        sync_period=3.0,
        min_sync_period=2.0,
        masquerade_all=True,
        masquerade_mark=2,
        cluster_cidrs={Family.IPV4: "10.0.0.0/8"},
        detect_local_mode="BridgeInterface",
        bridge_interface="br0",
        interface_name_prefix="veth",
        node_port_addresses=("10.0.0.0/8", "localhost"),
        bind_address="192.0.2.1",
        healthz_address=("192.0.2.1", 10256),
        metrics_address=("::1", 1),
        bind_address_hard_fail=True,
        verbosity=3,
        logging_format="text",
        unused=("configSyncPeriod",),
    )


def test_what_is_not_acted_on_is_unused() -> None:
    config = by_file(
        "oomScoreAdj: -5\nenableProfiling: true\nconntrack: {min: 5}\nlogging: {options: {json: {splitStream: true}}}\n"
        "ipvs: {scheduler: rr}\nfeatureGates: {A: true}\n"
    )
    assert config == default(
        oom_score_adj=-5,
        conntrack=Conntrack(min=5),
        unused=(
            "logging.options.json.splitStream",
            "enableProfiling",
            "ipvs.scheduler",
        ),
        warnings=("featureGates.A: unknown to proxyd, ignored",),
    )


@pytest.mark.parametrize(
    ("body", "healthz", "metrics"),
    [
        ("bindAddress: '::'", ("::", 10256), ("::1", 10249)),
        ("bindAddress: fd00::1", ("::", 10256), ("::1", 10249)),
        (
            "bindAddress: fd00::1\nhealthzBindAddress: 0.0.0.0\nmetricsBindAddress: ''",
            ("0.0.0.0", 10256),
            ("::1", 10249),
        ),
        ("healthzBindAddress: '::'\nmetricsBindAddress: '::1'", ("::", 10256), ("::1", 10249)),
        ("bindAddress: 192.0.2.1", ("0.0.0.0", 10256), ("127.0.0.1", 10249)),
    ],
)
def test_default_hosts_and_ports(body: str, healthz: tuple[str, int], metrics: tuple[str, int]) -> None:
    config = by_file(body)
    assert (config.healthz_address, config.metrics_address) == (healthz, metrics)


def test_a_cluster_cidr_that_is_not_used_may_be_anything() -> None:
    assert by_file("detectLocalMode: NodeCIDR\nclusterCIDR: x").cluster_cidrs == {}
    assert by_file("detectLocalMode: NodeCIDR\nclusterCIDR: 10.0.0.0/8").cluster_cidrs == {Family.IPV4: "10.0.0.0/8"}


def test_all_problems_of_file_and_flags_at_once() -> None:
    text = """\
apiVersion: kubeproxy.config.k8s.io/v1
kind: KubeProxyConfiguration
mode: ipvs
oomScoreAdj: "-999"
conntrack: {min: -1, udpTimeout: 5}
nodePortAddresses: [primary, 10.0.0.0/33, 5.5.5.5]
healthzBindAddress: 0.0.0.0:99999
nftables: {minSyncPeriod: 5m}
iptables: {masqueradeBit: 40}
clusterCIDR: 10.0.0.0/8,10.0.0.0/9
unknown: 1
"""
    assert refused(parse_file(text), "--config=x", "-v=much", "--logging-format=xml") == (
        'apiVersion: must be "kubeproxy.config.k8s.io/v1alpha1", got "kubeproxy.config.k8s.io/v1"',
        'oomScoreAdj: must be a whole number, got "-999"',
        'conntrack.udpTimeout: must be a duration with a unit, such as "30s", got 5',
        '--v: must be a whole number, got "much"',
        "mode: ipvs is not supported by proxyd; use nftables or iptables",
        "iptables.masqueradeBit: must be 0..31, got 40",
        "nftables.minSyncPeriod: must be <= syncPeriod (30s), got 300s",
        "conntrack.min: must be >= 0, got -1",
        '--logging-format: must be text or json, got "xml"',
        'healthzBindAddress: must be IP:port with a port of 1..65535, or an IP, got "0.0.0.0:99999"',
        'nodePortAddresses[1]: "10.0.0.0/33" is not a CIDR such as 10.0.0.0/8, nor primary, localhost or all',
        'nodePortAddresses[2]: "5.5.5.5" is not a CIDR such as 10.0.0.0/8, nor primary, localhost or all',
        'clusterCIDR: may have one CIDR of each family, got two of IPv4: "10.0.0.0/8,10.0.0.0/9"',
    )


@pytest.mark.parametrize(("gates", "expected"), [("{}", True), ("{X: true}", True), ("{X: false}", False)])
def test_the_gate_of_localhost_node_ports_is_known_and_only_switches_them_off(gates: str, expected: bool) -> None:
    gates = gates.replace("X", "KubeProxyNFTablesLocalhostNodePorts")
    assert by_file(f"featureGates: {gates}") == default(localhost_node_ports=expected)


def test_localhost_node_ports_of_iptables_mode_are_a_field_of_its_own() -> None:
    body = "mode: iptables\niptables: {localhostNodePorts: false}\nnodePortAddresses: [primary]\n"
    assert not by_file(body).localhost_node_ports
    assert by_file(body.replace("mode: iptables", "mode: nftables")).localhost_node_ports


def test_warnings_of_file_flags_and_advice_are_all_kept() -> None:
    body = "mode: nftables\nmode: iptables\nmod: x\n"
    assert by_file(body, "--kubeconfig=/k").warnings == (
        "mode: duplicate field (line 4), the last one counts",
        "mod: unknown field, ignored (did you mean mode?)",
        "ignored because --config is given: --kubeconfig",
        'nodePortAddresses: unset, so node ports answer on every local address; consider "primary"',
    )


def test_load_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.conf"
    file.write_text(f"{HEAD}clusterCIDR: 10.244.0.0/16\n", encoding="utf-8")
    assert plain(load(flags(f"--config={file}"))) == default(cluster_cidrs={Family.IPV4: "10.244.0.0/16"})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path, reason in (
        (f"{tmp_path}/none", "No such file or directory"),
        (f"{tmp_path}", "Is a directory"),
        (f"{binary}", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(flags(f"--config={path}", "-v=x"))
        assert caught.value.problems == (
            f"--config: cannot read {path}: {reason}",
            '--v: must be a whole number, got "x"',
        )


def test_a_path_that_cannot_be_shown_is_quoted() -> None:
    with pytest.raises(ConfigError, match=r'--config: cannot read "a\\u0000b": embedded null byte'):
        load(flags("--config=a\0b"))


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        DEFAULT.mode = "iptables"  # type: ignore[misc]
