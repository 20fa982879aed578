"""A configuration that is written reads back as the same one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxyd.config import Document, Parsed, as_file, as_mapping, differences, parse_file, resolve
from proxyd.config.schema import leaves, put
from proxyd.config.values import parse_duration, show_duration
from tests.config.support import by_flags, flags, parse, plain

durations = st.integers(0, 2**63 - 1) | st.integers(0, 10**12)
seconds = st.integers(1000, 10**11).map(lambda n: n / 1000)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,20}", fullmatch=True)

# For each field, values that are valid whatever the others are.
VALID: dict[str, st.SearchStrategy[Any]] = {
    "featureGates": st.dictionaries(names, st.booleans(), max_size=3),
    "clientConnection.kubeconfig": texts,
    "logging.verbosity": st.integers(0, 10),
    "logging.format": st.sampled_from(["", "text", "json"]),
    "hostnameOverride": names
    | st.sampled_from(["", " Node ", "1234", "yes", "1e3", "0x1F", "null", "~", "2024-01-01"]),
    "bindAddress": st.sampled_from(["0.0.0.0", "::", "192.0.2.01", "fd00::1"]),
    "healthzBindAddress": st.sampled_from([None, "0.0.0.0:1", "[::1]:2", "192.0.2.1"]),
    "metricsBindAddress": st.sampled_from([None, "127.0.0.1:1", "[::1]:2", "::1"]),
    "bindAddressHardFail": st.booleans(),
    "mode": st.sampled_from(["", "nftables", "iptables"]),
    "nftables.masqueradeBit": st.integers(0, 31),
    "nftables.masqueradeAll": st.booleans(),
    "nftables.syncPeriod": seconds,
    "iptables.masqueradeBit": st.integers(0, 31),
    "iptables.localhostNodePorts": st.booleans(),
    "iptables.syncPeriod": seconds,
    "detectLocalMode": st.sampled_from(["", "ClusterCIDR", "NodeCIDR"]),
    "detectLocal.bridgeInterface": names,
    "clusterCIDR": st.sampled_from(["", "10.0.0.0/8", "10.1.2.3/8, fd00::/48"]),
    "nodePortAddresses": st.lists(st.sampled_from(["primary", "all", "10.1.0.0/16", "fd00::/48"]), max_size=3).map(
        tuple
    ),
    "oomScoreAdj": st.integers(-1000, 1000),
    "conntrack.maxPerCore": st.integers(0, 2**31 - 1),
    "conntrack.tcpEstablishedTimeout": durations.map(lambda n: n / 10**9),
    "conntrack.udpTimeout": durations.map(lambda n: n / 10**9),
    "conntrack.tcpBeLiberal": st.booleans(),
    "clientConnection.qps": st.floats(0.5, 1000, width=32),
    "ipvs.excludeCIDRs": st.lists(names, max_size=2).map(tuple),
}
documents = st.dictionaries(st.sampled_from(sorted(VALID)), st.none(), max_size=8).flatmap(
    lambda chosen: st.fixed_dictionaries({path: VALID[path] for path in chosen})
)


def document_of(values: dict[str, Any]) -> Document:
    document = Document()
    for path, value in values.items():
        document = put(document, path, value)
    return document


@settings(deadline=None, max_examples=50)
@given(documents)
def test_what_is_written_reads_back_as_the_same(values: dict[str, Any]) -> None:
    config = resolve(Parsed(document_of(values)), flags("--config=x"))
    text, lost = as_file(config)
    parsed = parse_file(text)
    assert (parsed.problems, parsed.warnings, lost) == ((), (), ())
    again = resolve(parsed, flags("--config=x"))
    assert plain(again) == msgspec.structs.replace(plain(config), unused=again.unused)
    assert set(again.unused) >= set(config.unused)
    assert differences(config, again) == ()
    assert as_file(again)[0] == text


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        (("--healthz-bind-address=",), ["healthzBindAddress"]),
        (("--metrics-port=0",), ["metricsBindAddress"]),
        (("--iptables-min-sync-period=0",), ["nftables.minSyncPeriod", "iptables.minSyncPeriod"]),
        (("--kube-api-burst=0", "--kube-api-qps=0"), ["clientConnection.burst", "clientConnection.qps"]),
        (("--master=http://x", "--manifests=/m"), ["--master", "--manifests"]),
    ],
)
def test_what_a_file_cannot_say_is_told(words: tuple[str, ...], lost: list[str]) -> None:
    _, told = as_file(resolve(Parsed(Document()), flags(*words)))
    assert sorted(each.partition(":")[0] for each in told) == sorted(lost)


def test_the_mapping_is_the_whole_configuration_with_nothing_left_to_be_worked_out() -> None:
    mapping = as_mapping(resolve(parse("bindAddress: '::'\n"), flags("--config=x", "--v=2")).document)
    assert (mapping["apiVersion"], mapping["kind"]) == ("kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration")
    assert mapping["mode"] == "nftables"
    assert mapping["detectLocalMode"] == "ClusterCIDR"
    assert mapping["nodePortAddresses"] == ["primary"]
    assert (mapping["healthzBindAddress"], mapping["metricsBindAddress"]) == ("[::]:10256", "[::1]:10249")
    assert mapping["conntrack"]["tcpEstablishedTimeout"] == "24h0m0s"
    assert mapping["logging"]["verbosity"] == 2
    assert mapping["clientConnection"]["qps"] == 5


def test_every_field_is_written() -> None:
    def paths(value: object, at: str = "") -> set[str]:
        if not isinstance(value, dict) or not value:
            return {at}
        return set().union(*(paths(item, f"{at}.{key}" if at else key) for key, item in value.items()))

    text, _ = as_file(resolve(Parsed(Document()), flags()))
    assert paths(yaml.safe_load(text)) - {"apiVersion", "kind"} == {path for path, _ in leaves(Document())}


def test_lists_of_blocks_are_written() -> None:
    body = 'logging: {vmodule: [{filePattern: "a*", verbosity: 3}]}\n'
    config = resolve(parse(body), flags("--config=x"))
    assert resolve(parse_file(as_file(config)[0]), flags("--config=x")).document == config.document


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0s"),
        (1.0, "1s"),
        (1.5, "1.5s"),
        (60.0, "1m0s"),
        (900.0, "15m0s"),
        (86400.0, "24h0m0s"),
        (3600.05, "1h0m0.05s"),
        (0.1, "100ms"),
        (0.0015, "1.5ms"),
        (1.5e-5, "15µs"),
        (1e-9, "1ns"),
        (-90.0, "-1m30s"),
        (2.0**33, "2386092h56m32s"),
    ],
)
def test_durations_are_written_as_go_does(number: float, text: str) -> None:
    assert show_duration(number) == text


@settings(deadline=None)
@example(2**63 - 1, False)
@given(durations, st.booleans())
def test_durations_read_back_exactly(nanoseconds: int, negative: bool) -> None:
    value = (-nanoseconds if negative else nanoseconds) / 10**9
    assert parse_duration(show_duration(value)) == value


def test_an_empty_list_of_node_ports_in_iptables_mode_stays_one() -> None:
    config = by_flags("--proxy-mode=iptables", "--nodeport-addresses=")
    assert config.node_port_addresses == ()
