"""How two sets of rules differ, how that is told, and what a plan's command line can be."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.errors import UserError
from proxyd.explain.answering import NoAnswerError
from proxyd.ipt.objects import ChainName, Table
from proxyd.ipt.saved import Contents
from proxyd.kernel.nft.recording import RecordingRuleset
from proxyd.model import Family, Finding, Reason
from proxyd.nft.objects import Chain, Container, Element, KeyType, Transaction
from proxyd.objects import overlaid
from proxyd.plan import ipt_served
from proxyd.plan.answer import FamilyPlan, How, Plan, Removal, Write
from proxyd.plan.served import Difference, Effect, Served, What, difference
from proxyd.plan.text import plan_text
from proxyd.planning import question, read_plan
from proxyd.serve.objects import Running
from proxyd.sync.foresight import differing
from tests import build

V4 = Family.IPV4
VIP = FrontendKey("10.96.0.1", "tcp", 80)
OTHER = FrontendKey("10.96.0.2", "tcp", 80)
PORT = FrontendKey("", "tcp", 30080)
ONE, TWO = Backend("10.244.1.1", 8080), Backend("10.244.2.1", 8080)
WEB = Served("default/web:http", Effect.FORWARDED, (ONE,))


def changed(**fields: object) -> Served:
    return replace(WEB, **fields)


def test_what_is_the_same_is_no_change() -> None:
    assert difference({VIP: WEB, OTHER: WEB}, {VIP: WEB, OTHER: WEB}) == Difference((), 1)


def test_a_service_is_changed_by_a_frontend_of_it() -> None:
    (change,) = difference({VIP: WEB}, {VIP: WEB, PORT: WEB}).services
    assert (change.service, change.what) == ("default/web", What.CHANGED)
    assert [(each.frontend, each.what) for each in change.frontends] == [("node port 30080/tcp", What.ADDED)]


def test_a_frontend_that_goes_to_another_service_is_told_of_both() -> None:
    found = difference({VIP: WEB, OTHER: WEB}, {VIP: changed(port="default/new:http"), OTHER: WEB})
    assert [(each.service, each.what) for each in found.services] == [
        ("default/new", What.ADDED),
        ("default/web", What.CHANGED),
    ]
    assert found.unchanged == 0


def family(before: Served | None = None, after: Served | None = None, **fields: object) -> FamilyPlan:
    was, now = ({VIP: each} if each is not None else {} for each in (before, after))
    return FamilyPlan(V4, difference(was, now), 1, 1, **fields)  # type: ignore[arg-type]


def told(*families: FamilyPlan, **fields: object) -> str:
    return plan_text(Plan("nftables", How.CHANGE, "nothing", families, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("after", "line"),
    [
        (changed(endpoints=(TWO,)), "+ 10.244.2.1:8080"),
        (changed(endpoints=()), "- 10.244.1.1:8080"),
        (changed(sources=("192.0.2.0/24",)), "clients: all -> 192.0.2.0/24"),
        (changed(sources=()), "clients: all -> nobody"),
        (changed(affinity_seconds=60), "ClientIP affinity: 0 s -> 60 s"),
        (changed(effect=Effect.EXTERNAL), "was: to 1 endpoint"),
        (changed(local=(TWO,)), "+ on this node 10.244.2.1:8080"),
        (changed(port="default/web:other"), "port: default/web:http -> default/web:other"),
    ],
)
def test_each_change_of_a_frontend_is_told(after: Served, line: str) -> None:
    assert line in [each.strip() for each in told(family(WEB, after)).splitlines()]


def test_long_lists_are_cut() -> None:
    many = tuple(Backend("10.244.1.1", number) for number in range(1, 31))
    text = told(family(changed(endpoints=()), changed(endpoints=many)))
    assert text.count("+ 10.244.1.1") == 10
    assert "and 20 more" in text


def test_what_is_beside_services_is_told() -> None:
    finding = Finding("Service", "default/web", Reason.INVALID_PORT, "no")
    text = told(
        family(settings=("zone: za -> zb",), writes=(Write("add x\n"), Write("delete x\n", tidies=True))),
        removals=(Removal("iptables-nft, IPv4", "kube-proxy", 3, 1, ("nat KUBE-MARK-MASQ",)),),
        findings=(finding,),
        solved=(finding,),
        notes=("so it is",),
    )
    assert "  ~ zone: za -> zb\n" in text
    assert "removed then: kube-proxy, iptables-nft, IPv4: 3 chains, 1 jump\n" in text
    assert "  kept, since rules of others lead there: nat KUBE-MARK-MASQ\n" in text
    assert "finding: Service default/web: invalid-port: no\nsolved: Service default/web: invalid-port\n" in text
    assert "note: so it is\n# IPv4, call 1\nadd x\n# IPv4, call 2, when nothing uses it any more\ndelete x\n" in text


@pytest.mark.parametrize(
    ("mode", "how", "operations", "differs"),
    [
        ("nftables", How.START, 80, False),
        ("nftables", How.CHANGE, 1, True),
        ("iptables", How.START, 1, True),
        ("iptables", How.START, 0, False),
    ],
)
def test_to_write_the_same_anew_is_no_change(mode: str, how: How, operations: int, differs: bool) -> None:
    plan = Plan(mode, how, "", (FamilyPlan(V4, Difference(), operations, 1),))
    assert plan.differs is differs
    assert ("no change" in plan_text(plan)) is not differs


def test_what_is_applied_comes_on_top() -> None:
    store = build.store(build.service("a"), build.service("b", ip="10.96.0.2"))
    overlaid(store, build.store(build.service("b", ip="10.96.0.9"), build.service("c", ip="10.96.0.3")))
    assert {each.key.name: each.cluster_ips for each in store.all_services()} == {
        "a": ("10.96.0.1",),
        "b": ("10.96.0.9",),
        "c": ("10.96.0.3",),
    }


def test_only_what_differs_is_worked_out() -> None:
    one = build.store(build.service("a"), build.service("b"), build.endpoint_slice("a", "10.244.1.1"))
    two = build.store(build.service("a"), build.service("b"), build.endpoint_slice("a", "10.244.1.2"))
    assert differing(one, two) == {build.key("a")}
    assert differing(one, one) == set()


def test_a_recorder_has_what_is_left_after_deletions() -> None:
    kernel = RecordingRuleset()
    made = Container("g1/x", (KeyType.ADDRESS,))
    kernel.commit(
        Transaction(
            V4, "table", containers=(made,), chains=(Chain("c", ()),), add_elements=(Element("g1/x", "10.0.0.1"),)
        )
    )
    kernel.commit(Transaction(V4, delete_elements=(Element("g1/x", "10.0.0.1"),), delete_chains=("c",)))
    assert kernel.contents(V4).chains == frozenset()
    assert kernel.contents(V4).containers == {"g1/x": False}
    assert len(kernel.transactions) == 2


def test_rules_of_kube_proxy_are_read_as_their_tool_prints_them() -> None:
    nat = {
        "KUBE-SERVICES": "-d fd00::1/128 -p udp -m comment --comment default/dns:dns -m udp --dport 53 -j KUBE-SVC-A\n",
        "KUBE-SVC-A": "-m recent --rcheck --seconds 60 --reap --name KUBE-SEP-A --rsource -j KUBE-SEP-A\n-j KUBE-SEP-A\n",
        "KUBE-SEP-A": "-p udp -m udp -j DNAT --to-destination [fd00:1::2]:53\n",
    }
    contents = Contents({ChainName(Table.NAT, name): text for name, text in nat.items()})
    assert ipt_served.serving(contents) == {
        FrontendKey("fd00::1", "udp", 53): Served(
            "default/dns:dns", Effect.FORWARDED, (Backend("fd00:1::2", 53),), affinity_seconds=60
        )
    }


def test_a_comment_that_is_no_text_can_be_told() -> None:
    words = '-d 10.96.0.1/32 -p tcp -m comment --comment "caf\udce9 cluster IP" -m tcp --dport 80 -j'
    nat = {ChainName(Table.NAT, "KUBE-SERVICES"): f"{words} KUBE-SVC-A\n"}
    refused = {ChainName(Table.FILTER, "KUBE-SERVICES"): f"{words} REJECT\n"}
    for chains in (nat, refused):
        (found,) = ipt_served.serving(Contents(chains)).values()
        assert found.port == "caf\ufffd"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-o", "yaml"], "--output: must be text or json"),
        (["--apply", "a", "--manifests", "b"], "give one of them"),
        (["--aply", "a"], "--aply: unknown flag"),
        (["default/web"], "takes no arguments"),
    ],
)
def test_what_is_no_question(words: list[str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_plan(words)


def test_own_flags_are_not_flags_of_run() -> None:
    asked = read_plan(["--apply", "a", "--rules", "-o", "json", "--proxy-mode", "iptables"])
    assert (asked.apply, asked.as_json, asked.rules) == ("a", True, True)
    assert asked.line.given == {"--proxy-mode": ("iptables",)}


UNREADABLE = Finding("Service", "default/odd", Reason.UNREADABLE_OBJECT, "not a Service")
RUNNING = Running(
    version="",
    mode="nftables",
    given={"--cluster-cidr": ("10.244.0.0/16",), "--master": ("http://192.0.2.1",)},
    settings={V4: build.settings(V4)},
    services=(build.service("web"),),
    slices=(),
    node=build.node(),
    unreadable=(UNREADABLE,),
)


def test_what_the_running_proxyd_could_not_read_is_not_forgotten() -> None:
    asked = question(read_plan([]), RUNNING)
    assert (asked.how, asked.changed) == (How.CHANGE, ())
    assert [each.key.name for each in asked.wanted.all_services()] == ["web"]
    assert list(asked.wanted.unreadable.values()) == [UNREADABLE]


def test_manifests_are_all_there_is_but_for_the_node(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}"
    )
    asked = question(read_plan(["--manifests", str(tmp_path)]), RUNNING)
    assert asked.how is How.CHANGE
    assert asked.wanted.all_services() == ()
    assert [each.object for each in asked.wanted.unreadable.values()] == ["default/a"]
    assert asked.wanted.node() == build.node()


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--proxy-mode", "iptables"], "mode"),
        (["--cluster-cidr", "10.0.0.0/8"], "clusterCIDR"),
        (["--metrics-bind-address", "127.0.0.1:1"], "metricsBindAddress"),
    ],
)
def test_another_configuration_is_a_start(words: list[str], changed: str) -> None:
    asked = question(read_plan(words), RUNNING)
    assert asked.how is How.START
    assert changed in asked.changed


def test_somebody_has_to_say_what_is_served() -> None:
    with pytest.raises(NoAnswerError, match="say --manifests DIR or --kubeconfig FILE"):
        question(read_plan([]), None)
