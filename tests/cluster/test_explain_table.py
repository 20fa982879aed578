"""`proxyd explain` over every verdict and reason that there is, in every mode and family, beside what real packets met."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from proxyd.desired.endpoints import LeftOut
from proxyd.explain.answer import STATUS, Answer, Explanation, Source, Verdict
from proxyd.explain.answering import Words
from proxyd.model import Family, Reason
from proxyd.serve.ask import ask
from proxyd.serve.explaining import path_of
from tests.cluster.answers import check
from tests.cluster.explain_rows import (
    ALL,
    BASE,
    BLIND,
    DEAD,
    LOOPBACK,
    NOT_OF_SERVICES,
    ROWS,
    Row,
    dead,
    documents,
    place_of,
)
from tests.cluster.manifests import text
from tests.cluster.modes import EVERY_MODE, Mode, flush, prepare
from tests.cluster.namespaces import inside
from tests.cluster.test_explain import explain
from tests.program import CLUSTER_CIDR, Proxyd, write
from tests.topology import ADDRESSES, NODE, V4, V6, Topology

pytestmark = EVERY_MODE

TAKEN = f"{NODE[V4]}/32,{NODE[V6]}/128,127.0.0.0/8,::1/128"
FLAGS = ("--hostname-override", "node1", "--nodeport-addresses", TAKEN)
CIDR = ("--cluster-cidr", CLUSTER_CIDR)
DAEMONS = {BASE: CIDR, ALL: (*CIDR, "--masquerade-all"), BLIND: ()}
NODE_OBJECT = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "node1", "labels": {"topology.kubernetes.io/zone": "za"}},
    "status": {"addresses": [{"type": "InternalIP", "address": each} for each in NODE.values()]},
}


class Served(NamedTuple):
    """A cluster, and which rows its node serves."""

    world: Topology
    mode: Mode
    rows: dict[int, Row]


@pytest.fixture(scope="module", params=DAEMONS)
def served(
    world: Topology, mode: Mode, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """One running proxyd, which serves all rows of its flags."""
    rows = {number: row for number, row in enumerate(ROWS) if row.on == request.param and mode in row.modes}
    folder = tmp_path_factory.mktemp("manifests")
    everything: list[dict[str, Any]] = [NODE_OBJECT, dead()]
    for number, row in rows.items():
        everything += documents(number, row)
    write(folder, "all.yaml", text(*everything))
    prepare(world, mode)
    flags = (*mode.flags[:2], *FLAGS, *DAEMONS[request.param])
    with Proxyd(world, folder, folder.parent / f"{folder.name}.log", flags=flags):
        yield Served(world, mode, rows)
    flush(world)
    world.node.run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")


@pytest.mark.parametrize("family", Family)
def test_the_answer_says_so_and_the_packet_meets_it(served: Served, family: Family) -> None:
    asked = {number: row for number, row in served.rows.items() if family in row.families}
    wrong = []
    for number, row in asked.items():
        try:
            compare(served, number, row, family)
        except AssertionError as error:
            wrong.append(f"row {row.title!r}: {error}")
    assert asked
    assert not wrong, "\n".join(wrong)


def compare(served: Served, number: int, row: Row, family: Family) -> None:
    world = served.world
    address, port = place_of(number).to(row, family)
    source = address if row.to == "localhost" else ADDRESSES[row.place][family]
    host = f"[{address}]" if family is V6 else address
    to = f"{host}:{port}/{row.protocol}"
    # The program is the same everywhere, and costs more than asking the running proxyd as it does.
    by_program = family is V4 and served.mode is Mode.NFTABLES
    packet = told_by_program(world, source, to, row.verdict) if by_program else told(world, source, to)
    assert packet.verdict is row.verdict, packet
    assert {name_of(each.address): each.source_why for each in packet.endpoints} == row.ends, packet
    assert {each.chance for each in packet.endpoints} <= {"1" if len(row.ends) == 1 else f"1/{len(row.ends)}"}, packet
    assert {name_of(each.address): each.why for each in packet.left_out} == row.out, packet
    said = "\n".join((packet.reason, *packet.notes))
    assert row.says in said, packet
    if row.named:
        by_name = json.loads(explain(world, f"default/row{number}", "-o", "json").stdout)
        assert row.named in by_name["services"][0]["reason"]
    elif row.reason:
        assert f"{row.reason}: " in said, packet
    # What the packets meet is what the answer lets expect, and that is what the row says.
    expected = check(world, row.place, packet)
    assert expected.sources.keys() == row.met, (expected, packet)


def told(world: Topology, source: str, to: str) -> Explanation:
    """What the running proxyd says."""
    return _packet(inside(world.node, lambda: ask(path_of(Words(source=source, to=to)))))


def told_by_program(world: Topology, source: str, to: str, verdict: Verdict) -> Explanation:
    """What the program says, with its exit status."""
    done = explain(world, "--from", source, "--to", to, "-o", "json")
    assert done.returncode == STATUS[verdict], done
    return _packet(done.stdout.encode())


def _packet(body: bytes) -> Explanation:
    packet = msgspec.json.decode(body, type=Answer).packet
    assert packet is not None, body
    return packet


def name_of(address: str) -> str:
    """Whose address it is, of those that rows have for endpoints."""
    known = {"dead": DEAD, "localhost": LOOPBACK, **ADDRESSES}
    return next(name for name, addresses in known.items() if address in addresses.values())


def test_every_verdict_and_every_reason_has_a_row(mode: Mode) -> None:
    rows = [row for row in ROWS if mode in row.modes]
    only_nft = set() if mode is Mode.NFTABLES else {Source.RELAYED}
    assert {row.verdict for row in rows} == {*Verdict}
    assert {why for row in rows for why in row.ends.values()} == {*Source} - only_nft
    assert {why for row in rows for why in row.out.values()} == {*LeftOut}
    reasons = [row.reason for row in rows if row.reason]
    assert {*reasons, *NOT_OF_SERVICES} == {*Reason}
    assert not NOT_OF_SERVICES.keys() & {*reasons}
