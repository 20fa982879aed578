"""When each alert has to fire and when not, in promtool's notation of series; a sample a minute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Series = Mapping[str, str]
NODE1, NODE2 = 'job="proxyd",instance="node1"', 'job="proxyd",instance="node2"'
V4 = f'{NODE1},ip_family="IPv4"'
OF_NODE = {"job": "proxyd", "instance": "node1"}
OF_FAMILY = {**OF_NODE, "ip_family": "IPv4"}
DAY = 24 * 60


@dataclass(frozen=True)
class Case:
    """``fires`` makes the alert fire by minute ``at`` and not by minute ``before``, with ``labels`` beside its own.

    None of ``quiet`` makes it fire at any minute up to ``until``. Rules are evaluated each ``every`` minutes.
    """

    alert: str
    fires: Series
    at: int
    quiet: Sequence[Series]
    labels: Mapping[str, str]
    before: int = 0
    until: int = 40
    every: int = 1


def histogram(name: str, labels: str, counts: Mapping[str, str]) -> Series:
    """Series of a histogram, cumulative, by their upper bounds."""
    return {f'{name}_bucket{{{labels},le="{bound}"}}': values for bound, values in counts.items()}


PARTIAL = "kubeproxy_sync_partial_proxy_rules_duration_seconds"
CHANGE = "proxyd_change_to_kernel_seconds"
PROGRAMMING = "kubeproxy_network_programming_duration_seconds"
FINDINGS = "proxyd_findings"
NFT_FAILURES = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
IPT_FAILURES = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
DRIFT = "proxyd_drift_repaired_total"
RECENT, EVER = "proxyd_oldest_change_age_seconds", "kubeproxy_sync_proxy_rules_last_timestamp_seconds"


def programming(node: str, fast: str, everything: str) -> Series:
    """Changes of a node that took less than 30 s, and all; the others took less than 31."""
    return histogram(PROGRAMMING, f'{node},ip_family="IPv4"', {"30": fast, "31": everything, "+Inf": everything})


def _finding(reason: str, values: str, node: str = NODE1) -> Series:
    return {f'{FINDINGS}{{{node},reason="{reason}"}}': values}


def _tracked(entries: str) -> Series:
    return {f"proxyd_conntrack_entries{{{NODE1}}}": entries, f"proxyd_conntrack_entries_limit{{{NODE1}}}": "1000x40"}


def _drift(mended: str, rewritten: str) -> Series:
    return {f'{DRIFT}{{{V4},how="mended"}}': mended, f'{DRIFT}{{{V4},how="rewritten"}}': rewritten}


CASES = (
    Case(
        "ProxydDown",
        {f"up{{{NODE1}}}": "1 0x20"},
        at=6,
        before=5,
        quiet=(
            {f"up{{{NODE1}}}": "1x5 0x3 1x5 0x3 1x20"},  # restarts, roll-outs
            {'up{job="kube-proxy",instance="node1"}': "0x40"},
        ),
        labels=OF_NODE,
    ),
    Case(
        "ProxydAbsent",
        {'up{job="other",instance="node1"}': "1x20"},
        at=10,
        before=9,
        quiet=({f"up{{{NODE1}}}": "0x40"},),
        labels={"job": "proxyd"},
    ),
    Case(
        "ProxydRestarts",
        {f"process_start_time_seconds{{{NODE1}}}": "1x5 2x5 3x5 4x20"},
        at=18,
        before=16,
        quiet=({f"process_start_time_seconds{{{NODE1}}}": "1x5 2x5 3x40"},),
        labels=OF_NODE,
    ),
    Case(
        "ProxydNeverSynced",
        {f"{EVER}{{{V4}}}": "0x20"},
        at=5,
        before=4,
        quiet=({f"{EVER}{{{V4}}}": "0x3 1700000000x40"},),
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydChangesOverdue",
        {f"{RECENT}{{{V4}}}": "0 0 61x20"},
        at=3,
        before=2,
        quiet=({f"{RECENT}{{{V4}}}": "0 59 59 59 90 0 90 0 90 0x40"},),  # a long full sync now and then
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydWatchDown",
        {f'proxyd_watch_connected{{{NODE1},resource="services"}}': "1 0x20"},
        at=6,
        before=5,
        quiet=({f'proxyd_watch_connected{{{NODE1},resource="services"}}': "1 0x3 1 0x3 1x40"},),
        labels={**OF_NODE, "resource": "services"},
    ),
    Case(
        "ProxydWatchSilent",
        {f'proxyd_watch_last_event_age_seconds{{{NODE1},resource="nodes"}}': "0+60x40"},
        at=21,
        before=20,
        quiet=({f'proxyd_watch_last_event_age_seconds{{{NODE1},resource="nodes"}}': "0+60x14 0+60x14 0+60x14"},),
        labels={**OF_NODE, "resource": "nodes"},
    ),
    Case(
        "ProxydSyncSlow",
        histogram(PARTIAL, V4, {"1.024": "0+988x40", "2.048": "0+1000x40", "+Inf": "0+1000x40"}),
        at=16,
        before=15,
        quiet=(
            histogram(PARTIAL, V4, {"0.512": "0+980x40", "1.024": "0+1000x40", "+Inf": "0+1000x40"}),
            # Long ago, and nothing since.
            histogram(PARTIAL, V4, {"1.024": "0x40", "2.048": "10x40", "+Inf": "10x40"}),
        ),
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydChangesSlow",
        histogram(CHANGE, f'{V4},cause="service"', {"4.096": "0+986x40", "8.192": "0+1000x40", "+Inf": "0+1000x40"}),
        at=16,
        before=15,
        quiet=(
            # One cause is rare and slow, the other frequent and fast.
            histogram(CHANGE, f'{V4},cause="drift"', {"4.096": "0x40", "8.192": "0+1x40", "+Inf": "0+1x40"})
            | histogram(
                CHANGE, f'{V4},cause="endpoints"', {"4.096": "0+200x40", "8.192": "0+200x40", "+Inf": "0+200x40"}
            ),
        ),
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydProgrammingSlow",
        {**programming(NODE1, "0+100x40", "0+100x40"), **programming(NODE2, "0+97x40", "0+100x40")},
        at=11,
        before=10,
        quiet=(
            # As the SLI has it: a node may be slow if all others are fast.
            {**programming(NODE1, "0+500x40", "0+500x40"), **programming(NODE2, "0x40", "0+1x40")},
            programming(NODE1, "0x40", "5x40"),
        ),
        labels={"job": "proxyd"},
    ),
    Case(
        "ProxydProgrammingObjectiveMissed",
        programming(NODE1, f"0+10x{DAY} {10 * DAY}x120", f"0+10x{DAY + 120}"),
        at=DAY + 50,
        before=DAY + 40,
        # Slow for some minutes in a day.
        quiet=(programming(NODE1, f"0+10x{DAY} {10 * DAY}x4 {10 * DAY}+10x120", f"0+10x{DAY + 120}"),),
        labels={"job": "proxyd"},
        until=DAY + 120,
        every=10,
    ),
    Case(
        "ProxydSyncFails",
        {f"{NFT_FAILURES}{{{V4}}}": "0+1x20"},
        at=4,
        before=3,
        quiet=({f"{NFT_FAILURES}{{{V4}}}": "0x5 1x10 2x40"},),  # refused, and mended
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydSyncFails",
        {f"{IPT_FAILURES}{{{V4}}}": "0+1x20"},
        at=4,
        before=3,
        quiet=({f"{IPT_FAILURES}{{{V4}}}": "0x5 1x10 2x40"},),
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydServiceQuarantined",
        _finding("kernel-refused", "0 1x20"),
        at=6,
        before=5,
        quiet=(_finding("kernel-refused", "0 2x4 0x40"), _finding("frontend-conflict", "2x40")),
        labels={**OF_NODE, "reason": "kernel-refused"},
    ),
    Case(
        "ProxydNodeMisconfigured",
        _finding("node-not-found", "0 1x20"),
        at=11,
        before=10,
        quiet=(_finding("node-not-found", "1x5 0x40"), _finding("invalid-port", "2x40")),
        labels={**OF_NODE, "reason": "node-not-found"},
    ),
    Case(
        "ProxydFrontendConflict",
        {**_finding("frontend-conflict", "0 1x30"), **_finding("frontend-conflict", "0 1x30", NODE2)},
        at=16,
        before=15,
        quiet=(_finding("frontend-conflict", "1x10 0x40"), _finding("duplicate-port", "1x40")),
        labels={"job": "proxyd"},
    ),
    Case(
        "ProxydObjectsRefused",
        {**_finding("invalid-address", "0 1x40"), **_finding("invalid-address", "0 1x40", NODE2)},
        at=31,
        before=30,
        quiet=(_finding("invalid-address", "1x20 0x40"), _finding("frontend-conflict", "1x60")),
        labels={"job": "proxyd", "reason": "invalid-address"},
        until=50,
    ),
    Case(
        "ProxydDriftRepeated",
        _drift("0+1x40", "0+1x40"),
        at=8,
        before=7,
        quiet=(_drift("0x5 2x40", "0x5 2x40"),),
        labels=OF_FAMILY,
    ),
    Case(
        "ProxydConntrackNearlyFull",
        _tracked("700 760x20"),
        at=6,
        before=5,
        quiet=(_tracked("740x40"), _tracked("900x3 500x40")),
        labels=OF_NODE,
    ),
    Case(
        "ProxydStaleFlowsOwed",
        {f"proxyd_conntrack_owed_frontends{{{V4}}}": "0 3x20"},
        at=11,
        before=10,
        quiet=({f"proxyd_conntrack_owed_frontends{{{V4}}}": "1x8 0 1x8 0x20"},),
        labels=OF_FAMILY,
    ),
)
