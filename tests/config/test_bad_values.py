"""Every field, wrong in every way that its type allows: a message that begins with its path, and all of them at once.

The fields and their types are those of the schema, so a new field is tested as soon as it is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxyd.config import Document, parse_file
from proxyd.config.schema import Quantity, Seconds, SecondsOrNanoseconds, leaves
from proxyd.config.validate import validate
from tests.config.support import HEAD, parse, refused

CONTAINERS: list[Any] = [[], ["a"], {}, {"a": 1}, [[]], [None]]
TEXTS: list[Any] = [
    "",
    " ",
    "x",
    "1",
    "true",
    "null",
    "\x00\x1b[31m\n",
    "a" * 10_000,
    "\u0661",
    "\U0001f600",
    "-",
    "1e",
    "NaN",
]
NUMBERS: list[Any] = [0, 1, -1, 1.5, 2**31, -(2**31) - 1, 2**63, 2**64, 10**400, 1e300]
BOOLS: list[Any] = [True, False]
# What a type cannot be, by type.
WRONG: dict[Any, list[Any]] = {
    str: [*CONTAINERS, *NUMBERS, *BOOLS],
    str | None: [*CONTAINERS, *NUMBERS, *BOOLS],
    bool: [*CONTAINERS, *NUMBERS, *TEXTS],
    int: [*CONTAINERS, *TEXTS, *BOOLS, 1.5, 1e300, 2**31, -(2**31) - 1, 2**63, 10**400],
    float: [*CONTAINERS, *TEXTS, *BOOLS, 10**400, 1e300, -1e300],
    Seconds: [*CONTAINERS, *TEXTS, *BOOLS, 1, -1, 1.5, 10**400, "1", "1 s", "9" * 30 + "h", "1s\n", "-", "1d"],
    SecondsOrNanoseconds: [*CONTAINERS, *TEXTS, *BOOLS, 1.5, 2**63, 10**400, "1d", "9" * 30 + "h"],
    Quantity: [*CONTAINERS, *[text for text in TEXTS if text != "1"], *BOOLS, 1.5, 10**400, "1 Ki", "Ki"],
    tuple: [{}, {"a": 1}, *NUMBERS, *TEXTS, *BOOLS],
    dict: [[], ["a"], *NUMBERS, *TEXTS, *BOOLS],
    msgspec.Struct: [[], ["a"], *NUMBERS, *TEXTS, *BOOLS],
}
# Right by type, wrong as a value of the field: beside the mode that makes the field count.
OUT_OF_RANGE: dict[str, list[tuple[Any, dict[str, Any]]]] = {
    "clientConnection.burst": [(-1, {})],
    "logging.verbosity": [(-1, {})],
    "logging.format": [(text, {}) for text in TEXTS if text],
    "hostnameOverride": [(" ", {}), ("\t\n", {})],
    "bindAddress": [(text, {}) for text in [*TEXTS[1:], "1.2.3", "1.2.3.4.5", "::g", "fe80::1%eth0", "1.2.3.4:5"]],
    **{
        path: [(text, {}) for text in [*TEXTS[1:], ":1", "1.2.3.4:0", "1.2.3.4:65536", "[::1]", "::1:x", "1.2.3.4:-1"]]
        for path in ("healthzBindAddress", "metricsBindAddress")
    },
    "showHiddenMetricsForVersion": [(text, {}) for text in TEXTS if text],
    "mode": [(text, {}) for text in [*TEXTS[1:], "ipvs", "kernelspace", "userspace", "NFTables"]],
    "iptables.masqueradeBit": [(-1, {}), (32, {})],
    "nftables.masqueradeBit": [(-1, {"mode": "nftables"}), (32, {"mode": "nftables"})],
    **{
        f"{mode}.{field}": [(text, {"mode": mode}) for text in texts]
        for mode in ("iptables", "nftables")
        for field, texts in (("syncPeriod", ["-1s"]), ("minSyncPeriod", ["-1s", "31s"]))
    },
    "configSyncPeriod": [("-1s", {})],
    "detectLocalMode": [(text, {}) for text in [*TEXTS[1:], "clustercidr"]],
    "detectLocal.bridgeInterface": [
        (text, {"detectLocalMode": "BridgeInterface"}) for text in [*TEXTS[:2], "\x00\n", "a" * 16, "a/b", 'a"b']
    ],
    "detectLocal.interfaceNamePrefix": [
        (text, {"detectLocalMode": "InterfaceNamePrefix"}) for text in [*TEXTS[:2], "\x00\n", "a" * 16, "a b", "a*"]
    ],
    "clusterCIDR": [(text, {}) for text in [*TEXTS[2:], "10.0.0.0", "10.0.0.0/33", "10.0.0.0/8,", "::/0,::/1"]],
    "nodePortAddresses": [([text], {}) for text in [*TEXTS, "10.0.0.0", "10.0.0.0/33", "Primary", "::/129"]],
    "oomScoreAdj": [(-1001, {}), (1001, {})],
    "conntrack.maxPerCore": [(-1, {})],
    "conntrack.min": [(-1, {})],
    **{
        path: [("-1ns", {}), ("-1h", {})]
        for path, _ in leaves(Document())
        if path.startswith("conntrack.") and path.endswith("Timeout")
    },
}


def fields(kind: type[msgspec.Struct] = Document, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All fields with their types, blocks too."""
    for field in msgspec.structs.fields(kind):
        path = prefix + field.encode_name
        yield path, field.type
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from fields(field.type, path + ".")


