"""iptables mode on the real tools, both backends and families: they take, print and tell what is relied on."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, Queue
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from proxyd.ipt import names
from proxyd.ipt.names import CANARY
from proxyd.ipt.objects import Chain, Placed, Rule, Table, Transaction
from proxyd.kernel.ipt.backend import choose_backend
from proxyd.kernel.ipt.iptables import Backend, IptablesTools
from proxyd.kernel.ipt.notices import OwnAuthor
from proxyd.kernel.ipt.rules import ToolRules
from proxyd.kernel.ipt.watch import LegacyWatch, Sizes
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family, LocalDetector, Service
from proxyd.nft.drift import Drift
from proxyd.sync.ipt.reconcile import IptReconciler
from tests import build
from tests.ipt_world import IptWorld
from tests.netns import leave, why_not
from tests.world import Object

T = TypeVar("T")
pytestmark = pytest.mark.kernel
V4, V6 = Family.IPV4, Family.IPV6
WAIT = 30.0
ADDRESSES = {
    V4: (
        "10.96.0.1",
        "10.96.0.2",
        "198.51.100.1",
        "203.0.113.5",
        "203.0.113.0/24",
        ("10.244.1.1", "10.244.1.2", "10.244.2.3"),
    ),
    V6: (
        "2001:db8:96::1",
        "2001:db8:96::2",
        "2001:db8:51::1",
        "2001:db8:203::5",
        "2001:db8:203::/64",
        ("fd00:10:244:1::1", "fd00:10:244:1::2", "fd00:10:244:2::3"),
    ),
}


def everything(family: Family, endpoints: int = 3, **fields: Any) -> list[Object]:
    """Services that need every kind of rule."""
    first, second, external, ingress, sources, all_endpoints = ADDRESSES[family]
    rich = build.service(
        "rich",
        ip=first,
        ports=(build.port(node_port=30080), build.port(53, "dns", "udp"), build.port(132, "sctp", "sctp")),
        external_ips=(external,),
        ingress_ips=(ingress,),
        source_ranges=(sources,),
        affinity_seconds=600,
        external_local=True,
        health_check_node_port=32000,
        **fields,
    )
    where = [
        build.endpoint(each, node=build.NODE if n else "node2") for n, each in enumerate(all_endpoints[:endpoints])
    ]
    return [
        rich,
        build.endpoint_slice("rich", *where, family=family),
        build.service("none", ip=second),
    ]


class Node:
    """A namespace with a reconciler, whose calls are made in it."""

    def __init__(self, backend: Backend, family: Family) -> None:
        self._thread = ThreadPoolExecutor(1, "namespace", leave)
        self.backend, self.family = backend, family
        self.drifts: Queue[Drift] = Queue()
        self.world = IptWorld(*everything(family), family=family)
        self.settings = self.world.settings
        self.call(self._build)

    def _build(self) -> None:
        own, legacy = OwnAuthor(), LegacyWatch([self.family])
        is_nft = self.backend is Backend.NFT
        self.tools = IptablesTools(self.family, self.backend, author=own if is_nft else legacy.author(self.family))
        self.rules = ToolRules(self.tools)
        self.restart()
        if is_nft:
            self.watch: Any = own.watch(self.drifts.put)
        else:
            places = {self.family: (self.tools, lambda: self.reconciler.expected)}
            self.watch = legacy.watch(places, self.drifts.put)

    def start_anew(self) -> None:
        """As another process does: nothing is known, and nothing watched yet."""
        self.call(self._build)

    def restart(self) -> None:
        store = self.world.store
        self.reconciler = IptReconciler(self.family, self.rules, store.service, self.world.style)

    def call(self, what: Callable[..., T], *arguments: Any) -> T:
        return self._thread.submit(what, *arguments).result()

    def sync(self) -> None:
        """A pass, here and in memory."""
        changes = self.world.store.take().services
        self.call(self.reconciler.sync, changes, self.world.store.keys, self.settings)
        self.world.reconciler.sync(changes, self.world.store.keys, self.settings)
        for each in (self.reconciler, self.world.reconciler):
            if each.cleanup_owed:
                self.call(each.cleanup)

    def is_as_in_memory(self) -> bool:
        return self.call(self.rules.contents) == self.world.kernel.contents()

    def foreign(self, *words: str) -> None:
        """Somebody runs iptables."""
        tool = f"{'iptables' if self.family is V4 else 'ip6tables'}-{self.backend}"
        self.call(lambda: subprocess.run([tool, *words], check=True, capture_output=True))

    def drift(self) -> Drift:
        return self.drifts.get(timeout=WAIT)

    def close(self) -> None:
        self._thread.shutdown()


@pytest.fixture(params=[f"{backend}-{family}" for backend in Backend for family in Family])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    if reason := why_not():
        pytest.skip(reason)
    backend, family = request.param.split("-")
    made = Node(Backend(backend), Family(family))
    yield made
    made.close()


def test_what_is_written_is_read_as_in_memory(node: Node) -> None:
    node.sync()
    assert node.is_as_in_memory()
    assert not node.reconciler.refusals


def test_every_change_is_taken_and_found_again(node: Node) -> None:
    node.sync()
    for endpoints, fields in ((1, {}), (0, {}), (2, {"internal_local": True}), (3, {})):
        node.world.put(*everything(node.family, endpoints, **fields))
        node.sync()
        assert not node.reconciler.refusals
        assert not node.reconciler.rewritten
        assert node.is_as_in_memory(), endpoints
    node.world.remove(everything(node.family)[0])
    node.sync()
    assert not node.reconciler.refusals
    assert node.is_as_in_memory()


def test_a_restart_finds_that_nothing_is_to_be_written(node: Node) -> None:
    node.sync()
    assert node.reconciler.operations
    node.restart()
    node.sync()
    assert node.reconciler.operations == 0
    assert node.is_as_in_memory()


def test_others_rules_without_match_and_target_are_in_nobodys_way(node: Node) -> None:
    for words in (("-A", "INPUT"), ("-N", "TEAM"), ("-A", "TEAM")):
        node.foreign(*words)
    same = Transaction(node.family, chains=(Chain(Table.FILTER, "TEAM", (Rule(),)),))
    node.world.kernel.commit((same, Transaction(node.family, insert=(Placed(Table.FILTER, "INPUT", Rule()),))))
    node.sync()
    assert node.is_as_in_memory()
    node.restart()
    node.sync()
    assert node.reconciler.operations == 0


def test_others_comments_that_are_no_text_are_in_nobodys_way(node: Node) -> None:
    latin = os.fsdecode(b"caf\xe9")
    node.foreign("-A", "INPUT", "-m", "comment", "--comment", latin, "-j", "ACCEPT")
    assert node.call(choose_backend, [node.family], None).backend is node.backend
    node.sync()
    assert node.is_as_in_memory()
    node.foreign("-t", "nat", "-A", names.SERVICES, "-m", "comment", "--comment", latin, "-j", "ACCEPT")
    node.restart()
    node.sync()
    assert node.is_as_in_memory()


HOSTILE = 'x" -j ACCEPT\nCOMMIT\n*filter\n-I INPUT -j ACCEPT\nCOMMIT\n*nat\n-A KUBE-SERVICES -m comment --comment "y'


@pytest.mark.parametrize("name", [HOSTILE, "x" * 300], ids=["hostile", "long"])
def test_a_name_that_no_comment_can_hold_makes_rules_as_any_other(node: Node, name: str) -> None:
    endpoints = ADDRESSES[node.family][-1]
    node.world.put(
        build.service(name, ip={V4: "10.96.0.3", V6: "2001:db8:96::3"}[node.family]),
        build.endpoint_slice(name, *endpoints, family=node.family),
    )
    node.sync()
    assert not node.reconciler.refusals
    assert node.is_as_in_memory()
    assert "-A INPUT -j ACCEPT\n" not in node.call(lambda: list(node.tools.save("filter")))
    node.restart()
    node.sync()
    assert node.reconciler.operations == 0


def test_a_restart_finds_a_range_that_everybody_is_in(node: Node) -> None:
    everybody = {V4: "0.0.0.0/0", V6: "::/0"}[node.family]
    rich, *others = everything(node.family)
    assert isinstance(rich, Service)
    node.world.put(replace(rich, source_ranges=(everybody,)), *others)
    node.sync()
    assert node.is_as_in_memory()
    node.restart()
    node.sync()
    assert node.reconciler.operations == 0


def test_a_restart_finds_a_pod_range_that_everybody_is_in(node: Node) -> None:
    everybody = {V4: "0.0.0.0/0", V6: "::/0"}[node.family]
    node.settings = replace(node.settings, local=LocalDetector(cidr=everybody))
    node.sync()
    assert not node.reconciler.refusals
    assert node.is_as_in_memory()
    node.restart()
    node.sync()
    assert node.reconciler.operations == 0


@pytest.mark.parametrize("length", [14, 15])
def test_pods_are_told_by_prefixes_up_to_the_length_of_a_name(node: Node, length: int) -> None:
    node.settings = replace(node.settings, local=build.by_prefix("v" * length))
    node.sync()
    assert not node.reconciler.refusals
    assert not node.world.reconciler.refusals
    assert node.is_as_in_memory()


def test_all_of_a_refused_table_is_as_it_was(node: Node) -> None:
    node.sync()
    bad = Transaction(
        node.family,
        chains=(Chain(Table.NAT, f"{names.SERVICE}{'A' * 16}"),),
        insert=(Placed(Table.NAT, names.SERVICES, Rule("KUBE-NOBODY")),),
    )
    with pytest.raises(KernelRefusedError):
        node.call(node.rules.commit, (bad,))
    assert node.is_as_in_memory()


def test_a_refused_table_keeps_none_before_it_from_being_written(node: Node) -> None:
    node.sync()
    chain = Chain(Table.NAT, f"{names.SERVICE}{'A' * 16}")
    bad = Placed(Table.FILTER, names.SERVICES, Rule("KUBE-NOBODY"))
    call = (Transaction(node.family, chains=(chain,), insert=(bad,)),)
    with pytest.raises(KernelRefusedError):
        node.call(node.rules.commit, call)
    with pytest.raises(KernelRefusedError):
        node.world.kernel.commit(call)
    assert node.is_as_in_memory()
    assert chain.name in {each.name for each in node.call(node.rules.contents).chains}


def test_an_input_that_breaks_off_changes_nothing(node: Node) -> None:
    node.sync()

    def breaks_off() -> Iterator[Transaction]:
        yield Transaction(node.family, chains=(Chain(Table.NAT, f"{names.SERVICE}{'A' * 16}"),))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        node.call(node.rules.commit, breaks_off())
    assert node.is_as_in_memory()


@pytest.mark.parametrize(
    "edit",
    [
        ("-t", "nat", "-F", names.SERVICES),
        ("-t", "filter", "-F", names.FORWARD),
        ("-t", "nat", "-D", "POSTROUTING", "1"),
        ("-t", "nat", "-F"),
        ("-F",),
        ("-t", "nat", "-I", names.SERVICES, "-j", "ACCEPT"),
    ],
    ids=" ".join,
)
def test_what_others_do_is_noticed_and_undone(node: Node, edit: tuple[str, ...]) -> None:
    node.call(node.watch.start)
    node.sync()
    node.foreign(*edit)
    assert not node.is_as_in_memory()
    node.reconciler.mend(node.drift())
    node.sync()
    assert node.is_as_in_memory()
    node.watch.stop()


def test_after_a_start_that_had_nothing_to_write_what_others_do_is_noticed_too(node: Node) -> None:
    node.sync()
    node.start_anew()
    node.call(node.watch.start)
    node.sync()
    assert node.reconciler.operations == 0
    node.foreign("-t", "nat", "-F", names.SERVICES)
    node.reconciler.mend(node.drift())
    node.sync()
    assert node.is_as_in_memory()
    node.watch.stop()


@pytest.mark.parametrize("node", [f"{Backend.LEGACY}-{family}" for family in Family], indirect=True)
def test_an_edit_that_keeps_number_and_size_of_legacy_rules_is_found_by_the_clock(node: Node) -> None:
    node.sync()
    here, there = {V4: ("10.244.1.1", "10.244.9.9"), V6: ("fd00:10:244:1::1", "fd00:10:244:9::9")}[node.family]
    saved = node.call(lambda: list(node.tools.save("nat")))
    _, chain, *rule = shlex.split(
        next(line for line in saved if "-j DNAT" in line and here in line).replace(here, there)
    )
    sizes = node.call(Sizes, node.family)
    before = sizes.read()
    node.foreign("-t", "nat", "-R", chain, "2", *rule)
    assert sizes.read() == before
    assert not node.is_as_in_memory()
    places = {node.family: (node.tools, lambda: node.reconciler.expected)}
    watch = LegacyWatch([node.family], compared_every=0.0).watch(places, node.drifts.put)
    watch.start()
    told = node.drift()
    watch.stop()
    assert (told.edits, told.everything) == (0, True)
    node.reconciler.mend(told)
    node.sync()
    assert node.is_as_in_memory()


def test_neither_own_calls_nor_others_rules_are_drift(node: Node) -> None:
    node.call(node.watch.start)
    node.sync()
    node.world.put(*everything(node.family, 1))
    node.sync()
    node.foreign("-t", "nat", "-N", "CNI-HOSTPORT-DNAT")
    node.foreign("-t", "nat", "-I", "PREROUTING", "-j", "CNI-HOSTPORT-DNAT")
    node.foreign("-t", "nat", "-D", "PREROUTING", "-j", "CNI-HOSTPORT-DNAT")
    node.foreign("-t", "nat", "-F", names.POSTROUTING)
    told = node.drift()
    assert told.chains == {f"nat {names.POSTROUTING}"}
    assert not told.everything
    with pytest.raises(Empty):
        node.drifts.get_nowait()
    node.watch.stop()


@pytest.mark.parametrize("backend", Backend)
@pytest.mark.parametrize("chain", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", CANARY])
def test_the_backend_is_that_of_the_hint(backend: Backend, chain: str) -> None:
    made = Node(backend, V4)
    try:
        made.foreign("-t", "mangle", "-N", chain)
        for plain in (*Backend, None):
            assert made.call(choose_backend, [V4, V6], plain).backend is backend
    finally:
        made.close()


@pytest.mark.parametrize("backend", Backend)
def test_without_a_hint_the_backend_is_where_more_rules_are_and_else_the_hosts_own(backend: Backend) -> None:
    made = Node(backend, V4)
    (other,) = set(Backend) - {backend}
    try:
        assert made.call(choose_backend, [V4, V6], backend).backend is backend
        assert made.call(choose_backend, [V4, V6], None).backend is Backend.NFT
        made.foreign("-A", "INPUT", "-j", "ACCEPT")
        assert made.call(choose_backend, [V4, V6], other).backend is backend
    finally:
        made.close()
