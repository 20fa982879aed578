"""Chain names of iptables mode are kube-proxy's: tools and habits know them."""

from __future__ import annotations

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import PortForwarding
from proxyd.ipt import names


def port(name: str, protocol: str = "tcp") -> PortForwarding:
    return PortForwarding(name, protocol, ())


# Known from kube-proxy's own rules.
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ns1/svc1:p80", "XPGD46QRK7WJZT7O"),
        ("ns2/svc2:p8080", "2VJB64SDSIJUP5T6"),
        ("ns4/svc4:p8082", "EBDQOQU5SJFXRIL3"),
    ],
)
@pytest.mark.parametrize("prefix", [names.SERVICE, names.LOCAL, names.EXTERNAL, names.SOURCES])
def test_all_chains_of_a_service_port_share_one_hash(prefix: str, name: str, text: str) -> None:
    assert names.chain_name(prefix, port(name)) == prefix + text


@pytest.mark.parametrize(
    ("name", "backend", "text"),
    [
        ("ns1/svc1:p80", Backend("10.0.1.1", 80), "SNQ3ZNILQDEJNDQO"),
        ("ns2/svc2:p8080", Backend("10.0.2.1", 8080), "UHEGFW77JX3KXTOV"),
    ],
)
def test_an_endpoint_has_a_chain_of_its_own_for_each_service_port(name: str, backend: Backend, text: str) -> None:
    assert names.endpoint_chain(port(name), names.backend_text(backend)) == "KUBE-SEP-" + text


def test_protocols_and_families_make_different_names() -> None:
    assert names.chain_name(names.SERVICE, port("a/b", "udp")) != names.chain_name(names.SERVICE, port("a/b"))
    assert names.backend_text(Backend("fd00::1", 80)) == "[fd00::1]:80"


# A namespace, a Service and a port name can be so long; 28 letters are what iptables takes for a chain.
LONGEST = [f"{'n' * 63}/{'s' * 62}{last}:{'p' * 15}" for last in "ab"]


def chains(name: str) -> list[str]:
    """One name of each kind, for an endpoint with the longest address."""
    backend = names.backend_text(Backend("2001:db8:1111:2222:3333:4444:5555:6666", 65535))
    long = port(name, "sctp")
    return [*(names.chain_name(each, long) for each in names.PREFIXES), names.endpoint_chain(long, backend)]


def test_names_fit_into_iptables() -> None:
    assert max(map(len, chains(LONGEST[0]))) <= 28


def test_long_names_that_differ_in_a_letter_make_different_names() -> None:
    assert set(chains(LONGEST[0])).isdisjoint(chains(LONGEST[1]))