FIELDS = dict(fields())


def wrong_for(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return WRONG[msgspec.Struct]
    return WRONG[get_origin(kind) if get_origin(kind) in (tuple, dict) else kind]


def nested(path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {head: nested(rest, value) if rest else value}


def text_of(path: str, value: Any, beside: dict[str, Any] | None = None) -> str:
    """A file (JSON, so that nothing is lost in quoting) in which one field has a value."""
    head = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}
    return json.dumps({**head, **(beside or {}), **nested(path, value)})


def well_formed(problem: str) -> bool:
    return problem.isprintable() and len(problem) < 400 and "Traceback" not in problem


@pytest.mark.parametrize("path", FIELDS)
def test_values_of_another_type(path: str) -> None:
    for value in wrong_for(FIELDS[path]):
        problems = [str(each) for each in parse_file(text_of(path, value)).problems]
        assert problems, (path, value)
        for problem in problems:
            assert problem.startswith((f"{path}: ", f"{path}[", f"{path}.")), (path, value, problem)
            assert well_formed(problem)


@pytest.mark.parametrize("path", FIELDS)
def test_null_is_as_if_it_were_not_there(path: str) -> None:
    assert parse_file(text_of(path, None)) == parse("")


@pytest.mark.parametrize("path", OUT_OF_RANGE)
def test_values_out_of_range(path: str) -> None:
    for value, beside in OUT_OF_RANGE[path]:
        (problem,) = refused(parse_file(text_of(path, value, beside)), "--config=x")
        assert problem.startswith((f"{path}: ", f"{path}[0]: ")), (path, value)
        assert well_formed(problem)


@pytest.mark.parametrize("special", [".nan", ".inf", "-.inf", "!!float nan"])
def test_numbers_that_are_none(special: str) -> None:
    for path, kind in FIELDS.items():
        if kind not in (str, str | None) and not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            text = HEAD + json.dumps(nested(path, 0)).replace("0", special)[1:-1].replace('"', "")
            parsed = parse_file(text.replace(f"{{{path.rpartition('.')[2]}:", f"{{ {path.rpartition('.')[2]}:"))
            assert [each.path for each in parsed.problems] == [path]


def test_all_fields_wrong_at_once_are_all_named() -> None:
    document: dict[str, Any] = {"apiVersion": "a", "kind": "b"}
    leaf_paths = [path for path, _ in leaves(Document())]
    for path in leaf_paths:
        block = document
        *parents, last = path.split(".")
        for parent in parents:
            block = block.setdefault(parent, {})
        block[last] = wrong_for(FIELDS[path])[-1]
    problems = parse_file(json.dumps(document)).problems
    assert [each.path for each in problems if each.path in ("apiVersion", "kind")] == ["apiVersion", "kind"]
    assert {each.path.partition("[")[0] for each in problems} >= set(leaf_paths)


def test_every_field_that_has_a_rule_is_tested_out_of_range() -> None:
    # What the rules do not look at: without effect, or any value of its type is one.
    free = {path for path in dict(leaves(Document())) if path.split(".")[0] in ("ipvs", "winkernel", "featureGates")}
    free |= {"clientConnection.kubeconfig", "clientConnection.acceptContentTypes", "clientConnection.contentType"}
    free |= {"clientConnection.qps", "enableProfiling", "portRange", "windowsRunAsService", "bindAddressHardFail"}
    free |= {f"{mode}.masqueradeAll" for mode in ("iptables", "nftables")}
    free |= {"iptables.localhostNodePorts", "conntrack.tcpBeLiberal", "logging.flushFrequency", "logging.vmodule"}
    free |= {path for path in dict(leaves(Document())) if path.startswith("logging.options.")}
    assert free | set(OUT_OF_RANGE) == {path for path, _ in leaves(Document())}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=50),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from([path for path, _ in leaves(Document())]), PLAIN, max_size=6))
def test_whatever_stands_in_fields_raises_nothing_and_is_told_on_printable_lines(values: dict[str, Any]) -> None:
    document: dict[str, Any] = {}
    for path, value in values.items():
        block = document
        *parents, last = path.split(".")
        for parent in parents:
            block = block.setdefault(parent, {})
        block[last] = value
    parsed = parse_file(HEAD + json.dumps(document)[1:-1].replace("NaN", ".nan").replace("Infinity", ".inf"))
    for said in (*map(str, parsed.problems), *map(str, validate(parsed.document)), *parsed.warnings):
        assert said.isprintable()
