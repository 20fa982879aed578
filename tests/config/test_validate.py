"""The rules for a configuration that is well typed: each row of kube-proxy's validation, and what is only advised."""

import pytest

from proxyd.config.validate import advise, cluster_cidrs, host_port, node_port_address, validate
from proxyd.model import Family
from tests.config.support import parse


def problems(body: str) -> list[str]:
    parsed = parse(body)
    assert parsed.problems == ()
    return [str(problem) for problem in validate(parsed.document)]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("mode: ipvs", "mode: ipvs is not supported by proxyd; use nftables or iptables"),
        ("mode: kernelspace", 'mode: must be nftables or iptables, got "kernelspace"'),
        ("mode: NFTables", 'mode: must be nftables or iptables, got "NFTables"'),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: must be 0..31, got 32"),
        ("mode: nftables\niptables: {masqueradeBit: -1}", "iptables.masqueradeBit: must be 0..31, got -1"),
        ("nftables: {masqueradeBit: 32}", "nftables.masqueradeBit: must be 0..31, got 32"),
        ("mode: nftables\nnftables: {masqueradeBit: -1}", "nftables.masqueradeBit: must be 0..31, got -1"),
        ("nftables: {syncPeriod: -1s}", "nftables.syncPeriod: must be > 0, got -1s"),
        ("nftables: {minSyncPeriod: -1s}", "nftables.minSyncPeriod: must be >= 0, got -1s"),
        (
            "nftables: {syncPeriod: 100ms, minSyncPeriod: 1m}",
            "nftables.minSyncPeriod: must be <= syncPeriod (0.1s), got 60s",
        ),
        (
            "mode: iptables\niptables: {syncPeriod: 500ms}",
            "iptables.minSyncPeriod: must be <= syncPeriod (0.5s), got 1s",
        ),
        ("configSyncPeriod: -1m", "configSyncPeriod: must be > 0, got -60s"),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore: must be >= 0, got -1"),
        ("conntrack: {min: -1}", "conntrack.min: must be >= 0, got -1"),
        ("conntrack: {tcpEstablishedTimeout: -1s}", "conntrack.tcpEstablishedTimeout: must be >= 0, got -1s"),
        ("conntrack: {tcpCloseWaitTimeout: -1s}", "conntrack.tcpCloseWaitTimeout: must be >= 0, got -1s"),
        ("conntrack: {udpTimeout: -1s}", "conntrack.udpTimeout: must be >= 0, got -1s"),
        ("conntrack: {udpStreamTimeout: -1500ms}", "conntrack.udpStreamTimeout: must be >= 0, got -1.5s"),
        ("clientConnection: {burst: -1}", "clientConnection.burst: must be >= 0, got -1"),
        ("logging: {verbosity: -1}", "logging.verbosity: must be >= 0, got -1"),
        ("logging: {format: xml}", 'logging.format: must be text or json, got "xml"'),
        ("oomScoreAdj: -1001", "oomScoreAdj: must be -1000..1000, got -1001"),
        ("oomScoreAdj: 1001", "oomScoreAdj: must be -1000..1000, got 1001"),
        ("hostnameOverride: '  '", "hostnameOverride: must not be blank"),
        (
            "showHiddenMetricsForVersion: v1",
            'showHiddenMetricsForVersion: must be a minor version such as "1.36", got "v1"',
        ),
        ("bindAddress: localhost", 'bindAddress: must be an IP address, got "localhost"'),
        ("bindAddress: 10.0.0.256", 'bindAddress: must be an IP address, got "10.0.0.256"'),
        (
            "healthzBindAddress: 0.0.0.0:0",
            'healthzBindAddress: must be IP:port with a port of 1..65535, or an IP, got "0.0.0.0:0"',
        ),
        (
            "metricsBindAddress: localhost:10249",
            'metricsBindAddress: must be IP:port with a port of 1..65535, or an IP, got "localhost:10249"',
        ),
        (
            "nodePortAddresses: [10.0.0.0/8, 10.0.0.0/33]",
            'nodePortAddresses[1]: "10.0.0.0/33" is not a CIDR such as 10.0.0.0/8, nor primary, localhost or all',
        ),
        (
            "mode: iptables\nnodePortAddresses: [Primary]",
            'nodePortAddresses[0]: "Primary" is not a CIDR such as 10.0.0.0/8, nor primary, localhost or all',
        ),
        (
            "detectLocalMode: clusterCIDR",
            "detectLocalMode: must be one of ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix,"
            ' got "clusterCIDR"',
        ),
        (
            "detectLocalMode: BridgeInterface",
            "detectLocal.bridgeInterface: must be set for detectLocalMode BridgeInterface",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {bridgeInterface: br0}",
            "detectLocal.interfaceNamePrefix: must be set for detectLocalMode InterfaceNamePrefix",
        ),
        (
            "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: 'cali*'}",
            'detectLocal.interfaceNamePrefix: must be 1..15 characters of A-Z a-z 0-9 _ . @ -, got "cali*"',
        ),
        (
            "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: sixteen-letters-}",
            'detectLocal.bridgeInterface: must be 1..15 characters of A-Z a-z 0-9 _ . @ -, got "sixteen-letters-"',
        ),
        ("clusterCIDR: 10.0.0.0", 'clusterCIDR: "10.0.0.0" is not a CIDR such as 10.244.0.0/16'),
        ("clusterCIDR: '10.0.0.0/8,'", 'clusterCIDR: "" is not a CIDR such as 10.244.0.0/16'),
        (
            "clusterCIDR: 10.0.0.0/8,11.0.0.0/8",
            'clusterCIDR: may have one CIDR of each family, got two of IPv4: "10.0.0.0/8,11.0.0.0/8"',
        ),
        (
            "detectLocalMode: ClusterCIDR\nclusterCIDR: fd00::/48,10.0.0.0/8,fd01::/48",
            'clusterCIDR: may have one CIDR of each family, got two of IPv6: "fd00::/48,10.0.0.0/8,fd01::/48"',
        ),
    ],
)
def test_refused(body: str, problem: str) -> None:
    assert problems(body) == [problem]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "mode: nftables",
        "mode: iptables",
        "iptables: {masqueradeBit: 0}\nnftables: {masqueradeBit: 31}",
        "mode: iptables\nnftables: {masqueradeBit: 99, syncPeriod: -1s}",
        "mode: nftables\niptables: {syncPeriod: -1s, minSyncPeriod: -1s}",
        "nftables: {syncPeriod: 1s, minSyncPeriod: 1s}",
        "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
        "oomScoreAdj: -1000",
        "oomScoreAdj: 1000",
        "bindAddress: 010.0.0.01",
        "bindAddress: '::'",
        "healthzBindAddress: 0.0.0.0:65535\nmetricsBindAddress: 127.0.0.1:1",
        "nodePortAddresses: [primary, localhost, all, 10.1.2.3/8, 'fd00::/48']",
        "detectLocalMode: NodeCIDR\nclusterCIDR: not looked at",
        "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: 'not looked at'}",
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
        "detectLocal: {bridgeInterface: 'not looked at'}",
        "clusterCIDR: 10.0.0.0/8, fd00::/48",
        "showHiddenMetricsForVersion: '1.36'",
        "featureGates: {NoSuchGate: true}",
        "ipvs: {syncPeriod: -1s}",
    ],
)
def test_accepted(body: str) -> None:
    assert problems(body) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.0.0.0:10256", ("0.0.0.0", 10256)),
        (" 127.0.0.1:1 ", ("127.0.0.1", 1)),
        ("010.0.0.1:80", ("10.0.0.1", 80)),
        ("192.0.2.1", ("192.0.2.1", 99)),
        ("::", ("::", 99)),
        ("fd00:0::1", ("fd00::1", 99)),
        ("[::1]:10249", ("::1", 10249)),
        ("[FD00::1]:65535", ("fd00::1", 65535)),
        ("", None),
        (":80", None),
        ("[]:80", None),
        ("[::1]", None),
        ("[::1:80", None),
        ("::1]:80", None),
        ("fd00::1:10249", None),
        ("0.0.0.0:", None),
        ("0.0.0.0:0", None),
        ("0.0.0.0:65536", None),
        ("0.0.0.0:-1", None),
        ("0.0.0.0:http", None),
        ("0.0.0.0:80:80", None),
        ("example.org:80", None),
        ("[fe80::1%eth0]:80", None),
        ("[::ffff:1.2.3.4]:80", None),
    ],
)
def test_host_port(text: str, expected: tuple[str, int] | None) -> None:
    assert host_port(text, 99) == expected


