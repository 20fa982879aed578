"""Settings of the node that change while running lead to what a start with them leads to, and to no more work than that."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.desired.conflicts import FrontendKey
from proxyd.model import LocalDetector, SlicePort
from tests import build
from tests.world import World, normal

HINTED = [build.endpoint(f"10.244.1.{n}", zone_hints=(zone,)) for n, zone in ((1, "za"), (2, "zb"))]
OBJECTS = (
    build.service("zones"),
    build.endpoint_slice("zones", *HINTED),
    build.service("ports", ip="10.96.0.2", ports=(build.port(node_port=30001),), external_local=True),
    build.endpoint_slice("ports", "10.244.1.3"),
    build.service("dns", ip="10.96.0.3", ports=(build.port(53, protocol="udp", node_port=30053),)),
    build.endpoint_slice("dns", "10.244.1.4", ports=(SlicePort("http", "udp", 53),)),
    build.service("ranges", ip="10.96.0.4", ingress_ips=("203.0.113.4",), source_ranges=("192.0.2.0/24",)),
    build.endpoint_slice("ranges", "10.244.1.5"),
    build.service("empty", ip="10.96.0.5", ports=(build.port(node_port=30005),)),
)
CHANGES: list[dict[str, Any]] = [
    {"zone": "zb"},
    {"node_ip": "198.51.100.1"},
    {"node_port_addresses": ("192.0.2.11", "192.0.2.100")},
    {"node_port_addresses": ()},
    {"node_port_addresses": None},
    {"local": LocalDetector(cidr="10.244.9.0/24")},
    {"local": LocalDetector(interface="cali*")},
    {"local": None},
    {"local": None, "node_port_addresses": None},
    {"zone": "", "node_port_addresses": ("192.0.2.12",), "local": None},
    {},
]


def test_every_change_leads_to_what_a_start_with_it_leads_to() -> None:
    world = World(*OBJECTS)
    world.settle()
    for first in CHANGES:
        for second in CHANGES:
            for fields in (first, second):
                world.settings = build.settings(**fields)
                world.settle()
                fresh = World(*OBJECTS, **fields)
                fresh.settle()
                assert normal(world.ruleset, world.family) == normal(fresh.ruleset, fresh.family), fields


@pytest.mark.parametrize("before", [("192.0.2.11",), (), None], ids=str)
def test_flows_to_a_node_port_are_looked_at_where_an_address_comes(before: tuple[str, ...] | None) -> None:
    world = World(*OBJECTS, node_port_addresses=before)
    world.settle()
    world.cleaned.clear()
    world.settings = build.settings(node_port_addresses=("192.0.2.11", "192.0.2.100"))
    world.settle()
    (cleaned,) = world.cleaned
    assert FrontendKey("192.0.2.100", "udp", 30053) in cleaned
    assert all(key.port == 30053 for key in cleaned)
