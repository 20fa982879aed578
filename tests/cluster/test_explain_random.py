"""Random Services, random packets: explain is never wrong, in every mode and both families, with real connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, NamedTuple

import pytest

from proxyd.explain.answer import Explanation, Verdict
from proxyd.explain.packet import explain_packet
from proxyd.explain.view import Index, Packet, View
from proxyd.kernel.addresses import own_addresses
from proxyd.model import Endpoint, EndpointSlice, Family, LocalDetector, Service, ServicePort, SlicePort
from tests import build
from tests.cluster.answers import LOOPBACK, check
from tests.cluster.modes import EVERY_MODE, Mode
from tests.cluster.namespaces import inside
from tests.cluster.rules import Rules
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, PODS, V4, V6, Topology

CLUSTERS, QUESTIONS = 12, 24
Object = Service | EndpointSlice

VIPS = [{V4: f"10.96.0.{n}", V6: f"fd00:10:96::{n}"} for n in (10, 11, 12, 13)]
# Load balancers' and external addresses; the last ones answer at some ports of their own.
PUBLIC = [{V4: f"203.0.113.{n}", V6: f"2001:db8:113::{n}"} for n in (10, 11, 12)]
PUBLIC += [NODE, ADDRESSES["pod1"]]
NAMES = ("a", "b", "c")
PORTS = [("http", "tcp", 80), ("dns", "udp", 80), ("alt", "tcp", 8080), ("sig", "sctp", 80)]
# Such as the API server would not let pass: not served, and no harm to the rest.
REFUSED_PORTS = [ServicePort("high", "tcp", 70000), ServicePort("again", "tcp", 80), ServicePort("odd", "gre", 80)]
SLICE_PORTS = {"tcp": [8080, 8080, 8081, 2222, 80], "udp": [8053, 8053, 8080, 80], "sctp": [7]}
NODE_PORTS = (30080, 30081, 2222)
RANGES = [
    (),
    (),
    (),
    ("198.51.100.0/24", "2001:db8:51::/64"),
    ("10.244.0.0/16", "192.0.2.0/24"),
    ("fd00:10:244::/48", "2001:db8:2::/64"),
    ("nonsense",),
]
PLACES = ("pod1", "pod2", "node", "client1")


def service(random: Random, name: str) -> Service:
    public = [address for each in random.sample(PUBLIC, 4) for address in each.values()]
    ports = [
        ServicePort(*each, random.choice([0, *NODE_PORTS])) for each in random.sample(PORTS, random.choice([1, 2, 3]))
    ]
    return build.service(
        name,
        cluster_ips=tuple(random.choice(VIPS[:3]).values()) + (("10.96.0.13",) if random.random() < 0.1 else ()),
        external_ips=tuple(public[:4]) if random.random() < 0.6 else (),
        ingress_ips=tuple(public[4:]) if random.random() < 0.6 else ("127.0.0.9",),
        ports=tuple(ports) + tuple(each for each in REFUSED_PORTS if random.random() < 0.1),
        source_ranges=random.choice(RANGES),
        affinity_seconds=random.choice([0, 0, 0, 60, 10**6]),
        internal_local=random.random() < 0.3,
        external_local=random.random() < 0.5,
        created=random.choice(["", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]),
    )


def endpoint(random: Random, family: Family) -> Endpoint:
    pod = random.choice([*PODS, *PODS, "node"])
    own = pod == "node" or PODS[pod].router == "node"
    # Somebody may write another Service's address into a slice.
    address = random.choice(VIPS)[family] if random.random() < 0.08 else ADDRESSES[pod][family]
    return Endpoint(
        address,
        ready=random.random() < 0.7,
        serving=random.random() < 0.7,
        terminating=random.random() < 0.5,
        node=random.choice([None, *[build.NODE if own else "node2"] * 9]),
        zone_hints=random.choice([(), ("za",), ("za",), ("zb",)]),
        node_hints=random.choice([(), (), (build.NODE,), ("node2",)]),
    )


def slices(random: Random, name: str) -> Iterator[EndpointSlice]:
    for family in Family:
        for number in range(random.choice([1, 1, 2, 2])):
            yield build.endpoint_slice(
                name,
                *(endpoint(random, family) for _ in range(random.randrange(4))),
                name=f"{name}-{family}-{number}",
                family=family,
                ports=tuple(
                    SlicePort(of, protocol, random.choice(SLICE_PORTS[protocol]))
                    for of, protocol, _ in PORTS
                    if random.random() < 0.9
                ),
                refused=("127.0.0.9",) if random.random() < 0.1 else (),
            )


class Cluster(NamedTuple):
    """What is served, and the settings of the node with which it is."""

    objects: tuple[Object, ...]
    on: dict[str, Any]


def cluster(random: Random) -> Cluster:
    objects: list[Object] = []
    for name in NAMES[: random.choice([2, 3, 3])]:
        objects += [service(random, name), *slices(random, name)]
    on: dict[str, Any] = {"masquerade_all": random.random() < 0.15}
    if random.random() < 0.2:
        on["local"] = random.choice([None, LocalDetector(interface="pod*")])
    if random.random() < 0.3:
        on["node_port_addresses"] = random.choice([None, ()])
    return Cluster(tuple(objects), on)


def question(random: Random, family: Family, made: Cluster) -> tuple[str, Packet]:
    """Who asks, and what: mostly a frontend of one of the Services, else something beside them."""
    place = random.choice(PLACES)
    source = ADDRESSES[place][family]
    interface = {"client1": "eth0", "node": ""}.get(place, place)
    one = random.choice([each for each in made.objects if isinstance(each, Service)])
    port = random.choice([each for each in one.ports if each.protocol in ("tcp", "udp")] or [build.port()])
    addresses = [
        each
        for each in (*one.cluster_ips[: len(Family)], *one.external_ips, *one.ingress_ips)
        if (":" in each) is (family is V6) and not each.startswith("127.")
    ]
    if port.node_port and random.random() < 0.4:
        to, number = random.choice([NODE, NODE, POD_GATEWAY])[family], port.node_port
        if place == "node" and family is V4 and random.random() < 0.3:
            source = to = LOOPBACK[family]
    elif random.random() < 0.75:
        to, number = random.choice(addresses), port.port
    else:
        to = random.choice([*VIPS, *PUBLIC, POD_GATEWAY])[family]
        number = random.choice([80, 81, 2222, 8080, 30080])
    return place, Packet(source, to, port.protocol, min(number, 65535), interface)


def questions(random: Random, family: Family, made: Cluster) -> dict[str, list[Packet]]:
    """Questions by who asks; what a host sends to itself is none."""
    found: dict[str, dict[Packet, None]] = {place: {} for place in PLACES}
    for _ in range(QUESTIONS):
        place, packet = question(random, family, made)
        if place == "node" or packet.source != packet.destination:
            found[place][packet] = None
    return {place: list(packets) for place, packets in found.items()}


def is_complete(answer: Explanation, made: Cluster) -> bool:
    """Whether every address of the Service's slices is either used or left out for a reason."""
    told = {each.address for each in answer.endpoints} | {each.address for each in answer.left_out}
    return told == {
        address
        for each in made.objects
        if isinstance(each, EndpointSlice) and str(each.service) == answer.service and each.family is answer.family
        for address in (*(one.address for one in each.endpoints), *each.refused)
    }


