"""Which settings of the kernel a configuration asks for, and which of them need a write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from proxyd.config import Config, Conntrack, Document, Parsed, resolve
from proxyd.config.host_settings import (
    HASH_SIZE,
    ROUTE_LOCALNET,
    Setting,
    changes,
    localhost_settings,
    node_settings,
    process_settings,
)
from tests.config.support import flags

NETFILTER = "proc/sys/net/netfilter/nf_conntrack_"
OFF = {"tcp_established_timeout": 0.0, "tcp_close_wait_timeout": 0.0}


def config(**fields: Any) -> Config:
    return msgspec.structs.replace(resolve(Parsed(Document()), flags()), **fields)


def wanted(cores: int = 2, **conntrack: Any) -> dict[str, int]:
    found = node_settings(config(conntrack=Conntrack(**conntrack)), cores)
    return {each.path.removeprefix(NETFILTER): each.value for each in found}


def test_the_defaults_are_those_of_kube_proxy() -> None:
    assert wanted() == {
        "max": 131072,
        HASH_SIZE: 32768,
        "tcp_timeout_established": 86400,
        "tcp_timeout_close_wait": 3600,
    }


@pytest.mark.parametrize(
    ("cores", "fields", "limit", "field"),
    [
        (2, {}, 131072, "conntrack.min"),
        (8, {}, 262144, "conntrack.maxPerCore"),
        (2, {"min": 0}, 65536, "conntrack.maxPerCore"),
        (4, {"max_per_core": 1000, "min": 3999}, 4000, "conntrack.maxPerCore"),
        (4, {"max_per_core": 1000, "min": 4001}, 4001, "conntrack.min"),
    ],
)
def test_the_limit_is_by_core_and_at_least_the_minimum(
    cores: int, fields: dict[str, Any], limit: int, field: str
) -> None:
    maximum, hash_size, *_ = node_settings(config(conntrack=Conntrack(**fields)), cores)
    assert (maximum.value, maximum.field, hash_size.value) == (limit, field, limit // 4)


def test_without_a_limit_by_core_limit_and_minimum_are_left_alone() -> None:
    assert wanted(max_per_core=0, min=131072, **OFF) == {}


def test_the_limit_goes_before_the_hash_table_that_is_sized_by_it() -> None:
    assert [each.path for each in node_settings(config(), 2)][1] == HASH_SIZE


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("tcp_established_timeout", "tcp_timeout_established"),
        ("tcp_close_wait_timeout", "tcp_timeout_close_wait"),
        ("udp_timeout", "udp_timeout"),
        ("udp_stream_timeout", "udp_timeout_stream"),
    ],
)
@pytest.mark.parametrize(("seconds", "written"), [(90.0, 90), (90.9, 90), (0.4, 1), (0.0, None)])
def test_timeouts_are_whole_seconds_and_none_leaves_the_kernels(
    field: str, name: str, seconds: float, written: int | None
) -> None:
    fields = {**OFF, "max_per_core": 0, field: seconds}
    assert wanted(**fields) == ({} if written is None else {name: written})


def test_liberal_tracking_is_switched_on_and_never_off() -> None:
    assert wanted(tcp_be_liberal=True)["tcp_be_liberal"] == 1
    assert "tcp_be_liberal" not in wanted(tcp_be_liberal=False)


def test_our_own_process() -> None:
    assert process_settings(config(oom_score_adj=-5)) == (Setting("oomScoreAdj", "proc/self/oom_score_adj", -5),)


class TestChanges:
    LIMIT, TIMEOUT = Setting("f", "limit", 100, at_least=True), Setting("f", "timeout", 100)

    @pytest.mark.parametrize(("now", "written"), [(99, True), (100, False), (101, False)])
    def test_a_limit_is_raised_and_never_lowered(self, now: int, written: bool) -> None:
        assert bool(changes([self.LIMIT], {"limit": now})) is written

    @pytest.mark.parametrize(("now", "written"), [(99, True), (100, False), (101, True)])
    def test_anything_else_is_written_if_it_differs(self, now: int, written: bool) -> None:
        assert bool(changes([self.TIMEOUT], {"timeout": now})) is written

    def test_what_is_not_there_is_never_right(self) -> None:
        assert [each.current for each in changes([self.LIMIT, self.TIMEOUT], {"limit": None})] == [None, None]


class TestLocalhostNodePorts:
    @pytest.mark.parametrize(
        "addresses",
        [(), ("all",), ("localhost",), ("127.0.0.0/8",), ("0.0.0.0/0",), ("::/0",), ("::/0", "127.0.0.1/32")],
    )
    def test_they_take_routing_to_loopback_in_iptables_mode(self, addresses: tuple[str, ...]) -> None:
        found = localhost_settings(config(mode="iptables", node_port_addresses=addresses), localhost_node_ports=True)
        assert [(each.path, each.value) for each in found] == [(ROUTE_LOCALNET, 1)]

    @pytest.mark.parametrize("addresses", [("primary",), ("10.0.0.0/8",), ("primary", "fd00::/8")])
    def test_where_node_ports_are_elsewhere_nothing_is_needed(self, addresses: tuple[str, ...]) -> None:
        given = config(mode="iptables", node_port_addresses=addresses)
        assert localhost_settings(given, localhost_node_ports=True) == ()

    def test_neither_where_they_are_switched_off_nor_in_nftables_mode(self) -> None:
        assert localhost_settings(config(mode="iptables", node_port_addresses=()), localhost_node_ports=False) == ()
        assert (
            localhost_settings(config(mode="nftables", node_port_addresses=("all",)), localhost_node_ports=True) == ()
        )
