"""Objects as nft's text, exactly; and that no foreign text can get into it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxyd.model import Family
from proxyd.nft.layout import ADDRESS_KEY, NODE_PORT_KEY
from proxyd.nft.objects import (
    Chain,
    Chance,
    Container,
    Count,
    Dnat,
    DnatMap,
    Drop,
    Element,
    Field,
    FlipMark,
    Goto,
    Hook,
    InSet,
    Jump,
    KeyType,
    Marked,
    Masquerade,
    Match,
    Random,
    Reject,
    Rule,
    SetMark,
    Statement,
    Transaction,
    UpdateSet,
    VerdictMap,
)
from proxyd.nft.render import comment_text
from proxyd.nft.script import rule_text, script

A, P, N, PORT = KeyType.ADDRESS, KeyType.PROTOCOL, KeyType.NUMBER, KeyType.PORT
SOURCE: tuple[Field, ...] = (Field.SADDR,)


def text(family: Family = Family.IPV4, **parts: Any) -> str:
    return script(Transaction(family, **parts))


@pytest.mark.parametrize(
    ("statement", "four", "six"),
    [
        (Match(Field.CT_STATE, "new"), "ct state new", "ct state new"),
        (Match(Field.CT_STATUS, "dnat"), "ct status dnat", "ct status dnat"),
        (Match(Field.SADDR, "10.0.0.0/8"), "ip saddr 10.0.0.0/8", "ip6 saddr 10.0.0.0/8"),
        (Match(Field.DADDR, "::1", negate=True), "ip daddr != ::1", "ip6 daddr != ::1"),
        (Match(Field.IIFNAME, "cali*"), 'iifname "cali*"', 'iifname "cali*"'),
        (Match(Field.IIFNAME, "br0", negate=True), 'iifname != "br0"', 'iifname != "br0"'),
        (Match(Field.SADDR_TYPE, "local"), "fib saddr type local", "fib saddr type local"),
        (Match(Field.DADDR_TYPE, "local", negate=True), "fib daddr type != local", "fib daddr type != local"),
        (InSet((Field.DADDR,), "g1/ips"), "ip daddr @g1/ips", "ip6 daddr @g1/ips"),
        (
            InSet((*ADDRESS_KEY, Field.SADDR), "g1/s", negate=True),
            "ip daddr . meta l4proto . th dport . ip saddr != @g1/s",
            "ip6 daddr . meta l4proto . th dport . ip6 saddr != @g1/s",
        ),
        (
            InSet((Field.SADDR, Random(1, 4294967295)), "affinity"),
            "ip saddr . numgen random mod 1 offset 4294967295 @affinity",
            "ip6 saddr . numgen random mod 1 offset 4294967295 @affinity",
        ),
        (
            UpdateSet("t", (Field.ORIGINAL_DADDR, Field.ORIGINAL_DPORT), 60),
            "update @t { ct original ip daddr . ct original proto-dst timeout 60s }",
            "update @t { ct original ip6 daddr . ct original proto-dst timeout 60s }",
        ),
        (InSet((Field.SADDR, Field.SPORT), "t"), "ip saddr . th sport @t", "ip6 saddr . th sport @t"),
        (Chance(3), "numgen random mod 3 0", "numgen random mod 3 0"),
        (VerdictMap(NODE_PORT_KEY, "g1/n"), "meta l4proto . th dport vmap @g1/n", "meta l4proto . th dport vmap @g1/n"),
        (
            DnatMap("udp", (Field.DADDR, Field.DPORT, Random(2)), "g1/e"),
            "meta l4proto udp dnat ip to ip daddr . th dport . numgen random mod 2 map @g1/e",
            "meta l4proto udp dnat ip6 to ip6 daddr . th dport . numgen random mod 2 map @g1/e",
        ),
        (
            DnatMap("tcp", (Field.DPORT, Random(2, 65536)), "g1/e"),
            "meta l4proto tcp dnat ip to th dport . numgen random mod 2 offset 65536 map @g1/e",
            "meta l4proto tcp dnat ip6 to th dport . numgen random mod 2 offset 65536 map @g1/e",
        ),
        (
            UpdateSet("affinity", (Field.SADDR, Random(1, 7)), 10800),
            "update @affinity { ip saddr . numgen random mod 1 offset 7 timeout 10800s }",
            "update @affinity { ip6 saddr . numgen random mod 1 offset 7 timeout 10800s }",
        ),
        (Marked(0x4000), "meta mark & 0x4000 != 0", "meta mark & 0x4000 != 0"),
        (SetMark(0x4000), "meta mark set mark or 0x4000", "meta mark set mark or 0x4000"),
        (FlipMark(0x80000000), "meta mark set mark xor 0x80000000", "meta mark set mark xor 0x80000000"),
        (Count("dropped_pkts"), 'counter name "dropped_pkts"', 'counter name "dropped_pkts"'),
        (Jump("g1/a"), "jump g1/a", "jump g1/a"),
        (Goto("g1/a"), "goto g1/a", "goto g1/a"),
        (Drop(), "drop", "drop"),
        (Reject(), "reject", "reject"),
        (Reject(reset=True), "reject with tcp reset", "reject with tcp reset"),
        (Masquerade(), "masquerade fully-random", "masquerade fully-random"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_statement_in_both_families(statement: Statement, four: str, six: str) -> None:
    assert rule_text((statement,), "ip") == four
    assert rule_text((statement,), "ip6") == six


@pytest.mark.parametrize(
    ("address", "target"), [("10.244.0.1", "10.244.0.1:8080"), ("2001:db8::1", "[2001:db8::1]:8080")]
)
def test_an_ipv6_destination_is_bracketed(address: str, target: str) -> None:
    assert rule_text((Dnat("sctp", address, 8080),), "ip") == f"meta l4proto sctp dnat to {target}"


def test_statements_of_a_rule_are_joined() -> None:
    rule: Rule = (Marked(1), FlipMark(1), Masquerade())
    assert rule_text(rule, "ip") == "meta mark & 0x1 != 0 meta mark set mark xor 0x1 masquerade fully-random"


@pytest.mark.parametrize(
    ("container", "declaration"),
    [
        (Container("s", (A,)), "set ip proxyd s { type ipv4_addr; }"),
        (
            Container("s", (A, A, P, PORT)),
            "set ip proxyd s { type ipv4_addr . ipv4_addr . inet_proto . inet_service; }",
        ),
        (Container("m", (P, PORT), ()), "map ip proxyd m { type inet_proto . inet_service : verdict; }"),
        (Container("m", (A,), (), counter=True), "map ip proxyd m { type ipv4_addr : verdict; counter; }"),
        (Container("s", (A, A), interval=True), "set ip proxyd s { type ipv4_addr . ipv4_addr; flags interval; }"),
        (
            Container("s", (A, N), timeout=True, size=1024),
            "set ip proxyd s { typeof ip daddr . numgen random mod 2; flags dynamic,timeout; size 1024; }",
        ),
        (
            Container("m", (A, PORT, N), (A, PORT), counter=True, protocol="sctp"),
            "map ip proxyd m { typeof ip daddr . sctp dport . numgen random mod 2 : ip daddr . sctp dport; counter; }",
        ),
    ],
)
def test_a_container(container: Container, declaration: str) -> None:
    assert text(containers=(container,)) == f"add {declaration}\n"


@pytest.mark.parametrize(
    ("container", "declaration"),
    [
        (Container("s", (A,)), "set ip proxyd s { typeof ip daddr; }"),
        (
            Container("m", (P, PORT), (), counter=True),
            "map ip proxyd m { typeof meta l4proto . th dport : verdict; counter; }",
        ),
        (Container("s", (A, PORT), protocol="tcp"), "set ip proxyd s { typeof ip daddr . tcp dport; }"),
        (
            Container("m", (PORT, N), (A, PORT), protocol="udp"),
            "map ip proxyd m { typeof udp dport . numgen random mod 2 : ip daddr . udp dport; }",
        ),
    ],
)
def test_a_container_by_expressions_only(container: Container, declaration: str) -> None:
    # What nft writes for a set whose key has only names of types, from 1.1.3 on, is what older ones crash at.
    assert script(Transaction(Family.IPV4, containers=(container,)), by_expressions=True) == f"add {declaration}\n"


def test_a_container_of_the_other_family() -> None:
    declared = Container("m", (A, PORT, N), (A, PORT), protocol="tcp")
    assert text(Family.IPV6, containers=(declared, Container("s", (A,)))) == (
        "add map ip6 proxyd m { typeof ip6 daddr . tcp dport . numgen random mod 2 : ip6 daddr . tcp dport; }\n"
        "add set ip6 proxyd s { type ipv6_addr; }\n"
    )


def test_all_chains_are_made_before_any_rule() -> None:
    first = Chain("a", ((Goto("b"),), (Drop(),)), comment="web")
    base = Chain("b", ((Jump("a"),),), Hook("filter", "prerouting", -110))
    assert text(chains=(first, base, Chain("c", ()))) == (
        'add chain ip proxyd a { comment "web"; }\n'
        "add chain ip proxyd b { type filter hook prerouting priority -110; policy accept; }\n"
        "add chain ip proxyd c\n"
        "flush chain ip proxyd a\n"
        "add rule ip proxyd a goto b\n"
        "add rule ip proxyd a drop\n"
        "flush chain ip proxyd b\n"
        "add rule ip proxyd b jump a\n"
        "flush chain ip proxyd c\n"
    )


@pytest.mark.parametrize(
    ("element", "added"),
    [
        (Element("s", "10.0.0.1"), "10.0.0.1"),
        (Element("s", "10.0.0.1", "", "web"), '10.0.0.1 comment "web"'),
        (Element("m", "10.0.0.1 . tcp . 80", "goto g1/a"), "10.0.0.1 . tcp . 80 : goto g1/a"),
        (Element("m", "tcp . 80", "drop", "shop/web:http"), 'tcp . 80 comment "shop/web:http" : drop'),
        (Element("m", "2001:db8::1 . 80 . 0", "fd00::1 . 8080"), "2001:db8::1 . 80 . 0 : fd00::1 . 8080"),
    ],
)
def test_an_element_is_added_whole_and_deleted_by_its_key(element: Element, added: str) -> None:
    assert text(add_elements=(element,)) == f"add element ip proxyd {element.container} {{ {added} }}\n"
    assert text(delete_elements=(element,)) == f"delete element ip proxyd {element.container} {{ {element.key} }}\n"


def test_elements_of_one_container_share_lines_of_200() -> None:
    lines = text(add_elements=tuple(Element("s", f"10.0.{i // 250}.{i % 250}") for i in range(450))).splitlines()
    assert [line.count(",") + 1 for line in lines] == [200, 200, 50]


def test_the_parts_come_in_the_order_of_the_fields() -> None:
    whole = text(
        table="layout 1",
        containers=(Container("s", (A,)),),
        counters=("dropped_pkts",),
        chains=(Chain("c", ()),),
        delete_elements=(Element("s", "10.0.0.1"),),
        add_elements=(Element("s", "10.0.0.2"),),
        delete_containers=(("old", True), ("older", False)),
        delete_chains=("gone",),
        delete_table=True,
    )
    assert whole.splitlines() == [
        'add table ip proxyd { comment "layout 1"; }',
        "add set ip proxyd s { type ipv4_addr; }",
        "add counter ip proxyd dropped_pkts",
        "add chain ip proxyd c",
        "flush chain ip proxyd c",
        "delete element ip proxyd s { 10.0.0.1 }",
        "add element ip proxyd s { 10.0.0.2 }",
        "delete map ip proxyd old",
        "delete set ip proxyd older",
        "delete chain ip proxyd gone",
        "delete table ip proxyd",
    ]


@pytest.mark.parametrize(
    ("name", "comment"),
    [
        ("shop/web:http", "shop/web:http"),
        ("a" * 200, "a" * 128),
        ("", ""),
        ('web"; flush ruleset; "', ""),
        ("web\nflush ruleset", ""),
        ("web\n", ""),
        ("ключ", ""),
        ("a b", ""),
        ("a\\", ""),
        ("$x", ""),
        ("{}", ""),
        ("a" * 127 + '"', ""),
        ("a" * 300 + '"', ""),
    ],
)
def test_hostile_names_are_left_out_of_comments(name: str, comment: str) -> None:
    assert comment_text(name) == comment


@given(st.text())
def test_whatever_a_name_is_its_comment_is_harmless_and_fits(name: str) -> None:
    comment = comment_text(name)
    assert re.fullmatch(r"[A-Za-z0-9./:_-]{0,128}", comment)
    assert name.startswith(comment)
