"""What the tools print, compared with what is wanted: as text, and where that differs without regard to the order."""

from __future__ import annotations

import pytest

from proxyd.ipt.objects import Chain, ChainName, Recent, Rule, Table
from proxyd.ipt.saved import is_chain, printed, read, unordered
from proxyd.kernel.ipt.recording import RecordingRules
from proxyd.model import Family

V4 = Family.IPV4
RULES = (
    Rule("KUBE-MARK-MASQ", "a/b:http", source="10.0.0.1/32"),
    Rule("DNAT", "a/b:http", protocol="tcp", recent=Recent("KUBE-SEP-A"), to="10.0.0.1:80"),
)
CHAIN = Chain(Table.NAT, "KUBE-SEP-A", RULES)
TEXT = "".join(f"{printed(each, V4)}\n" for each in RULES)


def test_a_saved_table_is_read_chain_by_chain() -> None:
    lines = ["*nat\n", ":OUTPUT ACCEPT [0:0]\n", ":ONE - [0:0]\n", ":TWO - [0:0]\n", ":NONE - [0:0]\n"]
    lines += [
        "-A OUTPUT -j ONE\n",
        "-A ONE -s 10.0.0.1/32 -j TWO\n",
        "-A ONE -j RETURN\n",
        "-A TWO -j DROP\n",
        "COMMIT\n",
    ]
    lines += ["*filter\n", ":TWO - [0:0]\n", "-A TWO -j ACCEPT\n", "COMMIT\n"]
    assert read(lines).chains == {
        ChainName(Table.NAT, "ONE"): "-s 10.0.0.1/32 -j TWO\n-j RETURN\n",
        ChainName(Table.NAT, "TWO"): "-j DROP\n",
        ChainName(Table.NAT, "NONE"): "",
        ChainName(Table.FILTER, "TWO"): "-j ACCEPT\n",
    }


def test_a_rule_without_match_and_target_is_read() -> None:
    lines = ["*filter\n", ":INPUT ACCEPT [0:0]\n", ":TEAM - [0:0]\n", "-A INPUT\n", "-A TEAM -j DROP\n", "-A TEAM\n"]
    team = ChainName(Table.FILTER, "TEAM")
    for ends in (lines, [line.strip() for line in lines]):
        found = read(ends)
        assert found.chains == {team: "-j DROP\n\n"}
        assert found.rules(team) == ("-j DROP", "")


@pytest.mark.parametrize("end", ["\r", "\x0b", "\x85", "\u2028"])
def test_what_else_may_end_lines_ends_no_rule(end: str) -> None:
    rule = f'-m comment --comment "a{end}-j DROP" -j ACCEPT'
    found = read(["*nat\n", ":TEAM - [0:0]\n", f"-A TEAM {rule}\n", "-A TEAM -j DROP\n"])
    assert found.rules(ChainName(Table.NAT, "TEAM")) == (rule, "-j DROP")
    assert RecordingRules(V4, 1, found).contents() == found


def test_a_chain_of_a_rule_without_match_and_target_is_found() -> None:
    assert is_chain("\n", Chain(Table.NAT, "KUBE-FW-A", (Rule(),)), V4)
    assert not is_chain("", Chain(Table.NAT, "KUBE-FW-A", (Rule(),)), V4)


def test_a_chain_is_found_as_it_is_printed() -> None:
    assert is_chain(TEXT, CHAIN, V4)


@pytest.mark.parametrize(
    ("this", "that"),
    [("10.0.0.1/32", "10.0.0.2/32"), ("-s 10", "! -s 10"), ("KUBE-MARK-MASQ", "RETURN"), (TEXT, TEXT * 2), (TEXT, "")],
)
def test_a_chain_with_any_other_rule_is_another(this: str, that: str) -> None:
    assert not is_chain(TEXT.replace(this, that), CHAIN, V4)


def test_tools_that_print_options_in_another_order_are_understood() -> None:
    comment = '-m comment --comment "a/b:http"'
    other = TEXT.replace(f"-p tcp {comment}", f"{comment} -p tcp")
    assert other != TEXT
    assert is_chain(other, CHAIN, V4)


def test_the_order_of_rules_matters() -> None:
    assert not is_chain("".join(reversed(TEXT.splitlines(keepends=True))), CHAIN, V4)


def test_what_is_negated_is_another_option() -> None:
    assert unordered("! -s 10.0.0.0/8 -d 10.0.0.1/32") != unordered("-s 10.0.0.0/8 ! -d 10.0.0.1/32")