@pytest.fixture
def on_loopback(world: Topology, rules: Rules) -> Iterator[None]:
    """As the daemon has it in iptables mode."""
    setting = "net.ipv4.conf.all.route_localnet"
    world.node.run("sysctl", "-qw", f"{setting}={int(rules.mode is not Mode.NFTABLES)}")
    yield
    world.node.run("sysctl", "-qw", f"{setting}=0")


@EVERY_MODE
@pytest.mark.usefixtures("on_loopback")
def test_an_answer_is_never_wrong(world: Topology, rules: Rules) -> None:
    met: Counter[Verdict] = Counter()
    here = {family: inside(world.node, lambda f=family: own_addresses(f)) for family in Family}  # type: ignore[misc]
    mode = "nftables" if rules.mode is Mode.NFTABLES else "iptables"

    def ask(view: View, place: str, packets: list[Packet]) -> None:
        for packet in packets:
            answer = explain_packet(view, packet)
            check(world, place, answer)
            met[answer.verdict] += 1
            if answer.verdict in (Verdict.DELIVERED, Verdict.PARTLY):
                assert is_complete(answer, made), answer

    for seed in range(CLUSTERS):
        random = Random(seed)
        made = cluster(random)
        rules.serve(*made.objects, **made.on)
        store = build.store(*made.objects)
        for family in Family:
            settings = build.settings(family, **made.on)
            view = View(mode, settings, Index(store.all_services()), store.service, here[family], localhost=True)
            by_place = questions(random, family, made)
            # Each host asks one thing after the other, all of them at once.
            with ThreadPoolExecutor(len(by_place)) as pool:
                asking = {place: pool.submit(ask, view, place, packets) for place, packets in by_place.items()}
            for place, each in asking.items():
                if error := each.exception():
                    raise AssertionError(f"seed {seed}, {family}, {place}, {made}") from error
    # Each can be met by chance, so that one that never was says that these clusters are too tame.
    assert met.keys() == {*Verdict}, met
