"""File and flags to the Config in effect: real files, precedence, and all problems at once."""

import argparse
from pathlib import Path

import msgspec
import pytest

from proxyd.config import Config, ConfigError, Conntrack, Document, Parsed, add_flags, load, parse_file, resolve
from proxyd.model import Family

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

# What kubeadm 1.3x writes into the ConfigMap kube-system/kube-proxy.
KUBEADM = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"""

# kind hands kubeadm a few settings of its own (here: dual-stack, nftables); the rest is as above.
KIND = (
    KUBEADM.replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56")
    .replace("maxPerCore: null", "maxPerCore: 0")
    .replace('mode: ""', "mode: nftables")
    .replace("  minSyncPeriod: 0s\n  syncPeriod: 0s\nipvs", "  minSyncPeriod: 1s\n  syncPeriod: 0s\nipvs")
)

DEFAULT = Config(
    mode="nftables",
    kubeconfig="",
    master="",
    manifests=None,
    hostname_override="",
    sync_period=30.0,
    min_sync_period=1.0,
    config_sync_period=900.0,
    masquerade_all=False,
    masquerade_mark=0x4000,
    cluster_cidrs={},
    detect_local_mode="ClusterCIDR",
    bridge_interface="",
    interface_name_prefix="",
    node_port_addresses=("primary",),
    bind_address="0.0.0.0",
    healthz_address=("0.0.0.0", 10256),
    metrics_address=("127.0.0.1", 10249),
    bind_address_hard_fail=False,
    verbosity=0,
    logging_format="",
    conntrack=Conntrack(),
    oom_score_adj=-999,
)


def parse(body: str) -> Parsed:
    return parse_file(HEAD + body)


def flags(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parser.parse_args(argv)


def by_file(body: str, *argv: str) -> Config:
    return resolve(parse(body), flags("--config=x", *argv))


def default(**changes: object) -> Config:
    return msgspec.structs.replace(DEFAULT, **changes)


def refused(parsed: Parsed, *argv: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        resolve(parsed, flags(*argv))
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_nothing_given() -> None:
    assert resolve(Parsed(Document()), flags()) == DEFAULT
    assert load(argparse.Namespace()) == DEFAULT
    assert by_file("") == DEFAULT


def test_the_file_of_kubeadm() -> None:
    config = resolve(
        parse_file(KUBEADM), flags("--config=/var/lib/kube-proxy/config.conf", "--hostname-override=Node-1")
    )
    assert config == default(
        kubeconfig="/var/lib/kube-proxy/kubeconfig.conf",
        hostname_override="node-1",
        cluster_cidrs={Family.IPV4: "10.244.0.0/16"},
    )


def test_the_file_of_kind() -> None:
    assert resolve(parse_file(KIND), flags("--config=x")) == default(
        kubeconfig="/var/lib/kube-proxy/kubeconfig.conf",
        cluster_cidrs={Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/56"},
        conntrack=Conntrack(max_per_core=0),
    )


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
        node_port_addresses=("all",),
        unused=(
            "iptables.localhostNodePorts",
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
        config_sync_period=60.0,
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
    )


def test_feature_gates_of_our_own_are_acted_on() -> None:
    gates = "featureGates: {ResetGoneTCP: true, AllServiceMetrics: true}"
    assert by_file(gates) == default(reset_gone_tcp=True, all_service_metrics=True)


@pytest.mark.parametrize(("gates", "expected"), [("{}", True), ("{X: true}", True), ("{X: false}", False)])
def test_the_gate_of_localhost_node_ports_is_known_and_only_switches_them_off(gates: str, expected: bool) -> None:
    gates = gates.replace("X", "KubeProxyNFTablesLocalhostNodePorts")
    assert by_file(f"featureGates: {gates}") == default(localhost_node_ports=expected)


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


def test_warnings_of_file_flags_and_advice_are_all_kept() -> None:
    body = "mode: nftables\nmode: iptables\nmod: x\n"
    assert by_file(body, "--kubeconfig=/k").warnings == (
        "mode: duplicate field (line 4), the last one counts",
        "mod: unknown field, ignored",
        "ignored because --config is given: --kubeconfig",
        'nodePortAddresses: unset, so node ports answer on every local address; consider "primary"',
    )


def test_load_reads_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.conf"
    file.write_text(KUBEADM, encoding="utf-8")
    config = load(flags(f"--config={file}"))
    assert config.cluster_cidrs == {Family.IPV4: "10.244.0.0/16"}
    assert config == resolve(parse_file(KUBEADM), flags("--config=x"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    for path, reason in (
        (f"{tmp_path}/none", "No such file or directory"),
        (f"{tmp_path}", "Is a directory"),
        (f"{binary}", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("a\0b", "embedded null byte"),
    ):
        with pytest.raises(ConfigError) as caught:
            load(flags(f"--config={path}", "-v=x"))
        assert caught.value.problems == (
            f"--config: cannot read {path}: {reason}",
            '--v: must be a whole number, got "x"',
        )


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        DEFAULT.mode = "iptables"  # type: ignore[misc]
