"""What can be asked, and what is said of words that are no question."""

from __future__ import annotations

import pytest

from proxyd.errors import UserError
from proxyd.explain.answering import Words
from proxyd.explain.question import read_name, read_packet
from proxyd.explaining import read_question
from tests import build


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("10.96.0.1:80/tcp", ("10.96.0.1", "tcp", 80)),
        ("10.96.0.1:80", ("10.96.0.1", "tcp", 80)),
        ("10.96.0.1:53/UDP", ("10.96.0.1", "udp", 53)),
        ("010.096.0.1:65535/sctp", ("10.96.0.1", "sctp", 65535)),
    ],
)
def test_a_packet(to: str, expected: tuple[str, str, int]) -> None:
    assert read_packet("10.0.0.1", to, "eth0") == ("10.0.0.1", *expected, "eth0")


def test_a_packet_of_ipv6() -> None:
    assert read_packet("FD00::9", "[fd00:0::1]:53/udp") == ("fd00::9", "fd00::1", "udp", 53, "")


@pytest.mark.parametrize(
    ("source", "to", "problem"),
    [
        ("nobody", "10.96.0.1:80", "--from: must be an IP address, got 'nobody'"),
        ("", "10.96.0.1:80", "--from"),
        ("10.0.0.1", "10.96.0.1", "--to: must be like"),
        ("10.0.0.1", "10.96.0.1:0", "--to: must be like"),
        ("10.0.0.1", "10.96.0.1:65536", "--to: must be like"),
        ("10.0.0.1", "10.96.0.1:80/icmp", "--to: must be like"),
        ("10.0.0.1", "fd00::1:80", "--to: must be like"),
        ("10.0.0.1", "web:80", "--to: must be like"),
        ("10.0.0.1", "[fd00::1]:80", "different families"),
        ("fd00::1%eth0", "[fd00::1]:80", "--from: must be an IP address"),
    ],
)
def test_no_packet(source: str, to: str, problem: str) -> None:
    with pytest.raises(UserError) as raised:
        read_packet(source, to)
    assert problem in str(raised.value)


def test_a_name() -> None:
    assert read_name("shop/web:http") == (build.key("web", "shop"), "http")
    assert read_name("web") == (build.key("web"), "")
    for text in ("", "/web", "a/b/c", "web:", "a:b:c"):
        with pytest.raises(UserError, match="must be like default/web"):
            read_name(text)


@pytest.mark.parametrize(
    "words",
    [
        Words(),
        Words(source="10.0.0.1"),
        Words(to="10.0.0.1:80"),
        Words(name="web", source="10.0.0.1", to="10.0.0.2:80"),
        Words(name="web", source="x"),
    ],
)
def test_words_that_are_no_question(words: Words) -> None:
    with pytest.raises(UserError):
        words.check()


def test_the_command_line() -> None:
    asked = read_question(["shop/web", "--from=10.0.0.1", "-ojson", "--interface", "veth1"])
    assert asked.words == Words("shop/web", "10.0.0.1", "", "veth1")
    assert (asked.as_json, asked.line) == (True, None)
    asked = read_question(["--from", "10.0.0.1", "--to", "10.0.0.2:80", "--manifests", "d", "--proxy-mode=iptables"])
    assert not asked.as_json
    assert asked.line is not None
    assert asked.line.given == {"--manifests": ("d",), "--proxy-mode": ("iptables",)}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["web", "--proxy-mode=iptables"], "--proxy-mode: goes with --manifests, --kubeconfig, --master only"),
        (["web", "-o", "yaml"], "--output: must be text or json, got 'yaml'"),
        (["web", "--form", "10.0.0.1"], "--form: unknown flag"),
        (["web", "other"], 'takes no arguments, only flags; got "other"'),
        (["--to"], "--to: needs a value"),
        ([], "say either a Service"),
    ],
)
def test_command_lines_that_are_no_question(arguments: list[str], problem: str) -> None:
    with pytest.raises(UserError) as raised:
        read_question(arguments)
    assert problem in str(raised.value)