def test_cluster_cidrs_are_canonical_and_by_family() -> None:
    assert cluster_cidrs("") == {}
    assert cluster_cidrs(" ") == {}
    assert cluster_cidrs("10.1.2.3/8") == {Family.IPV4: "10.0.0.0/8"}
    assert cluster_cidrs("FD00:0::1/48 , 010.0.0.0/16") == {Family.IPV6: "fd00::/48", Family.IPV4: "10.0.0.0/16"}


def test_node_port_addresses() -> None:
    assert [node_port_address(text) for text in ("primary", "localhost", "all")] == ["primary", "localhost", "all"]
    assert node_port_address("10.1.2.3/8") == "10.0.0.0/8"
    assert node_port_address("10.1.2.3") is None
    assert node_port_address("") is None


@pytest.mark.parametrize(
    ("body", "advice"),
    [
        ("", ()),
        (
            "featureGates: {A: true, B: false}",
            ("featureGates.A: unknown to proxyd, ignored", "featureGates.B: unknown to proxyd, ignored"),
        ),
        (
            "mode: iptables",
            ('nodePortAddresses: unset, so node ports answer on every local address; consider "primary"',),
        ),
        ("mode: iptables\nnodePortAddresses: [primary]", ()),
    ],
)
def test_advice(body: str, advice: tuple[str, ...]) -> None:
    assert advise(parse(body).document) == advice
