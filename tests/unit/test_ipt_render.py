"""A Service as iptables rules: which chains there are for which route, and what is in them."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.desired.services import Desired
from proxyd.ipt import names
from proxyd.ipt.fixed import JUMPS, fixed_chains
from proxyd.ipt.objects import Table
from proxyd.ipt.render import render_service
from proxyd.ipt.restore import rule_text
from proxyd.ipt.style import INVALID_DROPPED, LOCALHOST_ACCEPTED, Style
from proxyd.model import EndpointSlice, Family, LocalDetector, Service
from tests import build

V4, V6 = Family.IPV4, Family.IPV6
SVC, SVL = "KUBE-SVC-CDGGSHYLG3RE2FKL", "KUBE-SVL-CDGGSHYLG3RE2FKL"
EXT, FW = "KUBE-EXT-CDGGSHYLG3RE2FKL", "KUBE-FW-CDGGSHYLG3RE2FKL"
LOCAL, REMOTE = build.endpoint("10.244.1.2"), build.endpoint("10.244.2.2", node="node2")
WEB = "default/web:http"


class Made:
    """The rules of one Service, as text, by chain."""

    def __init__(
        self,
        service: Service,
        *endpoints: Any,
        family: Family = V4,
        style: Style | None = None,
        slices: tuple[EndpointSlice, ...] = (),
        **settings: Any,
    ) -> None:
        on = build.settings(family, **settings)
        store = build.store(service, *slices, build.endpoint_slice("web", *endpoints, family=family))
        forwarding, _ = Desired(family, store.service).forwarding(service.key, on)
        assert forwarding is not None
        self.rules = render_service(forwarding, on, style or Style())
        self.chains = {each.name: [rule_text(rule) for rule in each.rules] for each in self.rules.chains}

    def placed(self, table: Table, chain: str) -> list[str]:
        return [rule_text(p.rule) for p in self.rules.dispatch if (p.table, p.chain) == (table, chain)]

    def targets(self) -> dict[str, str]:
        """Where each address leads."""
        return {
            placed.rule.destination: placed.rule.target
            for placed in self.rules.dispatch
            if (placed.table, placed.chain) == (Table.NAT, names.SERVICES)
        }

    def kinds(self) -> set[str]:
        return {name.rsplit("-", 1)[0] + "-" for name in self.chains}


def external(**fields: Any) -> Service:
    """Reachable by every kind of address."""
    given: dict[str, Any] = {
        "ports": (build.port(node_port=30080),),
        "external_ips": ("203.0.113.5",),
        "ingress_ips": ("203.0.113.10",),
    }
    return build.service(**(given | fields))


def test_a_cluster_ip_leads_to_its_endpoints() -> None:
    made = Made(build.service(), LOCAL, REMOTE)
    here, there = sorted(name for name in made.chains if name.startswith(names.ENDPOINT))
    assert made.placed(Table.NAT, names.SERVICES) == [
        f' -d 10.96.0.1/32 -p tcp -m comment --comment "{WEB} cluster IP" -m tcp --dport 80 -j {SVC}'
    ]
    masquerade, first, last = made.chains[SVC]
    assert masquerade == (
        f' ! -s 10.244.0.0/16 -d 10.96.0.1/32 -p tcp -m comment --comment "{WEB} cluster IP" -m tcp --dport 80'
        " -j KUBE-MARK-MASQ"
    )
    assert first.startswith(f' -m comment --comment "{WEB} -> 10.244.1.2:8080" -m statistic --mode random')
    assert " --probability 0.5000000000 " in first
    assert "statistic" not in last
    assert {first.split()[-1], last.split()[-1]} == {here, there}


def test_an_endpoint_translates_and_masquerades_what_it_sends_to_itself() -> None:
    made = Made(build.service(), LOCAL)
    (chain,) = (rules for name, rules in made.chains.items() if name.startswith(names.ENDPOINT))
    assert chain == [
        f' -s 10.244.1.2/32 -m comment --comment "{WEB}" -j KUBE-MARK-MASQ',
        f' -p tcp -m comment --comment "{WEB}" -m tcp -j DNAT --to-destination 10.244.1.2:8080',
    ]


def test_ipv6_endpoints_are_in_brackets() -> None:
    service = build.service(ip="fd00:10:96::1")
    made = Made(service, "fd00:10:244:1::2", family=V6)
    (chain,) = (rules for name, rules in made.chains.items() if name.startswith(names.ENDPOINT))
    assert " -s fd00:10:244:1::2/128 " in chain[0]
    assert chain[1].endswith(" --to-destination [fd00:10:244:1::2]:8080")


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_of_n_endpoints_has_one_chance_in_those_that_are_left(count: int) -> None:
    made = Made(build.service(), *(f"10.244.1.{n + 1}" for n in range(count)))
    balancing = made.chains[SVC][1:]
    assert len(balancing) == count
    for i, rule in enumerate(balancing[:-1]):
        assert f" --probability {1 / (count - i):.10f} " in rule
    assert "statistic" not in balancing[-1]


def test_endpoints_are_sorted_as_text() -> None:
    made = Made(build.service(), "10.244.1.1", "10.244.1.10", "10.244.1.9")
    order = [rule.split('"')[1].split()[-1] for rule in made.chains[SVC][1:]]
    assert order == ["10.244.1.10:8080", "10.244.1.1:8080", "10.244.1.9:8080"]


def test_affinity_looks_a_client_up_and_notes_it() -> None:
    made = Made(build.service(affinity_seconds=60), LOCAL, REMOTE)
    for rule in made.chains[SVC][1:3]:
        endpoint = rule.split()[-1]
        assert f" -m recent --rcheck --seconds 60 --reap --name {endpoint} -j" in rule
        assert f" -m recent --set --name {endpoint} -m tcp -j DNAT" in made.chains[endpoint][1]


def test_policy_cluster_masquerades_all_that_comes_by_an_external_address() -> None:
    made = Made(external(), LOCAL)
    assert made.kinds() == {names.SERVICE, names.EXTERNAL, names.ENDPOINT}
    text = f'"masquerade traffic for {WEB} external destinations"'
    assert made.chains[EXT] == [f" -m comment --comment {text} -j KUBE-MARK-MASQ", f" -j {SVC}"]
    assert made.placed(Table.NAT, names.NODE_PORTS) == [
        f' -p tcp -m comment --comment "{WEB}" -m tcp --dport 30080 -j {EXT}'
    ]
    targets = made.targets()
    assert targets == {"10.96.0.1/32": SVC, "203.0.113.5/32": EXT, "203.0.113.10/32": EXT}
    assert not made.placed(Table.FILTER, names.EXTERNAL_SERVICES)


def test_policy_local_keeps_the_source_and_lets_pods_and_the_node_go_anywhere() -> None:
    made = Made(external(external_local=True), LOCAL, REMOTE)
    words = f"{WEB} external destinations"
    assert made.chains[EXT] == [
        f' -s 10.244.0.0/16 -m comment --comment "pod traffic for {words}" -j {SVC}',
        f' -m comment --comment "masquerade LOCAL traffic for {words}" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ',
        f' -m comment --comment "route LOCAL traffic for {words}" -m addrtype --src-type LOCAL -j {SVC}',
        f" -j {SVL}",
    ]
    assert len(made.chains[SVL]) == 1
    assert len(made.chains[SVC]) == 3


def test_policy_local_without_a_local_endpoint_drops_others() -> None:
    made = Made(external(external_local=True), REMOTE)
    assert SVL not in made.chains
    assert made.chains[EXT][-1].endswith(f" --src-type LOCAL -j {SVC}")
    assert [rule.split()[-1] for rule in made.placed(Table.FILTER, names.EXTERNAL_SERVICES)] == ["DROP"] * 3
    assert all("has no local endpoints" in rule for rule in made.placed(Table.FILTER, names.EXTERNAL_SERVICES))


def test_without_a_detector_pods_have_no_short_circuit_and_cluster_ips_no_masquerading() -> None:
    made = Made(external(external_local=True), LOCAL, local=None)
    assert not any("pod traffic" in rule for rule in made.chains[EXT])
    assert not any("MARK-MASQ" in rule for rule in made.chains[SVC])


def test_a_detector_by_interface_is_a_prefix_match() -> None:
    made = Made(external(external_local=True), LOCAL, local=LocalDetector(interface="veth*"))
    assert made.chains[EXT][0].startswith(" -i veth+ ")
    assert made.chains[EXT][0].endswith(f" -j {SVC}")
    assert " ! -i veth+ -p tcp " in made.chains[SVC][0]


def test_masquerade_all_is_about_cluster_ips_from_everywhere() -> None:
    made = Made(build.service(), LOCAL, masquerade_all=True)
    assert made.chains[SVC][0].startswith(" -d 10.96.0.1/32 -p tcp ")
    assert made.chains[SVC][0].endswith(" -m tcp --dport 80 -j KUBE-MARK-MASQ")


def test_source_ranges_guard_load_balancer_addresses_only() -> None:
    made = Made(external(source_ranges=("198.51.100.0/24",)), LOCAL)
    assert made.chains[FW] == [
        f' -s 198.51.100.0/24 -m comment --comment "{WEB} loadbalancer IP" -j {EXT}',
        f' -m comment --comment "other traffic to {WEB} will be dropped by KUBE-PROXY-FIREWALL"',
    ]
    assert made.placed(Table.FILTER, names.PROXY_FIREWALL) == [
        f' -d 203.0.113.10/32 -p tcp -m comment --comment "{WEB} traffic not accepted by {FW}" -m tcp --dport 80 -j DROP'
    ]
    targets = made.targets()
    assert targets["203.0.113.10/32"] == FW
    assert targets["203.0.113.5/32"] == EXT
    assert made.placed(Table.NAT, names.NODE_PORTS)[0].endswith(EXT)


@pytest.mark.parametrize(("family", "everybody"), [(V4, "0.0.0.0/0"), (V6, "::/0")])
def test_a_range_that_everybody_is_in_is_no_match_as_the_tools_print_it(family: Family, everybody: str) -> None:
    ip, ingress, endpoint = {
        V4: ("10.96.0.1", "203.0.113.10", "10.244.1.2"),
        V6: ("fd00:10:96::1", "2001:db8::10", "fd00:10:244:1::2"),
    }[family]
    made = Made(build.service(ip=ip, ingress_ips=(ingress,), source_ranges=(everybody,)), endpoint, family=family)
    assert made.chains[FW][0] == f' -m comment --comment "{WEB} loadbalancer IP" -j {EXT}'


def test_without_endpoints_everything_is_refused_and_no_chain_is_left() -> None:
    made = Made(external(source_ranges=("198.51.100.0/24",)))
    assert made.chains == {}
    (inside,) = made.placed(Table.FILTER, names.SERVICES)
    assert (
        inside == f' -d 10.96.0.1/32 -p tcp -m comment --comment "{WEB} has no endpoints" -m tcp --dport 80 -j REJECT'
    )
    outside = made.placed(Table.FILTER, names.EXTERNAL_SERVICES)
    assert [rule.split()[-1] for rule in outside] == ["REJECT"] * 3
    assert outside[-1].endswith(" -m addrtype --dst-type LOCAL -m tcp --dport 30080 -j REJECT")
    assert not made.placed(Table.NAT, names.SERVICES)
    assert not made.placed(Table.FILTER, names.PROXY_FIREWALL)


def test_internal_policy_local_uses_endpoints_of_this_node_for_the_cluster_ip() -> None:
    made = Made(build.service(internal_local=True), LOCAL, REMOTE)
    assert made.kinds() == {names.LOCAL, names.ENDPOINT}
    assert made.placed(Table.NAT, names.SERVICES)[0].endswith(f" -j {SVL}")
    assert "KUBE-MARK-MASQ" in made.chains[SVL][0]
    none = Made(build.service(internal_local=True), REMOTE)
    assert "has no local endpoints" in none.placed(Table.FILTER, names.SERVICES)[0]


def test_a_health_check_node_port_is_let_in_once_for_each_port() -> None:
    ports = (build.port(node_port=30080), build.port(53, "dns", "udp"))
    made = Made(external(ports=ports, external_local=True, health_check_node_port=30999), LOCAL)
    rules = made.placed(Table.FILTER, names.NODE_PORTS)
    assert [rule.split('"')[1] for rule in rules] == [
        f"default/web:{name} health check node port" for name in ("http", "dns")
    ]
    assert all(rule.endswith(" -m tcp --dport 30999 -j ACCEPT") for rule in rules)


def test_a_health_check_node_port_is_let_in_once_where_its_rules_would_be_alike() -> None:
    """Names from manifests that no comment can have, or that are cut in it: rules alike would stay when one is to go."""
    for name in ("no name", "x" * 300):
        ports = (build.port(node_port=30080), build.port(53, "dns", "udp"))
        service = build.service(
            name, ports=ports, ingress_ips=("203.0.113.10",), external_local=True, health_check_node_port=30999
        )
        assert len(Made(service, LOCAL).placed(Table.FILTER, names.NODE_PORTS)) == 1


def test_a_health_check_node_port_is_let_in() -> None:
    made = Made(external(external_local=True, health_check_node_port=30999), LOCAL)
    assert made.placed(Table.FILTER, names.NODE_PORTS) == [
        f' -p tcp -m comment --comment "{WEB} health check node port" -m tcp --dport 30999 -j ACCEPT'
    ]


@pytest.mark.parametrize(
    ("family", "style", "count"),
    [
        (V4, Style(counters=frozenset({LOCALHOST_ACCEPTED})), 2),
        (V4, Style(counters=frozenset({LOCALHOST_ACCEPTED}), localhost_node_ports=False), 1),
        (V4, Style(), 1),
    ],
)
def test_node_ports_on_loopback_are_counted_where_the_kernel_can(family: Family, style: Style, count: int) -> None:
    rules = Made(external(), LOCAL, family=family, style=style).placed(Table.NAT, names.NODE_PORTS)
    assert len(rules) == count
    # Each is put first in turn, so the one that counts is seen before the other.
    assert ("--nfacct-name localhost_nps_accepted_pkts" in rules[-1]) == (count == 2)


def every_text(name: str) -> list[str]:
    """Rules of every kind that say which ServicePort they are for, of a Service of this name."""
    ports: dict[str, Any] = {"name": name, "ports": (build.port(node_port=30080),)}
    restricted = external(source_ranges=("198.51.100.0/24",), affinity_seconds=60, **ports)
    local = external(external_local=True, health_check_node_port=30999, **ports)
    found: list[str] = []
    for service, endpoints in ((restricted, (LOCAL,)), (local, (LOCAL, REMOTE)), (local, (REMOTE,)), (local, ())):
        rules = Made(service, slices=(build.endpoint_slice(name, *endpoints),)).rules
        found += [rule_text(rule) for chain in rules.chains for rule in chain.rules]
        found += [rule_text(placed.rule) for placed in rules.dispatch]
    return found


@pytest.mark.parametrize("name", ['x" -j ACCEPT', "x\nCOMMIT", "x\\", "x y", "x\u00e9"], ids=ascii)
def test_a_name_that_no_comment_can_hold_is_left_out(name: str) -> None:
    assert any("--comment" in each for each in every_text("x"))
    assert not any("comment" in each or "x" in each for each in every_text(name))


def test_comments_are_cut_to_what_the_tools_take() -> None:
    comments = {each.split('"')[1] for each in every_text("x" * 300) if '"' in each}
    assert {len(each) for each in comments} == {255}
    assert f"default/{'x' * 247}" in comments


def test_large_clusters_have_no_comments_at_endpoints() -> None:
    made = Made(external(), LOCAL, REMOTE, style=Style(comments=False))
    assert (
        made.chains[SVC][1]
        == f" -m statistic --mode random --probability 0.5000000000 -j {made.chains[SVC][1].split()[-1]}"
    )
    assert "comment" not in "".join(made.chains[made.chains[SVC][1].split()[-1]])
    assert "masquerade traffic for" in made.chains[EXT][0]


def test_matches_are_in_kube_proxys_order() -> None:
    assert [rule_text(each.rule) for each in JUMPS if each.chain == "OUTPUT" and each.table is Table.FILTER] == [
        f' -m conntrack --ctstate NEW -m comment --comment "kubernetes {what}" -j {target}'
        for what, target in (
            ("service portals", names.SERVICES),
            ("load balancer firewall", names.PROXY_FIREWALL),
        )
    ]
    style = Style(counters=frozenset({INVALID_DROPPED, LOCALHOST_ACCEPTED}))
    (forward,) = (each for each in fixed_chains(build.settings(V4), style) if each.name == names.FORWARD)
    invalid, *_ = map(rule_text, forward.rules)
    assert invalid == f" -m conntrack --ctstate INVALID -m nfacct --nfacct-name {INVALID_DROPPED} -j DROP"
    *_, counted = Made(external(), LOCAL, style=style).placed(Table.NAT, names.NODE_PORTS)
    count = f"-m nfacct --nfacct-name {LOCALHOST_ACCEPTED}"
    assert counted == f' -d 127.0.0.0/8 -p tcp -m comment --comment "{WEB}" -m tcp --dport 30080 {count} -j {EXT}'


@pytest.mark.parametrize("random", [True, False])
def test_masquerading_chooses_ports_at_random_where_the_tools_can(random: bool) -> None:
    style = Style(random_ports=random)
    (chain,) = (each for each in fixed_chains(build.settings(), style) if each.name == names.POSTROUTING)
    assert rule_text(chain.rules[-1]).endswith(" -j MASQUERADE --random-fully" if random else " -j MASQUERADE")
