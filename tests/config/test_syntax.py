"""The text of a configuration file: odd ones that are fine, and ones that would cost too much to read."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from proxyd.config import parse_file
from proxyd.config.syntax import LONGEST, read_yaml, write_yaml
from tests.config.support import HEAD, parse

MODE = "mode: nftables\n"


def bomb(inner: str, outer: str, levels: int = 40) -> str:
    """Anchors of which each names the one before it twice, so that the last stands for 2 ** levels values."""
    lines = [f"x0: &x0 {inner}"] + [f"x{n}: &x{n} {outer.format(f'*x{n - 1}')}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + MODE,
        "\ufeff" + HEAD + MODE,
        (HEAD + MODE).replace("\n", "\r\n"),
        "---\n" + HEAD + MODE,
        "%YAML 1.1\n---\n" + HEAD + MODE + "...\n",
        "# a comment\n\n" + HEAD + MODE + "\n\n# the end",
        HEAD + "mode:\tnftables\t# with tabs\n",
        HEAD + "mode: &m nftables\nhostnameOverride: ''\n",
        (HEAD + MODE).rstrip(),
        json.dumps(
            {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables"}
        ),
    ],
)
def test_texts_that_say_the_same(text: str) -> None:
    parsed = parse_file(text)
    assert (parsed.document, parsed.problems, parsed.warnings) == (parse(MODE).document, (), ())


@pytest.mark.parametrize("second", [MODE, "a: [", "\t", "a: *nothing", "mode: !!bool maybe"])
def test_a_second_document_is_not_read_whatever_it_is(second: str) -> None:
    parsed = parse(f"{MODE}---\n{second}")
    assert (parsed.document, parsed.problems) == (parse(MODE).document, ())
    assert parsed.warnings == ("the file has more than one YAML document: only the first is read",)


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "null", "~", "\ufeff"])
def test_an_empty_file(text: str) -> None:
    (problem,) = parse_file(text).problems
    assert str(problem) == "must be a map, a KubeProxyConfiguration; found nothing"


# As kube-proxy 1.37 reads them, through JSON.
PLAIN_TEXT: list[tuple[str, Any]] = [
    *[(text, 1000) for text in ("1000", "1_000", "+1000", "0x3e8", "0o1750", "01750", "0b1111101000")],
    *[(text, 1000.0) for text in ("1e3", "1E3", "1000.0", "1000.", "1.0e+3", "1_000.0")],
    *[(text, True) for text in ("true", "True", "yes", "on", "y", "Y")],
    *[(text, False) for text in ("false", "FALSE", "no", "off", "n", "N")],
    *[(text, None) for text in ("null", "~", "")],
    *[(text, text) for text in ("1:30", "2024-01-01", "1e3x", "=", "0x", "1.2.3", "tRue", "10.0.0.0/8", "::1", "-")],
]


@pytest.mark.parametrize(("text", "value"), PLAIN_TEXT)
def test_plain_text_is_what_kube_proxy_takes_it_for(text: str, value: object) -> None:
    if text != "-":  # begins a list
        found = read_yaml(f"a: {text}").value["a"]
        assert (type(found), found) == (type(value), value)
    assert read_yaml(write_yaml({"a": text})).value == {"a": text}, "text is quoted where it must be"


@pytest.mark.parametrize(
    "text",
    [bomb("[a, a]", "[{0}, {0}]"), bomb("{a: b}", "{{p: {0}, q: {0}}}"), bomb("{a: b}", "{{<<: [{0}, {0}], x: y}}")],
    ids=["lists", "maps", "merged maps"],
)
def test_few_lines_that_stand_for_a_million_millions_are_refused_at_once(text: str) -> None:
    began = time.process_time()
    (problem,) = parse(text).problems
    assert problem.message == "has more than 50000 values (aliases count as what they stand for)"
    assert time.process_time() - began < 5, "worked out"


def test_many_real_values_are_refused_too() -> None:
    (problem,) = parse("a: [" + "1," * 60_000 + "]").problems
    assert problem.message == "has more than 50000 values (aliases count as what they stand for)"


def test_a_file_that_is_too_long_is_not_read() -> None:
    (problem,) = parse("#" * LONGEST).problems
    assert problem.message == f"is too long: {len(HEAD) + LONGEST} characters, of at most {LONGEST}"


def test_a_file_of_something_else_is_not_told_line_by_line() -> None:
    parsed = parse("".join(f"field{n}: x\n" for n in range(500)))
    assert len(parsed.warnings) == 51
    assert parsed.warnings[-1] == "450 more unknown fields, ignored"


def test_names_that_would_break_a_line_are_quoted() -> None:
    parsed = parse('"a\\nb": 1\n"a\\nb": 2\nfeatureGates: {"x\\ty": 5}\n"' + "z" * 500 + '": 1\n')
    assert [str(each) for each in parsed.problems] == ['featureGates."x\\ty": must be true or false, got 5']
    assert parsed.warnings[:2] == (
        '"a\\nb": duplicate field (line 4), the last one counts',
        '"a\\nb": unknown field, ignored',
    )
    assert parsed.warnings[2].startswith('"zzz')
    assert len(parsed.warnings[2]) < 150
