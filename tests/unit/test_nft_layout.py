"""Names and shapes of the two-map layout."""

from __future__ import annotations

import pytest

from proxyd.model import FAMILIES, Family
from proxyd.nft.layout import AFFINITY, LASTING, LOCAL_BASE, TRANSLATED, Layout, generation_of
from proxyd.nft.objects import Chain, DnatMap, Field, Goto, KeyType, Random, SetMark

LAYOUT = Layout(Family.IPV4, 3, 0x4000)


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("g1/services", 1),
        ("g12/endpoints-tcp", 12),
        ("g1/external-g2/x", 1),
        (AFFINITY, None),
        ("nat-prerouting", None),
        ("g/services", None),
        ("gx/services", None),
        ("xg1/services", None),
        ("g1", None),
        ("", None),
    ],
)
def test_a_name_tells_its_generation(name: str, generation: int | None) -> None:
    assert generation_of(name) == generation


@pytest.mark.parametrize("family", FAMILIES)
def test_all_containers_but_the_lasting_sets_are_of_the_generation(family: Family) -> None:
    containers = Layout(family, 3, 0x4000).containers()
    assert {generation_of(each.name) for each in containers if each.name not in LASTING} == {3}
    assert len({each.name for each in containers}) == len(containers)
    lasting = [each for each in containers if each.name in LASTING]
    assert all(each.timeout and each.size > 0 for each in lasting)


def test_two_generations_share_nothing_but_the_lasting_sets() -> None:
    first, second = ({each.name for each in Layout(Family.IPV4, n, 0x4000).containers()} for n in (1, 2))
    assert first & second == LASTING == {AFFINITY, TRANSLATED}


def test_a_balancer_looks_a_random_index_of_the_destination_up_and_takes_the_first_endpoint_where_it_is_gone() -> None:
    key, first = ((Field.DADDR, Field.DPORT, Random(count)) for count in (5, 1))
    assert LAYOUT.balancer("udp", 5, node_port=False) == Chain(
        "g3/lb-udp-5", ((DnatMap("udp", key, "g3/endpoints-udp"),), (DnatMap("udp", first, "g3/endpoints-udp"),))
    )


def test_a_balancer_of_one_endpoint_has_nothing_else_to_take() -> None:
    assert len(LAYOUT.balancer("udp", 1, node_port=False).rules) == 1


def test_a_balancer_of_node_ports_does_not_look_at_the_destination() -> None:
    rules = tuple((DnatMap("tcp", (Field.DPORT, Random(n)), "g3/nodeport-endpoints-tcp"),) for n in (5, 1))
    assert LAYOUT.balancer("tcp", 5, node_port=True) == Chain("g3/np-tcp-5", rules)


def test_a_balancer_of_second_lists_counts_from_65536() -> None:
    chain = LAYOUT.balancer("tcp", 2, node_port=False, local=True)
    assert chain.name == "g3/local-lb-tcp-2"
    keys = ((Field.DADDR, Field.DPORT, Random(n, LOCAL_BASE)) for n in (2, 1))
    assert chain.rules == tuple((DnatMap("tcp", key, "g3/endpoints-tcp"),) for key in keys)
    assert LOCAL_BASE == 65536


def test_a_masquerading_chain_sets_the_mark_and_goes_on() -> None:
    chain = LAYOUT.masquerading(LAYOUT.balancer("tcp", 2, node_port=False))
    assert chain == Chain("g3/external-lb-tcp-2", ((SetMark(0x4000), Goto("g3/lb-tcp-2")),))


def test_maps_of_endpoints_hold_ports_of_one_protocol_and_numbers() -> None:
    numbered = [each for each in LAYOUT.containers() if KeyType.NUMBER in each.key and each.is_map]
    assert {each.name: each.protocol for each in numbered} == {
        f"g3/{kind}-{protocol}": protocol
        for kind in ("endpoints", "nodeport-endpoints")
        for protocol in ("tcp", "udp", "sctp")
    }
