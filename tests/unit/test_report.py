"""The node report: what counts as a problem, what is advised, and how it reads."""

from __future__ import annotations

import msgspec
import pytest

from proxyd.kernel.surroundings import BaseChain, Surroundings
from proxyd.model import FAMILIES, Family, Finding, LocalDetector, Node, NodeSettings, Reason, ServiceKey
from proxyd.serve.advice import MANY_FOREIGN, advise, conntrack_use
from proxyd.serve.health import Moment
from proxyd.serve.report import Detected, Identity, Report, build_report
from proxyd.serve.report_text import SHOWN, report_text
from proxyd.sync.status import FamilyStatus, PassResult, Status

V4, V6 = Family.IPV4, Family.IPV6
NOW = Moment(1000.0, 1_700_000_000.0)
ME = Identity(
    version="1.2.3",
    mode="nftables",
    node="n1",
    started="2026-11-29T20:00:00Z",
    kernel="6.1.0",
    nftables="1.0.6",
    detected=(Detected("ip families", "IPv4,IPv6", "because"),),
)


class Watch:
    def __init__(self, *, connected: bool = True, last_event: float | None = 990.0) -> None:
        self.connected, self.last_event = connected, last_event
        self.relists = 1
        self.errors: dict[str, int] = {}
        self.clock_offset = None


def family(which: Family = V4, **fields: object) -> FamilyStatus:
    given = {
        "last_success": 995.0,
        "last_success_time": 1_699_999_995.0,
        "services": 3,
        "endpoints": 7,
        "settings": NodeSettings(which, "n1", "z1", "192.0.2.11", ("192.0.2.11",), LocalDetector("10.244.0.0/16")),
        "last_pass": PassResult(which, False, 0.0012, 1, 4),
    }
    return FamilyStatus(which, **(given | fields))  # type: ignore[arg-type]


def report(
    *families: FamilyStatus,
    findings: tuple[Finding, ...] = (),
    node: Node | None = None,
    around: Surroundings | None = None,
    watch: Watch | None = None,
) -> Report:
    status = Status("nftables", families or (family(),), findings, node)
    return build_report(ME, status, {"services": watch or Watch()}, around or Surroundings(), NOW, 30.0, None)


def conflict(name: str) -> Finding:
    return Finding("Service", f"default/{name}", Reason.FRONTEND_CONFLICT, "10.96.0.1:80 is another's")


def test_a_node_that_is_well_has_no_problem() -> None:
    made = report()
    assert made.ready
    assert made.problems == ()
    assert "node n1: ready" in report_text(made)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (report(family(last_success=None)), "IPv4: not written yet"),
        (report(family(owed_since=900.0, last_error="no room")), "a change has waited for 100 s (no room)"),
        (report(node=Node("n1", deleting=True)), "the Node is being deleted"),
    ],
)
def test_each_problem_makes_it_unready_and_is_told(made: Report, problem: str) -> None:
    assert not made.ready
    assert any(problem in each for each in made.problems)
    text = report_text(made)
    assert "NOT READY" in text
    assert f"! {made.problems[0]}" in text


def test_a_watch_that_is_down_is_a_problem() -> None:
    made = report(watch=Watch(connected=False, last_event=800.0))
    assert "services: the watch is down" in made.problems[0]
    assert "DOWN" in report_text(made)


def test_services_are_counted_once_whatever_number_of_findings_they_have() -> None:
    refused = [Finding("Service", "default/a", Reason.INVALID_ADDRESS, text) for text in ("x", "y")]
    other = Finding("Node", "n1", Reason.NODE_NOT_FOUND, "no Node")
    made = report(findings=(*refused, conflict("a"), conflict("b"), other))
    assert (made.services_refused, made.services_in_conflict) == (1, 2)


def test_many_findings_are_counted_whole_and_shown_in_part() -> None:
    text = report_text(report(findings=tuple(conflict(f"s{n:03}") for n in range(SHOWN + 5))))
    assert f"{SHOWN + 5} x frontend-conflict" in text
    assert text.count("- Service default/s") == SHOWN
    assert "- and 5 more" in text


def test_the_last_failure_stays_after_it_is_over() -> None:
    text = report_text(report(family(last_failure="Device busy", last_failure_time=1_699_999_000.0)))
    assert "last failure 2023-11-14T21:56:40Z: Device busy" in text


def test_before_the_first_pass_nothing_is_claimed_about_rules() -> None:
    text = report_text(report(FamilyStatus(V4)))
    assert "nothing written yet" in text
    assert "local pods" not in text
    assert "in force" not in text


