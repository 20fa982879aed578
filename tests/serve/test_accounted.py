"""Metrics of packets that rules of iptables mode count: those that rules use, and only when they can be read."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from proxyd.ipt.style import INVALID_DROPPED, LOCALHOST_ACCEPTED
from proxyd.serve.iptables_metrics import AccountedPackets

DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total"
ACCEPTED = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total"


@pytest.mark.parametrize(
    ("used", "counted", "shown"),
    [
        ({INVALID_DROPPED, LOCALHOST_ACCEPTED}, {INVALID_DROPPED: 3, LOCALHOST_ACCEPTED: 0}, {DROPPED: 3, ACCEPTED: 0}),
        ({INVALID_DROPPED}, {INVALID_DROPPED: 3, LOCALHOST_ACCEPTED: 7}, {DROPPED: 3}),
        ({INVALID_DROPPED, LOCALHOST_ACCEPTED}, {LOCALHOST_ACCEPTED: 7}, {ACCEPTED: 7}),
        (set(), {INVALID_DROPPED: 3}, {}),
    ],
    ids=["both", "one-is-not-used", "one-cannot-be-read", "none-is-used"],
)
def test_counters_that_rules_use_are_shown(used: set[str], counted: dict[str, int], shown: dict[str, int]) -> None:
    registry = CollectorRegistry()
    registry.register(AccountedPackets(counted.get, frozenset(used)))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert lines == [f"{name} {float(number)}" for name, number in shown.items()]
