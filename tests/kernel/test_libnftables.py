"""What only the real ruleset can get wrong: the library's socket, names of any kind of object, a list that changes."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from typing import Any

import nftables
import pytest

from proxyd.kernel.netlink import NETFILTER, Netlink
from proxyd.kernel.nft.libnftables import LibNftables
from proxyd.kernel.nft.ruleset import Contents
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import FAMILIES, Family
from proxyd.nft.layout import TABLE
from proxyd.nft.script import FAMILY_WORD
from tests.netns import RealRuleset

pytestmark = pytest.mark.kernel
V4, V6 = FAMILIES


def made_table(real: RealRuleset, family: Family = V4) -> str:
    """Has our table made, with a chain and a set; gives its name as nft writes it."""
    table = f"{FAMILY_WORD[family]} {TABLE}"
    real.other(f"add table {table}\nadd chain {table} ours\nadd set {table} known {{ type inet_service ; }}")
    return table


def test_the_librarys_socket_is_found_although_it_took_the_number_of_one_that_was_closed(
    real: RealRuleset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a context is collected while another one is made."""
    library = nftables.Nftables
    gc.collect()
    old = [socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER) for _ in range(3)]
    numbers = [each.fileno() for each in old]
    ports = []

    class CollectsOthers(library):  # type: ignore[valid-type, misc]
        def __init__(self, *args: Any) -> None:
            for each in old:
                each.close()
            before = {int(each) for each in os.listdir("/proc/self/fd")}
            super().__init__(*args)
            new = {int(each) for each in os.listdir("/proc/self/fd")} - before
            assert new & set(numbers), "the case is not the one that is meant"

    def make(_: RealRuleset) -> None:
        monkeypatch.setattr(nftables, "Nftables", CollectsOthers)
        ports.append(LibNftables().port)

    RealRuleset(also=make)
    assert ports[0] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_those_of_our_table_only(real: RealRuleset, family: Family) -> None:
    made_table(real, family)
    others = [f"{FAMILY_WORD[family]} {TABLE}-too", f"inet {TABLE}", f"{FAMILY_WORD[family]} kube-proxy"]
    for table in others:
        real.other(f"add table {table}\nadd chain {table} {TABLE}\nadd set {table} {TABLE} {{ type inet_service ; }}")
    assert real.contents(family) == Contents(frozenset({"ours"}), {"known": False})
    assert real.contents(V6 if family is V4 else V4) == Contents()


def test_sets_of_rules_have_no_name_and_maps_of_any_kind_are_maps(real: RealRuleset) -> None:
    table = made_table(real)
    real.other(
        f"add rule {table} ours ip daddr {{ 192.0.2.1, 192.0.2.9 }} accept\n"
        f"add rule {table} ours tcp dport vmap {{ 80 : accept, 81 : drop }}\n"
        f"add map {table} verdicts {{ type inet_service : verdict ; }}\n"
        f"add map {table} counts {{ type inet_service : counter ; }}\n"
        f"add set {table} seen {{ type ipv4_addr ; flags dynamic, timeout ; }}"
    )
    expected = {"known": False, "verdicts": True, "counts": True, "seen": False}
    assert real.contents(V4) == Contents(frozenset({"ours"}), expected)


def disturb(monkeypatch: pytest.MonkeyPatch, real: RealRuleset, times: int) -> None:
    """Has somebody change nftables during so many lists, which are read in several parts."""
    left = [times]
    ask = Netlink.ask

    def disturbed(self: Netlink, kind: int, body: bytes, *, dump: bool = False) -> Iterator[bytes]:
        for number, answer in enumerate(ask(self, kind, body, dump=dump)):
            if number == 0 and left[0]:
                left[0] -= 1
                real.other(f"add table ip other{left[0]}")
            yield answer

    real.other("add table ip foreign\n" + "\n".join(f"add chain ip foreign c{n}" for n in range(2000)))
    monkeypatch.setattr(Netlink, "ask", disturbed)


def test_a_list_that_changes_meanwhile_is_read_again(real: RealRuleset, monkeypatch: pytest.MonkeyPatch) -> None:
    made_table(real)
    disturb(monkeypatch, real, 8)
    assert real.contents(V4) == Contents(frozenset({"ours"}), {"known": False})


def test_a_list_that_never_comes_whole_is_refused(real: RealRuleset, monkeypatch: pytest.MonkeyPatch) -> None:
    made_table(real)
    disturb(monkeypatch, real, 1000)
    with pytest.raises(KernelRefusedError, match="changes faster than"):
        real.contents(V4)


def test_a_kernel_that_cannot_be_asked_is_a_refusal(real: RealRuleset, monkeypatch: pytest.MonkeyPatch) -> None:
    made_table(real)
    real.library._names.close()
    with pytest.raises(KernelRefusedError, match="Bad file descriptor"):
        real.contents(V4)


@pytest.mark.parametrize(
    "words", ["add element {} known {{ 80 }}\ndelete element {} known {{ 81 }}", "add {} nonsense"]
)
def test_an_answer_is_a_refusal_with_nothing_done(real: RealRuleset, words: str) -> None:
    table = made_table(real)
    with pytest.raises(KernelRefusedError) as refused:
        real.library.run(words.format(table, table))
    assert not isinstance(refused.value, OutcomeUnclearError)
    assert real.elements(V4) == {"known": {}}


def test_trouble_with_the_socket_leaves_the_outcome_open(real: RealRuleset) -> None:
    table = made_table(real)
    number = real.library._descriptor
    kept = os.dup(number)
    other = os.open(os.devnull, os.O_RDWR)
    os.dup2(other, number)
    try:
        with pytest.raises(OutcomeUnclearError, match="Socket operation on non-socket"):
            real.library.run(f"add table {table}")
        with pytest.raises(KernelRefusedError, match="cache initialization failed") as before:
            real.library.run(f"add element {table} known {{ 80 }}")
    finally:
        os.dup2(kept, number)
        os.close(kept)
        os.close(other)
    assert not isinstance(before.value, OutcomeUnclearError)
