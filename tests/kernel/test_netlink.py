"""How netlink's messages and attributes are put together and cut, and what is made of the kernel's answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from proxyd.kernel import netlink
from proxyd.kernel.netlink import Netlink
from proxyd.kernel.nft import nfnetlink
from proxyd.model import Family
from tests.netns import RealRuleset, why_not

MANY = 2000
SUBSYSTEM_WITHOUT_MESSAGES = 0xFF00


class Namespace:
    """A namespace with two thousand chains, and a socket in it."""

    def __init__(self) -> None:
        self.sockets: list[Netlink] = []
        self.ruleset = RealRuleset(also=lambda _: self.sockets.append(Netlink(netlink.NETFILTER)))
        self.asking = self.sockets[0]
        self.ruleset.other("add table ip t\n" + "\n".join(f"add chain ip t c{n}" for n in range(MANY)))

    def close(self) -> None:
        self.asking.close()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if reason := why_not():
        pytest.skip(reason)
    made = Namespace()
    yield made
    made.close()


def name(chain: bytes) -> str:
    return netlink.text(netlink.attributes(chain, nfnetlink.START)[3])


def test_what_is_put_together_is_cut_into_the_same() -> None:
    inside = netlink.attribute(1, b"a") + netlink.attribute(2, b"four")
    body = b"\2\0\0\0" + netlink.nested(3, inside) + netlink.attribute(4, b"")
    first, second = netlink.request(7, 0, body, 5), netlink.request(8, netlink.DUMP, b"")
    assert list(netlink.messages(first + second)) == [
        (7, netlink.REQUEST, 5, 0, body),
        (8, netlink.REQUEST | netlink.DUMP, 0, 0, b""),
    ]
    assert netlink.attributes(body, 4) == {3: inside, 4: b""}
    assert list(netlink.walk(inside)) == [(1, b"a"), (2, b"four")]


@pytest.mark.parametrize("length", range(16))
def test_a_length_that_cannot_be_ends_the_reading(length: int) -> None:
    message = netlink.request(7, 0, b"")
    assert len(list(netlink.messages(message + struct.pack("=IHHII", length, 7, 0, 0, 0)))) == 1
    if length < 4:
        assert netlink.attributes(netlink.attribute(1, b"a") + struct.pack("=HHI", length, 2, 0)) == {1: b"a"}


def test_what_is_cut_off_is_no_message() -> None:
    message = netlink.request(7, 0, b"body")
    assert len(list(netlink.messages(message + message[:15]))) == 1
    assert netlink.attributes(netlink.attribute(1, b"abcd") + b"\0\0\0") == {1: b"abcd"}


@pytest.mark.kernel
def test_a_list_has_everything_once(namespace: Namespace) -> None:
    found = namespace.asking.list(nfnetlink.GET_CHAIN, nfnetlink.about(0))
    assert namespace.asking.whole
    assert sorted(map(name, found)) == sorted(f"c{n}" for n in range(MANY))


@pytest.mark.kernel
def test_a_list_that_changes_while_it_is_read_is_not_whole_and_the_next_one_is(namespace: Namespace) -> None:
    answers = namespace.asking.ask(nfnetlink.GET_CHAIN, nfnetlink.about(0), dump=True)
    next(answers)
    namespace.ruleset.other("delete chain ip t c0")
    for _ in answers:
        pass
    assert not namespace.asking.whole
    assert len(namespace.asking.list(nfnetlink.GET_CHAIN, nfnetlink.about(0))) == MANY - 1
    assert namespace.asking.whole


@pytest.mark.kernel
def test_a_list_that_changes_every_time_is_read_a_few_times_and_said_not_to_be_whole(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    ask = Netlink.ask

    def disturbed(self: Netlink, kind: int, body: bytes, *, dump: bool = False) -> Iterator[bytes]:
        reads.append(kind)
        for number, answer in enumerate(ask(self, kind, body, dump=dump)):
            if number == 0:
                namespace.ruleset.other(f"add chain ip t more{len(reads)}")
            yield answer

    monkeypatch.setattr(Netlink, "ask", disturbed)
    found = namespace.asking.list(nfnetlink.GET_CHAIN, nfnetlink.about(0), attempts=3)
    assert (len(reads), namespace.asking.whole) == (3, False)
    assert len(found) >= MANY


@pytest.mark.kernel
def test_answers_that_nobody_wanted_to_the_end_are_not_taken_for_later_ones(namespace: Namespace) -> None:
    def table(name: str) -> Iterator[bytes]:
        return namespace.asking.ask(nfnetlink.GET_TABLE, nfnetlink.about(2, name))

    next(table("t"))
    with pytest.raises(FileNotFoundError):
        next(table("absent"))
    (only,) = table("t")
    assert netlink.text(netlink.attributes(only, nfnetlink.START)[1]) == "t"


@pytest.mark.kernel
def test_what_the_kernel_refuses_is_raised_with_its_number(namespace: Namespace) -> None:
    with pytest.raises(FileNotFoundError):
        list(namespace.asking.ask(nfnetlink.GET_SET, nfnetlink.about(2, "absent"), dump=True))
    with pytest.raises(OSError, match="Invalid argument"):
        list(namespace.asking.ask(SUBSYSTEM_WITHOUT_MESSAGES, nfnetlink.about(0)))
    assert namespace.ruleset.contents(Family.IPV4).chains == frozenset()
