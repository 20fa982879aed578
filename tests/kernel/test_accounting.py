"""Named counters of the kernel: what is relied on, in memory and on the real one; and which of them rules may use."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from proxyd.kernel.ipt.accounting import TRIAL, Accounting, NetlinkAccounting, usable
from proxyd.kernel.ipt.iptables import Backend, IptablesTools
from proxyd.model import Family
from tests.fakes.accounting import NAME_LENGTH, FakeAccounting
from tests.fakes.iptables import FakeIptables
from tests.netns import leave, why_not

T = TypeVar("T")
NAMES = ("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts")


class Namespace:
    """A namespace with its counters; calls are made in it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "namespace", leave)
        self.accounting = self.call(NetlinkAccounting)

    def call(self, what: Callable[..., T], *arguments: Any) -> T:
        return self._thread.submit(what, *arguments).result()

    def close(self) -> None:
        self.accounting.close()
        self._thread.shutdown()


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    if reason := why_not():
        pytest.skip(reason)
    made = Namespace()
    yield made
    made.close()


@pytest.fixture(params=["memory", pytest.param("kernel", marks=pytest.mark.kernel)])
def accounting(request: pytest.FixtureRequest) -> Accounting:
    if request.param == "memory":
        return FakeAccounting()
    made: Namespace = request.getfixturevalue("namespace")
    try:
        made.accounting.ensure("probe")
    except OSError as error:
        pytest.skip(f"this kernel has no nfacct: {error}")
    return made.accounting


def test_a_counter_is_made_once_and_counts_from_0(accounting: Accounting) -> None:
    assert accounting.packets(NAMES[0]) is None
    for _ in range(2):
        accounting.ensure(NAMES[0])
        assert accounting.packets(NAMES[0]) == 0
    assert accounting.packets(NAMES[1]) is None


def test_a_name_that_cannot_be_is_refused(accounting: Accounting) -> None:
    accounting.ensure("n" * NAME_LENGTH)
    with pytest.raises(OSError, match="Invalid argument"):
        accounting.ensure("n" * (NAME_LENGTH + 1))


@pytest.mark.kernel
@pytest.mark.parametrize("backend", Backend)
def test_a_rule_that_may_use_a_counter_counts_with_it(namespace: Namespace, backend: Backend) -> None:
    tools = IptablesTools(Family.IPV4, backend)
    counters, why_none = namespace.call(usable, namespace.accounting, NAMES, [tools])
    if not counters:
        pytest.skip(f"this kernel has no nfacct: {why_none}")
    assert TRIAL not in "".join(namespace.call(lambda: list(tools.save("filter"))))
    rule = f"-A OUTPUT -p udp -m nfacct --nfacct-name {NAMES[1]} -j DROP"
    namespace.call(tools.restore, f"*filter\n{rule}\nCOMMIT\n")

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, pytest.raises(PermissionError):
            sender.sendto(b"x", ("127.0.0.1", 9))

    namespace.call(lambda: subprocess.run(["ip", "link", "set", "lo", "up"], check=True))
    namespace.call(send)
    assert namespace.accounting.packets(NAMES[1]) == 1
    assert namespace.accounting.packets(NAMES[0]) == 0


@pytest.mark.kernel
@pytest.mark.parametrize("backend", Backend)
def test_a_counter_that_is_not_there_after_all_is_found_out_by_the_trial(
    namespace: Namespace, backend: Backend
) -> None:
    tools = IptablesTools(Family.IPV4, backend)
    counters, why_none = namespace.call(usable, FakeAccounting(), NAMES, [tools])
    assert not counters
    assert f"iptables-{backend}-restore" in why_none
    assert TRIAL not in "".join(namespace.call(lambda: list(tools.save("filter"))))


def test_all_may_be_used_where_the_kernel_has_both_parts() -> None:
    accounting = FakeAccounting()
    tools = FakeIptables(accounting.counted)
    assert usable(accounting, NAMES, [tools]) == (frozenset(NAMES), "")
    assert TRIAL not in "".join(tools.save("filter"))


def test_none_may_be_used_where_the_kernel_keeps_no_counters() -> None:
    tools = FakeIptables(NAMES)
    counters, why_none = usable(FakeAccounting(missing=True), NAMES, [tools])
    assert (counters, why_none) == (frozenset(), "counters: Invalid argument")
    assert not tools.restored


def test_none_may_be_used_where_rules_cannot_count_with_them_in_one_family() -> None:
    accounting = FakeAccounting()
    counters, why_none = usable(accounting, NAMES, [FakeIptables(accounting.counted), FakeIptables(None)])
    assert not counters
    assert why_none.startswith("no match")
