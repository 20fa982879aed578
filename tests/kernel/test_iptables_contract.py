"""What is relied on of iptables, tried on the in-memory one and on the tools of both backends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from proxyd.kernel.ipt.iptables import (
    Backend,
    Iptables,
    IptablesKilledError,
    IptablesRefusedError,
    IptablesTools,
    IptablesUnavailableError,
)
from proxyd.kernel.ipt.rules import ToolRules
from proxyd.kernel.refused import OutcomeUnclearError
from proxyd.model import Family
from tests.fakes.iptables import FakeIptables
from tests.netns import leave, why_not

T = TypeVar("T")
MASQ = ":KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n"
JUMP = '-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES\n'
PORTALS = f"*nat\n:KUBE-SERVICES - [0:0]\n{MASQ}{JUMP}-A KUBE-SERVICES -s 192.0.2.1/32 -j KUBE-MARK-MASQ\nCOMMIT\n"


class Inside:
    """An ``Iptables`` whose calls are made in a namespace of its own."""

    def __init__(self, made: Iptables) -> None:
        self._thread = ThreadPoolExecutor(1, "namespace", leave)
        self._made = made

    def call(self, what: Callable[..., T], *arguments: Any) -> T:
        return self._thread.submit(what, *arguments).result()

    def tables(self) -> tuple[str, ...]:
        return self.call(self._made.tables)

    def save(self, table: str) -> Iterator[str]:
        return iter(self.call(lambda: list(self._made.save(table))))

    def restore(self, text: str) -> None:
        self.call(self._made.restore, text)

    def close(self) -> None:
        self._thread.shutdown()


@pytest.fixture(params=["memory", *(f"{backend}-{family}" for backend in Backend for family in Family)])
def iptables(request: pytest.FixtureRequest) -> Iterator[Iptables]:
    if request.param == "memory":
        yield FakeIptables()
        return
    if reason := why_not():
        pytest.skip(reason)
    backend, family = request.param.split("-")
    made = Inside(IptablesTools(Family(family), Backend(backend)))
    yield made
    made.close()


def rules(iptables: Iptables, table: str = "nat") -> list[str]:
    return [line for line in iptables.save(table) if line.startswith("-A")]


def chains(iptables: Iptables, table: str = "nat") -> set[str]:
    return {line[1:].split()[0] for line in iptables.save(table) if line.startswith(":KUBE")}


@pytest.fixture
def portals(iptables: Iptables, request: pytest.FixtureRequest) -> Iptables:
    text = PORTALS.replace("192.0.2.1/32", "2001:db8::1/128") if "IPv6" in request.node.name else PORTALS
    iptables.restore(text)
    return iptables


def test_what_is_restored_is_saved_and_nothing_else_is_touched(portals: Iptables) -> None:
    assert JUMP in rules(portals)
    portals.restore("*nat\n:KUBE-NODEPORTS - [0:0]\n-A KUBE-NODEPORTS -j KUBE-MARK-MASQ\nCOMMIT\n")
    assert chains(portals) == {"KUBE-SERVICES", "KUBE-MARK-MASQ", "KUBE-NODEPORTS"}
    assert len(rules(portals)) == 4


def test_a_rule_is_deleted_by_the_words_in_which_it_was_saved(portals: Iptables) -> None:
    portals.restore(f"*nat\n{JUMP.replace('-A', '-D')}COMMIT\n")
    assert JUMP not in rules(portals)
    with pytest.raises(IptablesRefusedError):
        portals.restore(f"*nat\n{JUMP.replace('-A', '-D')}COMMIT\n")


def test_a_chain_that_is_named_is_emptied_and_one_that_nobody_uses_can_be_deleted(portals: Iptables) -> None:
    portals.restore("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-MARK-MASQ - [0:0]\n-X KUBE-MARK-MASQ\nCOMMIT\n")
    assert chains(portals) == {"KUBE-SERVICES"}
    assert rules(portals) == [JUMP]


# A letter of Latin-1; a carriage return before what looks like a rule.
@pytest.mark.parametrize("comment", ["caf\udce9", "a\r-A OUTPUT -j ACCEPT"])
def test_a_comment_that_is_no_text_is_given_back_as_it_is(iptables: Iptables, comment: str) -> None:
    rule = f'INPUT -m comment --comment "{comment}" -j ACCEPT\n'
    iptables.restore(f"*filter\n-A {rule}COMMIT\n")
    assert rules(iptables, "filter") == [f"-A {rule}"]
    iptables.restore(f"*filter\n-D {rule}COMMIT\n")
    assert rules(iptables, "filter") == []


def test_a_rule_without_match_and_target_is_saved_as_its_chain_alone(iptables: Iptables) -> None:
    iptables.restore("*filter\n-A INPUT\nCOMMIT\n")
    assert rules(iptables, "filter") == ["-A INPUT\n"]


@pytest.mark.parametrize("line", ["-X KUBE-SERVICES", "-X KUBE-NOBODY", "-A KUBE-SERVICES -j KUBE-NOBODY"])
def test_a_table_is_changed_whole_or_not_at_all(portals: Iptables, line: str) -> None:
    before = rules(portals)
    with pytest.raises(IptablesRefusedError):
        portals.restore(f"*nat\n:KUBE-NEW - [0:0]\n{JUMP.replace('-A', '-D')}{line}\nCOMMIT\n")
    assert rules(portals) == before
    assert "KUBE-NEW" not in chains(portals)


def test_a_table_is_there_once_it_is_used(iptables: Iptables) -> None:
    assert iptables.tables() == ()
    iptables.restore("*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n")
    assert iptables.tables() == ("mangle",)


@pytest.mark.kernel
def test_missing_tools_are_named_and_matter_only_where_there_are_tables(tmp_path: Path) -> None:
    there = Inside(IptablesTools(Family.IPV4, Backend.LEGACY))
    missing = IptablesTools(Family.IPV4, Backend.LEGACY, str(tmp_path))
    try:
        assert there.call(missing.tables) == ()
        there.restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
        assert there.call(missing.tables) == ("nat",)
        with pytest.raises(IptablesUnavailableError, match="iptables-legacy-save is not there"):
            there.call(missing.save, "nat")
    finally:
        there.close()


@pytest.mark.kernel
def test_the_plain_name_is_taken_where_it_is_of_the_backend(tmp_path: Path) -> None:
    os.symlink("/usr/sbin/xtables-nft-multi", tmp_path / "ip6tables-save")
    nft = Inside(IptablesTools(Family.IPV6, Backend.NFT, str(tmp_path)))
    try:
        assert nft.tables() == ()
    finally:
        nft.close()
    with pytest.raises(IptablesUnavailableError):
        IptablesTools(Family.IPV6, Backend.LEGACY, str(tmp_path)).save("nat")


def test_a_tool_that_is_killed_leaves_open_what_it_has_written(tmp_path: Path) -> None:
    tool = tmp_path / "iptables-nft-restore"
    tool.write_text("#!/bin/sh\ncat > /dev/null\nkill -9 $$\n")
    tool.chmod(0o755)
    killed = IptablesTools(Family.IPV4, Backend.NFT, f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(IptablesKilledError, match="iptables-nft-restore: ended by signal 9"):
        killed.restore(PORTALS)
    with pytest.raises(OutcomeUnclearError):
        ToolRules(killed).commit(())


@pytest.mark.kernel
def test_a_lock_that_somebody_holds_is_a_refusal_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    monkeypatch.setenv("XTABLES_LOCKFILE", str(lock))
    legacy = Inside(IptablesTools(Family.IPV4, Backend.LEGACY, lock_wait=1))
    try:
        with lock.open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(IptablesRefusedError, match="xtables lock"):
                legacy.restore(PORTALS)
        legacy.restore(PORTALS)
    finally:
        legacy.close()
