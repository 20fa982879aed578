"""Every flag: what it sets. The table here says it a second time, in kube-proxy's terms."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.config import Document, Parsed, resolve
from proxyd.config.apply import apply_flags
from proxyd.config.flags import FLAGS, switch
from proxyd.config.leftovers import LEFTOVER_SWITCHES, LEFTOVER_VALUES
from proxyd.config.schema import VModule, leaves
from tests.config.support import by_file, by_flags, flags, refused

# Flag, a text for it, and the fields that it sets with their values.
TABLE: list[tuple[str, str, dict[str, Any]]] = [
    ("--bind-address", "192.0.2.1", {"bindAddress": "192.0.2.1"}),
    ("--bind-address-hard-fail", "true", {"bindAddressHardFail": True}),
    ("--cluster-cidr", "10.0.0.0/8,fd00::/48", {"clusterCIDR": "10.0.0.0/8,fd00::/48"}),
    ("--config-sync-period", "1m", {"configSyncPeriod": 60.0}),
    ("--conntrack-max-per-core", "5", {"conntrack.maxPerCore": 5}),
    ("--conntrack-min", "6", {"conntrack.min": 6}),
    ("--conntrack-tcp-be-liberal", "true", {"conntrack.tcpBeLiberal": True}),
    ("--conntrack-tcp-timeout-close-wait", "2m", {"conntrack.tcpCloseWaitTimeout": 120.0}),
    ("--conntrack-tcp-timeout-established", "0", {"conntrack.tcpEstablishedTimeout": 0.0}),
    ("--conntrack-udp-timeout", "3s", {"conntrack.udpTimeout": 3.0}),
    ("--conntrack-udp-timeout-stream", "1h", {"conntrack.udpStreamTimeout": 3600.0}),
    ("--detect-local-mode", "NodeCIDR", {"detectLocalMode": "NodeCIDR"}),
    ("--feature-gates", "A=true,B=false", {"featureGates": {"A": True, "B": False}}),
    ("--healthz-bind-address", "127.0.0.1:1", {"healthzBindAddress": "127.0.0.1:1"}),
    ("--hostname-override", "n1", {"hostnameOverride": "n1"}),
    ("--iptables-localhost-nodeports", "false", {"iptables.localhostNodePorts": False}),
    ("--iptables-masquerade-bit", "7", {"iptables.masqueradeBit": 7}),
    ("--iptables-min-sync-period", "2s", {"iptables.minSyncPeriod": 2.0, "nftables.minSyncPeriod": 2.0}),
    ("--iptables-sync-period", "40s", {"iptables.syncPeriod": 40.0, "nftables.syncPeriod": 40.0}),
    ("--ipvs-exclude-cidrs", "10.0.0.0/8,11.0.0.0/8", {"ipvs.excludeCIDRs": ("10.0.0.0/8", "11.0.0.0/8")}),
    ("--ipvs-min-sync-period", "1s", {"ipvs.minSyncPeriod": 1.0}),
    ("--ipvs-scheduler", "rr", {"ipvs.scheduler": "rr"}),
    ("--ipvs-strict-arp", "true", {"ipvs.strictARP": True}),
    ("--ipvs-sync-period", "2s", {"ipvs.syncPeriod": 2.0}),
    ("--ipvs-tcp-timeout", "3s", {"ipvs.tcpTimeout": 3.0}),
    ("--ipvs-tcpfin-timeout", "4s", {"ipvs.tcpFinTimeout": 4.0}),
    ("--ipvs-udp-timeout", "5s", {"ipvs.udpTimeout": 5.0}),
    ("--kube-api-burst", "3", {"clientConnection.burst": 3}),
    ("--kube-api-content-type", "application/json", {"clientConnection.contentType": "application/json"}),
    ("--kube-api-qps", "2.5", {"clientConnection.qps": 2.5}),
    ("--kubeconfig", "/k", {"clientConnection.kubeconfig": "/k"}),
    ("--log-flush-frequency", "1s", {"logging.flushFrequency": 1.0}),
    ("--log-json-info-buffer-size", "64Ki", {"logging.options.json.infoBufferSize": "64Ki"}),
    ("--log-json-split-stream", "true", {"logging.options.json.splitStream": True}),
    ("--log-text-info-buffer-size", "1M", {"logging.options.text.infoBufferSize": "1M"}),
    ("--log-text-split-stream", "true", {"logging.options.text.splitStream": True}),
    ("--logging-format", "json", {"logging.format": "json"}),
    ("--masquerade-all", "true", {"iptables.masqueradeAll": True, "nftables.masqueradeAll": True}),
    ("--metrics-bind-address", "[::1]:2", {"metricsBindAddress": "[::1]:2"}),
    ("--nodeport-addresses", "primary,10.0.0.0/8", {"nodePortAddresses": ("primary", "10.0.0.0/8")}),
    ("--oom-score-adj", "-5", {"oomScoreAdj": -5}),
    ("--pod-bridge-interface", "br0", {"detectLocal.bridgeInterface": "br0"}),
    ("--pod-interface-name-prefix", "veth", {"detectLocal.interfaceNamePrefix": "veth"}),
    ("--profiling", "true", {"enableProfiling": True}),
    ("--proxy-mode", "iptables", {"mode": "iptables"}),
    ("--proxy-port-range", "1-2", {"portRange": "1-2"}),
    ("--show-hidden-metrics-for-version", "1.36", {"showHiddenMetricsForVersion": "1.36"}),
    ("--v", "3", {"logging.verbosity": 3}),
    ("--vmodule", "a=1,b*=2", {"logging.vmodule": (VModule("a", 1), VModule("b*", 2))}),
]
# Flags that are no field: where the configuration comes from, and what to do.
OTHERS = {
    *("--config", "--master", "--manifests", "--write-config-to", "--cleanup", "--init-only", "--version", "--help"),
    *("--healthz-port", "--metrics-port", "--page-bind-address"),
}
# These count beside a file as well: what is said about this node and its log.
BESIDE_A_FILE = {
    *("--hostname-override", "--v", "--vmodule", "--logging-format", "--log-flush-frequency"),
    *("--log-json-info-buffer-size", "--log-json-split-stream"),
    *("--log-text-info-buffer-size", "--log-text-split-stream"),
}
# Fields that have no flag in kube-proxy either.
WITHOUT_A_FLAG = {
    "clientConnection.acceptContentTypes",
    "nftables.masqueradeBit",
    "windowsRunAsService",
    *(f"winkernel.{name}" for name in ("networkName", "sourceVip", "enableDSR", "rootHnsEndpointName")),
    "winkernel.forwardHealthCheckVip",
}


def changed(document: Document) -> dict[str, Any]:
    defaults = dict(leaves(Document()))
    return {path: value for path, value in leaves(document) if value != defaults[path]}


def test_the_table_has_all_flags_and_all_fields() -> None:
    assert {name for name, _, _ in TABLE} | OTHERS == {flag.name for flag in FLAGS}
    reached = {path for _, _, fields in TABLE for path in fields}
    assert reached | WITHOUT_A_FLAG == {path for path, _ in leaves(Document())}
    assert {path for flag in FLAGS for path in flag.paths} == reached


@pytest.mark.parametrize(("name", "text", "fields"), TABLE, ids=[name for name, _, _ in TABLE])
def test_a_flag_sets_its_fields_and_no_other(name: str, text: str, fields: dict[str, Any]) -> None:
    underscored = "--" + name[2:].replace("-", "_")
    for words in ((f"{name}={text}",), (f"{underscored}={text}",)):
        applied = apply_flags(Document(), flags(*words))
        assert applied.problems == ()
        assert changed(applied.document) == fields
        assert applied.origins == dict.fromkeys(fields, name)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_a_value_may_be_the_next_word_except_for_switches(flag: Any) -> None:
    line = flags(flag.name, "true")
    if flag.read is switch or flag.name == "--version":
        assert line.given == {flag.name: ("true",)}
        assert [str(problem) for problem in line.problems] == ['takes no arguments, only flags; got "true"']
    else:
        assert (line.given, line.problems) == ({flag.name: ("true",)}, ())
        assert [str(each) for each in flags(flag.name).problems] == [f"{flag.name}: needs a value"]


@pytest.mark.parametrize(("name", "text", "fields"), TABLE, ids=[name for name, _, _ in TABLE])
def test_beside_a_file_a_flag_counts_or_is_named(name: str, text: str, fields: dict[str, Any]) -> None:
    applied = apply_flags(Document(), flags("--config=x", f"{name}={text}"))
    if name in BESIDE_A_FILE:
        assert (changed(applied.document), applied.warnings) == (fields, ())
    else:
        assert (changed(applied.document), applied.warnings) == ({}, (f"ignored because --config is given: {name}",))


@pytest.mark.parametrize("name", LEFTOVER_SWITCHES)
def test_leftover_switches_are_named_and_do_nothing(name: str) -> None:
    assert by_flags(name, f"{name}=anything") == by_flags(name)
    assert by_flags(name).unused == (name,)


@pytest.mark.parametrize("name", LEFTOVER_VALUES)
def test_leftovers_with_a_value_are_named_and_do_nothing(name: str) -> None:
    assert by_flags(name, "--v", f"{name}=x").unused == (name,)
    assert by_flags(name, "--v", f"{name}=x").verbosity == 0


def test_all_that_has_no_effect_is_named_together() -> None:
    config = by_file("ipvs: {scheduler: rr}\nenableProfiling: true", "--logtostderr", "--vmodule=a=1")
    assert config.unused == ("--logtostderr", "--vmodule", "enableProfiling", "ipvs.scheduler")
    assert by_flags("--ipvs-scheduler=rr", "--kube-api-qps=7").unused == ("--kube-api-qps", "--ipvs-scheduler")


def test_a_flag_for_both_modes_is_not_called_idle() -> None:
    assert by_flags("--iptables-sync-period=7s").unused == ()
    assert by_flags("--iptables-masquerade-bit=7").unused == ("--iptables-masquerade-bit",)
    assert by_flags("--iptables-masquerade-bit=7", "--proxy-mode=iptables").unused == ()


# -- the deprecated ports ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "healthz", "metrics"),
    [
        (("--healthz-port=0",), None, ("127.0.0.1", 10249)),
        (("--metrics-port=0",), ("0.0.0.0", 10256), None),
        (("--healthz-port=5", "--metrics-port=6"), ("0.0.0.0", 10256), ("127.0.0.1", 10249)),
        (("--healthz-port=5", "--healthz-bind-address=::1"), ("::1", 5), ("127.0.0.1", 10249)),
        (("--metrics-bind-address=192.0.2.1", "--metrics-port=6"), ("0.0.0.0", 10256), ("192.0.2.1", 6)),
        (("--metrics-bind-address=192.0.2.1:7", "--metrics-port=6"), ("0.0.0.0", 10256), ("192.0.2.1", 7)),
        (("--healthz-bind-address=", "--healthz-port=5"), None, ("127.0.0.1", 10249)),
    ],
)
def test_deprecated_ports(words: tuple[str, ...], healthz: object, metrics: object) -> None:
    config = by_flags(*words)
    assert (config.healthz_address, config.metrics_address) == (healthz, metrics)


def test_deprecated_ports_that_cannot_be() -> None:
    assert refused(Parsed(Document()), "--healthz-port=65536", "--metrics-port=x") == (
        "--healthz-port: must be 0..65535, got 65536",
        '--metrics-port: must be a whole number, got "x"',
    )
    assert by_file("", "--healthz-port=0").healthz_address == ("0.0.0.0", 10256), "the file wins"


# -- words -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [("16", 16), ("0x10", 16), ("020", 16), ("0o20", 16), ("0b1_0000", 16), ("+16", 16), ("1_6", 16), ("-0x1", -1)],
)
def test_whole_numbers_in_all_of_gos_notations(text: str, number: int) -> None:
    assert by_flags(f"--oom-score-adj={text}").oom_score_adj == number


@pytest.mark.parametrize(
    "text", ["", " 1", "1 ", "1.0", "1e2", "0x", "09", "1__0", "_1", "1_", "٣", "--1", "one", "9" * 65, "0_"]
)
def test_no_whole_numbers(text: str) -> None:
    (problem,) = refused(Parsed(Document()), f"--oom-score-adj={text}")
    assert problem.startswith("--oom-score-adj: must be a whole number, got ")


def test_words_that_are_no_flags_are_refused_all_at_once() -> None:
    words = ("nodes", "--no-such-flag", "-masquerade-all", "-x", "--proxymode=a", "--v=2", "--", "a", "--v=3")
    assert refused(Parsed(Document()), *words) == (
        'takes no arguments, only flags; got "nodes"',
        "--no-such-flag: unknown flag",
        "-masquerade-all: unknown flag (did you mean --masquerade-all?)",
        "-x: unknown flag",
        "--proxymode: unknown flag (did you mean --proxy-mode?)",
        'takes no arguments, only flags; got "a"',
        'takes no arguments, only flags; got "--v=3"',
    )


def test_the_last_one_counts_and_lists_add_up() -> None:
    config = by_flags("--v=1", "-v2", "--nodeport-addresses=all", "--nodeport-addresses=10.0.0.0/8")
    assert (config.verbosity, config.node_port_addresses) == (2, ("all", "10.0.0.0/8"))
    document = resolve(Parsed(Document()), flags("--feature-gates=A=true", "--feature-gates=A=false,B=true")).document
    assert document.feature_gates == {"A": False, "B": True}


def test_a_value_may_look_like_a_flag() -> None:
    assert by_flags("--hostname-override", "--masquerade-all").hostname_override == "--masquerade-all"
    assert by_flags("--oom-score-adj", "-5").oom_score_adj == -5