def test_a_long_value_does_not_push_all_lines_apart() -> None:
    detected = (Detected("host settings", "a" * 90, "conntrack"), Detected("node name", "n1", "host name"))
    text = report_text(msgspec.structs.replace(report(), identity=msgspec.structs.replace(ME, detected=detected)))
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith(("  host", "  node name"))}
    assert lines["host"].endswith(f"{'a' * 90}  conntrack")
    assert len(lines["node"]) < 80


def test_what_rules_depend_on_is_told_for_each_family() -> None:
    everywhere = NodeSettings(V6, "n1", node_port_addresses=None)
    text = report_text(report(family(), family(V6, settings=everywhere)))
    assert "node ports on 192.0.2.11" in text
    assert "node address 192.0.2.11; local pods: 10.244.0.0/16; zone z1" in text
    assert "node ports on all addresses" in text
    assert "node address unknown; local pods: none; zone unknown" in text


def test_json_has_everything_that_the_report_has() -> None:
    made = report(findings=(conflict("a"),), around=Surroundings(tables=("ip x",), chains={"ip x": 2}))
    assert msgspec.json.decode(msgspec.json.encode(made), type=Report) == made
    assert msgspec.json.decode(msgspec.json.encode(made))["servicesInConflict"] == 1


def chain(table: str = "ip other", hook: str = "forward", kind: str = "filter", **fields: object) -> BaseChain:
    given = {"table": table, "name": "c", "kind": kind, "hook": hook, "priority": 0, "drops": False}
    return BaseChain(**(given | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Surroundings(sysctls={"net/ipv4/ip_forward": "0"}), "sysctl net.ipv4.ip_forward=1"),
        (Surroundings(base_chains=(chain(drops=True),)), "ct status dnat"),
        (Surroundings(tables=("inet firewalld",)), "firewalld runs"),
        (Surroundings(base_chains=(chain(hook="prerouting", kind="nat", priority=-100),)), "first translation"),
        (Surroundings(legacy={"iptables": ("nat", "filter")}), "iptables-legacy has the tables nat, filter"),
        (Surroundings(sysctls={"net/ipv4/conf/default/rp_filter": "1"}), "rp_filter is strict"),
        (
            Surroundings(sysctls={"net/ipv4/conf/all/route_localnet": "1"}),
            "neighbours can reach what listens on 127.0.0.1",
        ),
        (Surroundings(sysctls={"net/bridge/bridge-nf-call-iptables": "0"}), "bridge-nf-call-iptables is 0"),
        (
            Surroundings(sysctls={"net/netfilter/nf_conntrack_count": "80", "net/netfilter/nf_conntrack_max": "100"}),
            "80 % full (80 of 100)",
        ),
        (Surroundings(chains={"ip a": MANY_FOREIGN}), f"{MANY_FOREIGN} chains"),
        (Surroundings(taken={("tcp", 30080): ServiceKey("shop", "web")}), "tcp port 30080, a node port of shop/web"),
        (Surroundings(unknown=("nftables of others: no",)), "could not be looked at: nftables of others: no"),
    ],
)
def test_each_thing_that_may_interfere_is_told_once(found: Surroundings, words: str) -> None:
    (line,) = advise(found, FAMILIES)
    assert words in line
    assert f"! {line}" in report_text(report(family(), family(V6), around=found))


@pytest.mark.parametrize(
    "found",
    [
        Surroundings(),
        Surroundings(sysctls={"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "2"}),
        Surroundings(base_chains=(chain(), chain(hook="input", drops=True))),
        Surroundings(base_chains=(chain(hook="prerouting", kind="nat", priority=-90),)),
        Surroundings(base_chains=(chain(hook="postrouting", kind="nat", priority=-100),)),
        Surroundings(sysctls={"net/netfilter/nf_conntrack_count": "70", "net/netfilter/nf_conntrack_max": "100"}),
        Surroundings(tables=("ip other",), chains={"ip other": 10}),
    ],
)
def test_what_is_as_it_should_be_is_not_remarked_upon(found: Surroundings) -> None:
    assert advise(found, FAMILIES) == ()


def test_a_family_that_is_not_served_is_not_advised_about() -> None:
    found = Surroundings(sysctls={"net/ipv6/conf/all/forwarding": "0"}, base_chains=(chain("ip6 x", drops=True),))
    assert advise(found, (V4,)) == ()
    assert len(advise(found, FAMILIES)) == 2


def test_a_kernel_that_does_not_track_has_no_use_to_tell() -> None:
    assert conntrack_use(Surroundings()) is None
    assert report().limits == ()


def test_tables_of_iptables_are_our_own_in_iptables_mode() -> None:
    chain = BaseChain("ip nat", "PREROUTING", "nat", "prerouting", -100, drops=False)
    found = Surroundings(base_chains=(chain,), legacy={"iptables": ("nat",)}, chains={"ip nat": 5000})
    assert len(advise(found, FAMILIES)) == 3
    assert advise(found, FAMILIES, "iptables") == ()
