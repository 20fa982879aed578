"""The configuration file: what is read, what is refused and where, and what is only warned about."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyd.config import Document, Parsed, parse_file
from proxyd.config.schema import VModule, leaves
from proxyd.config.values import parse_duration, show
from tests.config.support import parse


def problems(body: str) -> list[str]:
    return [str(problem) for problem in parse(body).problems]


def changed(document: Document) -> dict[str, object]:
    defaults = dict(leaves(Document()))
    return {path: value for path, value in leaves(document) if value != defaults[path]}


def test_only_the_head_gives_the_defaults_of_kube_proxy() -> None:
    assert parse("") == Parsed(Document())
    assert dict(leaves(Document())) == {
        "featureGates": {},
        "clientConnection.kubeconfig": "",
        "clientConnection.acceptContentTypes": "",
        "clientConnection.contentType": "application/vnd.kubernetes.protobuf",
        "clientConnection.qps": 5.0,
        "clientConnection.burst": 10,
        "logging.format": "",
        "logging.flushFrequency": 5.0,
        "logging.verbosity": 0,
        "logging.vmodule": (),
        "logging.options.text.splitStream": False,
        "logging.options.text.infoBufferSize": "0",
        "logging.options.json.splitStream": False,
        "logging.options.json.infoBufferSize": "0",
        "hostnameOverride": "",
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": None,
        "metricsBindAddress": None,
        "bindAddressHardFail": False,
        "enableProfiling": False,
        "showHiddenMetricsForVersion": "",
        "mode": "",
        "iptables.masqueradeBit": 14,
        "iptables.masqueradeAll": False,
        "iptables.syncPeriod": 30.0,
        "iptables.minSyncPeriod": 1.0,
        "iptables.localhostNodePorts": True,
        "ipvs.syncPeriod": 30.0,
        "ipvs.minSyncPeriod": 0.0,
        "ipvs.scheduler": "",
        "ipvs.excludeCIDRs": (),
        "ipvs.strictARP": False,
        "ipvs.tcpTimeout": 0.0,
        "ipvs.tcpFinTimeout": 0.0,
        "ipvs.udpTimeout": 0.0,
        "nftables.masqueradeBit": 14,
        "nftables.masqueradeAll": False,
        "nftables.syncPeriod": 30.0,
        "nftables.minSyncPeriod": 1.0,
        "winkernel.networkName": "",
        "winkernel.sourceVip": "",
        "winkernel.enableDSR": False,
        "winkernel.rootHnsEndpointName": "",
        "winkernel.forwardHealthCheckVip": False,
        "detectLocalMode": "",
        "detectLocal.bridgeInterface": "",
        "detectLocal.interfaceNamePrefix": "",
        "clusterCIDR": "",
        "nodePortAddresses": (),
        "oomScoreAdj": -999,
        "conntrack.maxPerCore": 32768,
        "conntrack.min": 131072,
        "conntrack.tcpEstablishedTimeout": 86400.0,
        "conntrack.tcpCloseWaitTimeout": 3600.0,
        "conntrack.tcpBeLiberal": False,
        "conntrack.udpTimeout": 0.0,
        "conntrack.udpStreamTimeout": 0.0,
        "configSyncPeriod": 900.0,
        "portRange": "",
        "windowsRunAsService": False,
    }


def test_every_field_can_be_set() -> None:
    parsed = parse(
        """
bindAddress: 192.0.2.1
bindAddressHardFail: true
clientConnection: {acceptContentTypes: a, burst: 20, contentType: application/json, kubeconfig: /k, qps: 7.5}
clusterCIDR: 10.0.0.0/8
configSyncPeriod: 1m
conntrack: {maxPerCore: 0, min: 1, tcpBeLiberal: true, tcpCloseWaitTimeout: 2s, tcpEstablishedTimeout: 0s,
            udpStreamTimeout: 3s, udpTimeout: 4s}
detectLocal: {bridgeInterface: br0, interfaceNamePrefix: veth}
detectLocalMode: NodeCIDR
enableProfiling: true
featureGates: {SomeGate: true, Other: false}
healthzBindAddress: 0.0.0.0:1
metricsBindAddress: 0.0.0.0:2
hostnameOverride: n1
iptables: {localhostNodePorts: false, masqueradeAll: true, masqueradeBit: 1, minSyncPeriod: 2s, syncPeriod: 3s}
nftables: {masqueradeAll: true, masqueradeBit: 2, minSyncPeriod: 4s, syncPeriod: 5s}
ipvs: {excludeCIDRs: [10.0.0.0/8], minSyncPeriod: 1s, scheduler: rr, strictARP: true, syncPeriod: 2s,
       tcpFinTimeout: 3s, tcpTimeout: 4s, udpTimeout: 5s}
