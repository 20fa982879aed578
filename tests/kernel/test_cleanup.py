"""``proxyd cleanup`` in a namespace of its own: what goes, what stays, what is said, and with which status."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from proxyd import cleanup as module
from proxyd.cleanup import remove
from proxyd.ipt.ownership import OWN_MARK
from proxyd.kernel.lock import lock_namespace
from tests.kernel.test_predecessor import OTHERS, RULES, TABLE, Namespace
from tests.netns import why_not
from tests.program import PROXYD
from tests.sync.test_takeover import FakePredecessor

OWN = 'table ip proxyd { comment "x"; chain a { counter; }; }\ntable ip6 proxyd { chain a { counter; }; }\n'
pytestmark = pytest.mark.kernel


@pytest.fixture
def full() -> Iterator[Namespace]:
    """A namespace with rules of everybody in every place."""
    if reason := why_not():
        pytest.skip(reason)
    made = Namespace()
    made.run("nft", "-f", "-", text=OWN + TABLE)
    for backend in ("nft", "legacy"):
        made.restore(backend, OTHERS + RULES)
    yield made
    made.close()


def run(where: Namespace, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    def inside() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROXYD, "cleanup", *words],
            text=True,
            capture_output=True,
            check=False,
            env={**os.environ, **environment},
        )

    return where.call(inside)


def tables(where: Namespace) -> list[str]:
    return [line for line in where.run("nft", "list", "tables").splitlines() if "prox" in line]


def test_everything_of_proxyd_and_kube_proxy_goes_and_it_says_so(full: Namespace) -> None:
    done = run(full)
    assert (done.returncode, done.stderr) == (0, "")
    assert tables(full) == ["table ip kube-proxy-of-somebody"]
    assert [len(full.rules(backend)) for backend in ("nft", "legacy")] == [8, 8]
    assert done.stdout.splitlines() == [
        "proxyd's rules removed: nftables table ip proxyd",
        "proxyd's rules removed: nftables table ip6 proxyd",
        "kube-proxy's rules removed: nftables table ip kube-proxy (4 chains, 0 jumps)",
        "kube-proxy's rules removed: iptables-nft, IPv4 (7 chains, 4 jumps)",
        "kube-proxy's rules removed: iptables-legacy, IPv4 (7 chains, 4 jumps)",
    ]


def test_a_second_time_there_is_nothing_to_say(full: Namespace) -> None:
    run(full)
    done = run(full)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_own_leaves_kube_proxys_rules(full: Namespace) -> None:
    before = [full.rules(backend) for backend in ("nft", "legacy")]
    assert run(full, "--own").returncode == 0
    assert tables(full) == ["table ip kube-proxy", "table ip kube-proxy-of-somebody"]
    assert [full.rules(backend) for backend in ("nft", "legacy")] == before


def test_own_takes_the_chains_of_iptables_mode_that_proxyd_was_the_last_to_write(full: Namespace) -> None:
    kube_proxys = full.rules("legacy")
    full.restore("nft", f"*nat\n:{OWN_MARK} - [0:0]\nCOMMIT\n")
    done = run(full, "--own")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(full.rules("nft")) == 8
    assert full.rules("legacy") == kube_proxys
    assert done.stdout.splitlines()[2:] == [
        "left alone, since kube-proxy wrote them: the rules in nftables table ip kube-proxy",
        "proxyd's rules removed: iptables-nft, IPv4 (8 chains, 4 jumps)",
        "left alone, since kube-proxy wrote them: the rules in iptables-legacy, IPv4",
    ]


def test_a_running_proxyd_keeps_everything(full: Namespace) -> None:
    with full.call(lock_namespace):
        done = run(full)
    assert done.returncode == 1
    assert done.stderr == "proxyd: another proxyd runs in this network namespace: stop it first\n"
    assert len(tables(full)) == 4


def test_what_cannot_be_removed_is_named_and_all_else_goes(full: Namespace) -> None:
    # Somebody's map leads to a chain of iptables-nft, so that the kernel will not let it go.
    full.run("nft", "add map ip nat m { type inet_service : verdict; }")
    full.run("nft", "add element ip nat m { 80 : jump KUBE-POSTROUTING }")
    done = run(full)
    assert done.returncode == 1
    assert done.stderr.startswith("proxyd: iptables-nft, IPv4: ")
    assert "Device or resource busy" in done.stderr
    assert len(full.rules("legacy")) == 8
    assert tables(full) == ["table ip kube-proxy-of-somebody"]


def test_rules_that_come_back_at_once_are_a_failure() -> None:
    said: list[str] = []
    running = FakePredecessor()
    running.written_again = 100
    assert remove(running, said.append) == ["memory, IPv4: the rules come back, stop kube-proxy first"]
    assert running.removals == module.ATTEMPTS
