"""What others have on the node, read from the real kernel."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

from proxyd.desired.endpoints import Backend
from proxyd.kernel.surroundings import Surroundings, read_surroundings, read_tracking
from proxyd.model import Family, ServiceKey
from proxyd.nft.layout import TABLE_COMMENT
from proxyd.nft.objects import Transaction
from tests.fakes.flows import Flow
from tests.netns import RealFlowTable, RealRuleset

LOOPBACK = "127.0.0.1"
THEIRS = """
table inet theirs {
  set s { type ipv4_addr; }
  chain plain { }
  chain forwarding { type filter hook forward priority 10; policy drop; }
}
table ip6 nat {
  chain pre { type nat hook prerouting priority -101; }
}
"""


def surroundings(before: str = "") -> Surroundings:
    """What is found in a namespace of its own, where somebody has written ``before``."""
    found: list[Surroundings] = []

    def look(kernel: RealRuleset) -> None:
        kernel.library.commit(Transaction(Family.IPV4, table=TABLE_COMMENT))
        if before:
            kernel.other(before)
        # /proc/self is the main thread's; the one that has moved sees its own namespace by this path.
        found.append(read_surroundings(Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}")))

    RealRuleset(look)
    return found[0]


def test_an_empty_namespace_has_nothing_of_others(real: RealRuleset) -> None:
    found = surroundings()
    assert (found.tables, dict(found.chains), dict(found.sets), found.base_chains) == ((), {}, {}, ())
    assert found.unknown == ()


def test_the_table_of_connections_is_that_of_the_namespace() -> None:
    table = RealFlowTable()
    try:
        # An empty table that has a limit: what other namespaces track is not in it.
        before = table.inside(read_tracking)
        assert before is not None
        assert before.limit > before.entries == 0
        flow = Flow(Backend("10.0.0.1", 5000), Backend("10.96.0.1", 80), Backend("10.244.0.1", 8080), "tcp")
        table.add(Family.IPV4, flow)
        assert table.inside(read_tracking) == before._replace(entries=1)
    finally:
        table.close()


def test_where_connections_are_not_tracked_there_is_no_table(tmp_path: Path) -> None:
    assert read_tracking(tmp_path) is None


def test_tables_chains_sets_and_hooks_of_others_are_found(real: RealRuleset) -> None:
    found = surroundings(THEIRS)
    assert found.tables == ("inet theirs", "ip6 nat")
    assert dict(found.chains) == {"inet theirs": 2, "ip6 nat": 1}
    assert dict(found.sets) == {"inet theirs": 1}
    told = {(each.table, each.name, each.kind, each.hook, each.priority, each.drops) for each in found.base_chains}
    assert told == {
        ("inet theirs", "forwarding", "filter", "forward", 10, True),
        ("ip6 nat", "pre", "nat", "prerouting", -101, False),
    }


def test_thousands_of_foreign_chains_are_counted(real: RealRuleset) -> None:
    chains = "".join(f"add chain ip theirs c{n}\n" for n in range(3000))
    assert dict(surroundings(f"add table ip theirs\n{chains}").chains) == {"ip theirs": 3000}


def test_node_ports_that_a_process_listens_on_are_found(real: RealRuleset) -> None:
    found: list[Surroundings] = []
    kinds = (
        ("tcp", socket.AF_INET, "", 30080),
        ("udp", socket.AF_INET6, "::", 30081),
        ("tcp", socket.AF_INET, LOOPBACK, 30082),
    )
    whose = {(protocol, port): ServiceKey("shop", str(port)) for protocol, _, _, port in kinds}
    whose[("udp", 30080)] = ServiceKey("shop", "free")

    def look(_: RealRuleset) -> None:
        with ExitStack() as stack:
            for protocol, family, address, port in kinds:
                kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
                sock = stack.enter_context(socket.socket(family, kind))
                sock.bind((address, port))
                if protocol == "tcp":
                    sock.listen()
            found.append(read_surroundings(Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}"), whose))

    RealRuleset(look)
    # Not where only loopback is listened on: node ports are not taken there.
    assert found[0].taken == {("tcp", 30080): ServiceKey("shop", "30080"), ("udp", 30081): ServiceKey("shop", "30081")}


def test_settings_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "sys/net/ipv4/ip_forward").write_text("1\n")
    (tmp_path / "net").mkdir()
    (tmp_path / "net/ip_tables_names").write_text("nat\nfilter\n")
    found = read_surroundings(tmp_path)
    assert dict(found.sysctls) == {"net/ipv4/ip_forward": "1"}
    assert found.number("net/ipv4/ip_forward") == 1
    assert found.number("net/netfilter/nf_conntrack_max") is None
    assert found.legacy == {"iptables": ("nat", "filter")}