logging:
  flushFrequency: 1s
  format: json
  verbosity: 2
  vmodule: [{filePattern: "proxier*", verbosity: 4}]
  options: {json: {infoBufferSize: 64Ki, splitStream: true}, text: {infoBufferSize: 12, splitStream: true}}
mode: iptables
nodePortAddresses: [primary, 10.0.0.0/8]
oomScoreAdj: -1
portRange: 1-2
showHiddenMetricsForVersion: "1.36"
windowsRunAsService: true
winkernel: {enableDSR: true, forwardHealthCheckVip: true, networkName: a, rootHnsEndpointName: b, sourceVip: c}
"""
    )
    assert parsed.problems == ()
    assert parsed.warnings == ()
    values = dict(leaves(parsed.document))
    assert changed(parsed.document) == values, "each field differs from its default"
    assert values["clientConnection.qps"] == 7.5
    assert values["conntrack.tcpEstablishedTimeout"] == 0.0
    assert values["logging.vmodule"] == (VModule("proxier*", 4),)
    assert values["logging.options.text.infoBufferSize"] == "12"
    assert values["nodePortAddresses"] == ("primary", "10.0.0.0/8")
    assert values["featureGates"] == {"SomeGate": True, "Other": False}


@pytest.mark.parametrize(
    "body",
    [
        "bindAddress: ''",
        "healthzBindAddress: ''",
        "metricsBindAddress: ''",
        "configSyncPeriod: 0s",
        "iptables: {syncPeriod: 0s, minSyncPeriod: 0s, masqueradeBit: null, localhostNodePorts: null}",
        "nftables: {syncPeriod: 0, minSyncPeriod: 0}",
        "clientConnection: {qps: 0, burst: 0, contentType: ''}",
        "conntrack: {maxPerCore: null, min: null, tcpEstablishedTimeout: null, udpTimeout: 0s}",
        "logging: {flushFrequency: 0}",
        "iptables: null",
        "nodePortAddresses: null",
        "oomScoreAdj: null",
        "featureGates: null",
        "detectLocalMode: ~",
    ],
)
def test_null_and_the_zeros_that_kubeadm_writes_mean_the_default(body: str) -> None:
    assert parse(body) == Parsed(Document())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("mode: 3", "mode: must be text (quote it if it is), got 3"),
        ("clusterCIDR: [10.0.0.0/8]", "clusterCIDR: must be text (quote it if it is), got a list"),
        ("hostnameOverride: true", "hostnameOverride: must be text (quote it if it is), got true"),
        ("iptables: yes", "iptables: must be a map, got true"),
        ("conntrack: []", "conntrack: must be a map, got a list"),
        ("nodePortAddresses: 10.0.0.0/8", 'nodePortAddresses: must be a list, got "10.0.0.0/8"'),
        ("nodePortAddresses: [all, 1]", "nodePortAddresses[1]: must be text (quote it if it is), got 1"),
        ("nodePortAddresses: [null]", "nodePortAddresses[0]: must be text (quote it if it is), got null"),
        ("bindAddressHardFail: 'no'", 'bindAddressHardFail: must be true or false, got "no"'),
        ("oomScoreAdj: 1.5", "oomScoreAdj: must be a whole number, got 1.5"),
        ("oomScoreAdj: '1'", 'oomScoreAdj: must be a whole number, got "1"'),
        ("oomScoreAdj: true", "oomScoreAdj: must be a whole number, got true"),
        ("oomScoreAdj: 2147483648", "oomScoreAdj: is a number too large for 32 bits"),
        ("oomScoreAdj: {a: 1}", "oomScoreAdj: must be a whole number, got a map"),
        ("clientConnection: {qps: many}", 'clientConnection.qps: must be a number, got "many"'),
        ("clientConnection: {qps: true}", "clientConnection.qps: must be a number, got true"),
        ("clientConnection: {qps: .nan}", "clientConnection.qps: must be a number, got nan"),
        ("clientConnection: {qps: -.inf}", "clientConnection.qps: must be a number, got -inf"),
        (f"clientConnection: {{qps: {10**60}}}", "clientConnection.qps: must be a number, got a huge number"),
        ("featureGates: [A]", "featureGates: must be a map, got a list"),
        ("featureGates: A=true", 'featureGates: must be a map, got "A=true"'),
        ("featureGates: {A: 'true'}", 'featureGates.A: must be true or false, got "true"'),
        ("configSyncPeriod: 15", 'configSyncPeriod: must be a duration with a unit, such as "30s", got 15'),
        ("configSyncPeriod: false", 'configSyncPeriod: must be a duration with a unit, such as "30s", got false'),
        ("configSyncPeriod: 1d", 'configSyncPeriod: must be a duration such as "30s" or "1h30m", got "1d"'),
        (
            "logging: {flushFrequency: soon}",
            'logging.flushFrequency: must be a duration such as "30s" or "1h30m", got "soon"',
        ),
        ("logging: {flushFrequency: 9223372036854775808}", "logging.flushFrequency: is too long a duration"),
        ("logging: {vmodule: [{verbosity: x}]}", 'logging.vmodule[0].verbosity: must be a whole number, got "x"'),
        ("logging: {vmodule: [x]}", 'logging.vmodule[0]: must be a map, got "x"'),
        (
            "logging: {options: {json: {infoBufferSize: big}}}",
            'logging.options.json.infoBufferSize: must be a quantity such as "64Ki", got "big"',
        ),
        (
            "logging: {options: {json: {infoBufferSize: true}}}",
            'logging.options.json.infoBufferSize: must be a quantity such as "64Ki", got true',
        ),
    ],
)
def test_wrong_type(body: str, problem: str) -> None:
    assert problems(body) == [problem]


def test_flush_frequency_may_be_nanoseconds() -> None:
    assert parse("logging: {flushFrequency: 1500000000}").document.logging.flush_frequency == 1.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["must be a map, a KubeProxyConfiguration; found nothing"]),
        ("# nothing\n", ["must be a map, a KubeProxyConfiguration; found nothing"]),
        ("- a", ["must be a map, a KubeProxyConfiguration; found a list"]),
        ("a", ['must be a map, a KubeProxyConfiguration; found "a"']),
        (
            "mode: nftables",
            [
                'apiVersion: must be "kubeproxy.config.k8s.io/v1alpha1", got null',
                'kind: must be "KubeProxyConfiguration", got null',
            ],
        ),
        (
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: 5\nmode: []",
            [
                'apiVersion: must be "kubeproxy.config.k8s.io/v1alpha1", got "kubelet.config.k8s.io/v1beta1"',
                'kind: must be "KubeProxyConfiguration", got 5',
                "mode: must be text (quote it if it is), got a list",
            ],
        ),
        ("a: b: c", ["YAML: line 1, column 5: mapping values are not allowed in this context"]),
        (
            "a: 1\nb: [1, 2\nc: 3",
            ["YAML: line 3, column 2: while parsing a flow sequence, did not find expected ',' or ']'"],
        ),
        (
            "a: 1\n\tb: 2",
            ["YAML: line 2, column 1: while scanning a plain scalar, found a tab character that violates indentation"],
        ),
        ("a: *b", ["YAML: line 1, column 4: found undefined alias"]),
        ("? [a]\n: 1", ["YAML: line 1, column 3: while constructing a mapping, found unhashable key"]),
        ("a: !!bool maybe", ["YAML: line 1, column 4: not a valid bool"]),
        ("a: !!timestamp never", ["YAML: line 1, column 4: not a valid timestamp"]),
        ("a: !!int x", ["YAML: line 1, column 4: not a valid int"]),
        (f"a: {'9' * 5000}", ["YAML: line 1, column 4: not a valid int"]),
        ("[" * 1000 + "]" * 1000, ["YAML: nested too deeply"]),
        ("[" * 5000, ["YAML: line 1, column 1001: while increasing flow level, exceeded maximum nesting depth"]),
        ("a: &a [b, *a]", ["YAML: line 1: an alias is inside of what it stands for"]),
    ],
)
def test_a_file_that_is_none(text: str, expected: list[str]) -> None:
    assert [str(problem) for problem in parse_file(text).problems] == expected


def test_characters_that_yaml_does_not_allow() -> None:
    (problem,) = parse_file("a: \x00").problems
    assert problem.message.startswith("YAML: unacceptable character #x0000")
    assert "\n" not in problem.message


def test_code_in_yaml_is_refused() -> None:
    (problem,) = problems("mode: !!python/object/apply:os.getcwd []")
    assert problem.startswith("YAML: line 3, column 7: could not determine a constructor")


def test_dates_stay_text() -> None:
    assert parse("hostnameOverride: 2024-13-45").document.hostname_override == "2024-13-45"


def test_json_is_yaml() -> None:
    text = '{"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables"}'
    assert parse_file(text) == Parsed(Document(mode="nftables"))


def test_json_that_is_no_yaml_is_read_too() -> None:
    head = '{"apiVersion": "kubeproxy.config.k8s.io\\/v1alpha1", "kind": "KubeProxyConfiguration"'
    assert parse_file(head + ', "hostnameOverride": "\\ud83d\\ude00"}').document.hostname_override == "\U0001f600"
    (problem,) = parse_file(head + ', "mode": "a').problems
    assert problem.message.startswith("YAML: line 1")


def test_unknown_fields_are_warnings_and_the_rest_counts() -> None:
    parsed = parse("mode: nftables\nmod: x\nudpIdleTimeout: 250ms\niptables: {masqueradeall: true}\n7: x\n")
    assert parsed.problems == ()
    assert parsed.document.mode == "nftables"
    assert parsed.warnings == (
        "mod: unknown field, ignored (did you mean mode?)",
        "udpIdleTimeout: unknown field, ignored",
        "iptables.masqueradeall: unknown field, ignored (did you mean masqueradeAll?)",
        "7: unknown field, ignored",
    )


def test_duplicate_fields_are_warnings_and_the_last_counts() -> None:
    parsed = parse("mode: iptables\nconntrack:\n  min: 1\n  min: 2\nmode: nftables\n")
    assert parsed.problems == ()
    assert parsed.document.mode == "nftables"
    assert parsed.document.conntrack.min == 2
    assert parsed.warnings == (
        "conntrack.min: duplicate field (line 6), the last one counts",
        "mode: duplicate field (line 7), the last one counts",
    )


def test_duplicates_in_lists_and_aliases() -> None:
    parsed = parse("x: &x [{a: 1, a: 2}]\nz: *x\n")
    assert parsed.warnings == (
        "x[0].a: duplicate field (line 3), the last one counts",
        "x: unknown field, ignored",
        "z: unknown field, ignored",
    )


def test_merge_keys_are_no_duplicates() -> None:
    parsed = parse("iptables: &a {masqueradeBit: 1, syncPeriod: 5s}\nnftables: {<<: *a, masqueradeBit: 2}\n")
    assert parsed.warnings == ()
    assert parsed.document.nftables.masquerade_bit == 2
    assert parsed.document.nftables.sync_period == 5.0


def test_only_the_first_document_is_read() -> None:
    parsed = parse("mode: nftables\n---\nmode: iptables\n")
    assert parsed.document.mode == "nftables"
    assert parsed.warnings == ("the file has more than one YAML document: only the first is read",)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("1s", 1.0),
        ("100ms", 0.1),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("+2m", 120.0),
        ("-1m30s", -90.0),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1μs", 1e-6),
        ("250ns", 2.5e-7),
        ("1s1s", 2.0),
        ("2562047h", 9223369200.0),
    ],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    "text", ["", "1", "s", "-", ".s", "1 s", " 1s", "1s ", "1S", "1d", "1e3s", "1s2", "1s-1s", "--1s"]
)
def test_no_go_durations(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["2562048h", "9" * 400 + "s"])
def test_durations_beyond_64_bits(text: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration(text)


def test_values_are_shown_on_one_line() -> None:
    assert show('a\n"b') == '"a\\n\\"b"'


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_no_text_raises(text: str) -> None:
    parse_file(text)


_FIELDS = sorted({path.partition(".")[0] for path, _ in leaves(Document())})
_VALUES = st.sampled_from(
    [
        "",
        "null",
        "{}",
        "[]",
        "[null]",
        "1",
        "-1",
        "1.5",
        "yes",
        "x",
        "1s",
        "0x" + "f" * 4000,
        "!!set {a}",
        "!!binary a",
        "&a [*a]",
    ]
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([*_FIELDS, "apiVersion", "kind", "<<", "?", "&x y"]), _VALUES))
def test_no_value_raises(fields: dict[str, str]) -> None:
    for problem in parse_file("\n".join(f"{name}: {value}" for name, value in fields.items())).problems:
        assert "\n" not in str(problem)
