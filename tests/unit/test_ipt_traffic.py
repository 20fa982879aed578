"""Where packets go under the rules of iptables mode: as under those of nftables mode, for everything a Service can be."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import pytest

from proxyd.desired.services import Desired
from proxyd.ipt.delta import Holdings
from proxyd.ipt.fixed import DISPATCH, JUMPS, fixed_chains, node_port_dispatch
from proxyd.ipt.names import SERVICES
from proxyd.ipt.objects import Chain, Table, Transaction
from proxyd.ipt.style import Style
from proxyd.model import Family, Service
from tests import build
from tests.fakes.ipt_packets import distribution
from tests.fakes.ipt_rules import FakeRules
from tests.fakes.packets import Host, Packet
from tests.world import HOST, ORIGINS, World

V4 = Family.IPV4
NODE_ADDRESS = build.NODE_IP[V4]
LOCAL = build.endpoint("10.244.1.2")
REMOTE = build.endpoint("10.244.2.2", node="node2")
ENDPOINTS = {"both": (LOCAL, REMOTE), "remote": (REMOTE,), "local": (LOCAL,), "none": ()}
FRONTENDS = (("10.96.0.1", 80), ("203.0.113.5", 80), ("203.0.113.10", 80), (NODE_ADDRESS, 30080))


def loaded(*objects: Any, **settings: Any) -> FakeRules:
    """A kernel with everything that these objects need."""
    on, style, kernel = build.settings(**settings), Style(), FakeRules()
    store = build.store(*objects)
    desired, holdings = Desired(V4, store.service), Holdings(V4, on)
    dispatch = tuple(
        Chain(table, name, node_port_dispatch(on, style) if (table, name) == (Table.NAT, SERVICES) else ())
        for table, name in DISPATCH
    )
    kernel.commit(Transaction(V4, chains=dispatch + fixed_chains(on, style), insert=()))
    kernel.commit(Transaction(V4, insert=JUMPS))
    changes = {key: desired.forwarding(key, on)[0] for key in sorted(store.keys())}
    plan = holdings.plan(changes, style)
    kernel.commit(plan.transaction)
    holdings.confirm(plan)
    assert holdings.chain_names() == {chain.name for chain in plan.transaction.chains}
    return kernel


def reached(kernel: FakeRules, by: str, address: str, port: int) -> dict[tuple[str, str, bool], Fraction]:
    """Where a connection ends, whether its source is replaced, with probabilities."""
    source, iif = ORIGINS[V4][by]
    found: dict[tuple[str, str, bool], Fraction] = {}
    for probability, outcome in distribution(kernel, Packet(source, address, port, "tcp", iif), HOST):
        end = (outcome.verdict, *_end(outcome.verdict, outcome.destination[0], masqueraded=outcome.masqueraded))
        found[end] = found.get(end, Fraction(0)) + probability
    return found


def expected(world: World, by: str, address: str, port: int) -> dict[tuple[str, str, bool], Fraction]:
    """The same under the rules of nftables mode."""
    found: dict[tuple[str, str, bool], Fraction] = {}
    for probability, outcome in world.ask(address, port, by=by):
        end = (outcome.verdict, *_end(outcome.verdict, outcome.destination[0], masqueraded=outcome.masqueraded))
        found[end] = found.get(end, Fraction(0)) + probability
    return found


def _end(verdict: str, destination: str, *, masqueraded: bool) -> tuple[str, bool]:
    return (destination, masqueraded) if verdict == "accept" else ("", False)


def differs(by: str, address: str, where: str) -> bool:
    """Where iptables mode differs, as kube-proxy's does.

    Without any endpoint, what the node itself sends to an external address is not refused (there is no jump to
    KUBE-EXTERNAL-SERVICES in OUTPUT), and who is in no source range is refused rather than dropped.
    """
    return where == "none" and (by == "node" or address == "203.0.113.10") and address.startswith("203.")


SETTINGS: list[dict[str, Any]] = [{}, {"local": None}, {"masquerade_all": True}, {"node_port_addresses": None}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("where", ENDPOINTS)
@pytest.mark.parametrize(
    "policies",
    [
        {},
        {"external_local": True},
        {"internal_local": True},
        {"internal_local": True, "external_local": True},
        {"source_ranges": ("203.0.113.0/24",)},
        {"source_ranges": ("198.51.100.0/24",), "external_local": True},
    ],
    ids=str,
)
def test_every_packet_goes_where_it_goes_in_nftables_mode(
    policies: dict[str, Any], where: str, settings: dict[str, Any]
) -> None:
    service: Service = build.service(
        ports=(build.port(node_port=30080),),
        external_ips=("203.0.113.5",),
        ingress_ips=("203.0.113.10",),
        **policies,
    )
    objects = (service, build.endpoint_slice("web", *ENDPOINTS[where]))
    kernel, world = loaded(*objects, **settings), World(*objects, **settings)
    world.sync()
    for by, (address, port) in product(("pod", "node", "outside"), FRONTENDS):
        if differs(by, address, where):
            (end,) = reached(kernel, by, address, port)
            assert end[0] == ("accept" if by == "node" else "reject")
            continue
        assert reached(kernel, by, address, port) == expected(world, by, address, port), (by, address, port)


def test_a_client_with_a_pin_goes_where_it_went() -> None:
    service = build.service(affinity_seconds=60)
    kernel = loaded(service, build.endpoint_slice("web", LOCAL, REMOTE))
    source, iif = ORIGINS[V4]["outside"]
    packet = Packet(source, "10.96.0.1", 80, "tcp", iif)
    for _, first in distribution(kernel, packet, HOST):
        (pin,) = first.pins
        again = distribution(kernel, packet, HOST, frozenset({pin[0]}))
        assert [(p, outcome.destination) for p, outcome in again] == [(Fraction(1), first.destination)]


def test_other_ports_of_the_node_are_left_alone() -> None:
    kernel = loaded(build.service(ports=(build.port(node_port=30080),)), build.endpoint_slice("web", LOCAL))
    assert reached(kernel, "outside", NODE_ADDRESS, 22) == {("accept", NODE_ADDRESS, False): Fraction(1)}
    assert reached(kernel, "outside", "192.0.2.99", 30080) == {("accept", "192.0.2.99", False): Fraction(1)}


def test_node_ports_on_loopback_are_the_nodes_own() -> None:
    kernel = loaded(
        build.service(ports=(build.port(node_port=30080),)),
        build.endpoint_slice("web", LOCAL),
        node_port_addresses=None,
    )
    host = Host(frozenset({NODE_ADDRESS, "127.0.0.1"}))
    ((_, outcome),) = distribution(kernel, Packet("127.0.0.1", "127.0.0.1", 30080, "tcp", ""), host)
    assert outcome.destination == ("10.244.1.2", 8080)
    ((_, martian),) = distribution(kernel, Packet("203.0.113.9", "127.0.0.1", 9000, "tcp", "eth0"), host)
    assert martian.verdict == "accept"  # kubelet's KUBE-FIREWALL jump is not part of this kernel
