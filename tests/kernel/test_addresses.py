"""The host's addresses and their changes: in memory and on the real kernel, as rules see them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from proxyd.desired.host import local_addresses
from proxyd.kernel import addresses as addresses_module
from proxyd.kernel.addresses import every_address, own_addresses
from proxyd.model import Family, HostState
from tests.fakes.host import FakeHost
from tests.kernel.hosts import RealHost
from tests.netns import why_not

V4, V6 = Family.IPV4, Family.IPV6
SOON = 20.0
EitherHost = FakeHost | RealHost


class Watched:
    """A host and what it tells."""

    def __init__(self, host: EitherHost) -> None:
        self.host = host
        self._changed = threading.Condition()
        self._state = HostState()
        self.times = 0

    def start(self) -> None:
        self._take(self.host.read())
        self.times = 0
        self.host.start(self._take)

    def _take(self, state: HostState) -> None:
        with self._changed:
            self._state = state
            self.times += 1
            self._changed.notify_all()

    @property
    def addresses(self) -> list[str]:
        """Those that count: IPv4 before IPv6, which have nothing to do with each other, else in their order."""
        return [address for _, address in sorted(local_addresses(self._state), key=lambda each: each[0])]

    def until(self, *addresses: str) -> None:
        """Waits until exactly these count, in this order."""
        self.wait_for(lambda: self.addresses == list(addresses))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, SOON), self._state


def _real() -> RealHost:
    if reason := why_not():
        pytest.skip(reason)
    return RealHost()


@pytest.fixture(params=["memory", pytest.param("kernel", marks=pytest.mark.kernel)])
def host(request: pytest.FixtureRequest) -> Iterator[EitherHost]:
    made: EitherHost = FakeHost() if request.param == "memory" else _real()
    yield made
    made.stop()


@pytest.fixture
def watched(host: EitherHost) -> Watched:
    made = Watched(host)
    made.start()
    return made


@pytest.fixture
def real() -> Iterator[Watched]:
    made = Watched(_real())
    made.start()
    yield made
    made.host.stop()


def test_an_address_comes_and_goes(watched: Watched) -> None:
    host = watched.host
    assert watched.addresses == []
    host.add(host.A, "10.0.0.1")
    watched.until("10.0.0.1")
    host.add(host.B, "2001:db8::1")
    watched.until("10.0.0.1", "2001:db8::1")
    host.delete(host.A, "10.0.0.1")
    watched.until("2001:db8::1")
    host.delete(host.B, "2001:db8::1")
    watched.until()


def test_an_address_that_moves_between_interfaces_is_there_as_long_as_one_has_it(watched: Watched) -> None:
    host = watched.host
    host.add(host.A, "10.0.0.1", "10.0.0.100")
    watched.until("10.0.0.1", "10.0.0.100")
    host.add(host.B, "10.0.0.100")
    host.delete(host.A, "10.0.0.1")
    watched.until("10.0.0.100")
    host.delete(host.A, "10.0.0.100")
    host.add(host.A, "10.0.0.2")
    watched.until("10.0.0.2", "10.0.0.100")
    host.delete(host.B, "10.0.0.100")
    watched.until("10.0.0.2")


@pytest.mark.parametrize(
    ("family", "one", "other"), [(V4, "10.0.0.1", "10.0.1.1"), (V6, "2001:db8::1", "2001:db8:1::1")]
)
def test_the_interface_of_the_default_route_comes_first(watched: Watched, family: Family, one: str, other: str) -> None:
    host = watched.host
    host.add(host.A, one)
    host.add(host.B, other)
    watched.until(one, other)
    host.default(host.B, family)
    watched.until(other, one)
    host.default(host.A, family)
    watched.until(one, other)


def test_loopback_and_link_local_addresses_do_not_count_but_what_else_the_loopback_has_does(watched: Watched) -> None:
    host = watched.host
    host.add(host.LOOPBACK, "127.0.0.2", scope="host")
    host.add(host.A, "fe80::1", scope="link")
    host.add(host.LOOPBACK, "192.0.2.1", "2001:db8::1")
    host.add(host.A, "169.254.20.10", scope="link")
    watched.until("192.0.2.1", "169.254.20.10", "2001:db8::1")


def test_an_interface_that_is_down_answers_nobody(watched: Watched) -> None:
    host = watched.host
    host.add(host.A, "10.0.0.1", "2001:db8::1")
    host.add(host.B, "10.0.0.2")
    watched.until("10.0.0.1", "10.0.0.2", "2001:db8::1")
    host.down(host.A)
    watched.until("10.0.0.2")
    host.up(host.A)
    watched.until("10.0.0.1", "10.0.0.2")


def test_an_interface_that_goes_takes_its_addresses_along(watched: Watched) -> None:
    host = watched.host
    host.add(host.A, "10.0.0.1", "2001:db8::1")
    host.add(host.LOOPBACK, "192.0.2.1")
    watched.until("192.0.2.1", "10.0.0.1", "2001:db8::1")
    host.remove(host.A)
    watched.until("192.0.2.1")


def test_ipv6_goes_and_comes_back(watched: Watched) -> None:
    host = watched.host
    host.add(host.A, "10.0.0.1", "2001:db8::1")
    watched.until("10.0.0.1", "2001:db8::1")
    host.switch_ipv6(on=False)
    watched.until("10.0.0.1")
    host.switch_ipv6(on=True)
    host.add(host.A, "2001:db8::2")
    watched.until("10.0.0.1", "2001:db8::2")


def test_hundreds_of_addresses_come_and_go(watched: Watched) -> None:
    host = watched.host
    many = [f"10.1.{n // 200}.{n % 200 + 1}" for n in range(600)]
    host.add(host.A, "10.0.0.1", *many)
    watched.until("10.0.0.1", *many)
    host.delete(host.A, *many[1:])
    watched.until("10.0.0.1", many[0])


def test_what_happens_before_the_start_is_told(host: EitherHost) -> None:
    watched = Watched(host)
    host.add(host.A, "10.0.0.1")
    watched.start()
    host.add(host.B, "10.0.0.2")
    watched.until("10.0.0.1", "10.0.0.2")


# Only the real kernel


@pytest.mark.kernel
def test_notifications_that_were_lost_are_made_up_for() -> None:
    host = _real()
    # Far more than a socket holds while nobody reads it.
    lines = [f"address add 10.{n // 200}.{n % 200}.1 dev a" for n in range(3000)]
    host.ip(*lines, *(line.replace(" add ", " delete ") for line in lines[1:]))
    watched = Watched(host)
    host.start(watched._take)
    try:
        watched.until("10.0.0.1")
        host.add(host.A, "10.200.0.1")
        watched.until("10.0.0.1", "10.200.0.1")
    finally:
        host.stop()


@pytest.mark.kernel
def test_a_failure_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses_module, "_RETRY", 0.01)
    host = _real()
    watched = Watched(host)
    failures = iter([OSError("the kernel is too busy"), ValueError("a fault of ours")])

    def fails_at_first(state: HostState) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure
        watched._take(state)

    host.start(fails_at_first)
    try:
        host.add(host.A, "10.0.0.1")
        watched.until("10.0.0.1")
        host.add(host.A, "10.0.0.2")
        watched.until("10.0.0.1", "10.0.0.2")
    finally:
        host.stop()


def test_links_and_routes_of_pods_are_no_news(real: Watched) -> None:
    assert isinstance(real.host, RealHost)
    real.host.add(real.host.A, "10.0.0.1")
    real.until("10.0.0.1")
    before = real.times
    for n in range(20):
        real.host.ip(f"link add p{n} type veth peer name q{n}", f"route add 10.9.{n}.0/24 dev a", f"link delete p{n}")
    real.host.add(real.host.A, "10.0.0.2")
    real.until("10.0.0.1", "10.0.0.2")
    assert real.times - before <= 3


@pytest.mark.kernel
def test_an_address_that_may_be_somebody_elses_counts_once_it_is_ours(real: Watched) -> None:
    host = real.host
    assert isinstance(host, RealHost)
    host.ip("link add c type veth peer name d", "link set dev c up")
    host._set("net/ipv6/conf/c/accept_dad", "1")
    host.ip("address add 2001:db8::1 dev c")
    real.wait_for(lambda: any(each.address == "2001:db8::1" and not each.usable for each in real._state.addresses))
    assert real.addresses == []
    host.ip("link set dev d up")
    real.until("2001:db8::1")


@pytest.mark.kernel
@pytest.mark.parametrize("lines", [(1, 2), (2, 1)])
def test_a_deprecated_address_is_answered_but_stands_for_nothing_while_there_is_another(
    real: Watched, lines: tuple[int, ...]
) -> None:
    host = real.host
    assert isinstance(host, RealHost)
    words = {1: "address add 2001:db8::1 dev a preferred_lft 0", 2: "address add 2001:db8::2 dev a"}
    host.ip(*(words[each] for each in lines))
    real.until("2001:db8::2", "2001:db8::1")


@pytest.mark.kernel
def test_of_a_point_to_point_link_our_end_counts(real: Watched) -> None:
    host = real.host
    assert isinstance(host, RealHost)
    host.ip("address add 10.0.0.1 peer 10.0.0.2 dev a")
    real.until("10.0.0.1")


@pytest.mark.kernel
def test_the_better_of_two_default_routes_and_the_first_of_several_paths_decide(real: Watched) -> None:
    host = real.host
    assert isinstance(host, RealHost)
    host.add(host.A, "10.0.0.1/24")
    host.add(host.B, "10.0.1.1/24")
    host.ip("route add default dev a metric 200", "route add default dev b metric 100")
    real.until("10.0.1.1", "10.0.0.1")
    host.ip("route delete default dev b metric 100")
    real.until("10.0.0.1", "10.0.1.1")
    host.ip("route delete default dev a metric 200", "route add default nexthop dev b nexthop dev b weight 2")
    real.until("10.0.1.1", "10.0.0.1")


@pytest.mark.kernel
def test_own_addresses_are_those_that_packets_are_taken_at() -> None:
    host = _real()
    host.add(host.A, "10.0.0.1", "2001:db8::1")
    host.add(host.B, "10.0.1.1")
    try:
        own = {family: host._thread.submit(own_addresses, family).result() for family in (V4, V6)}
        assert {"10.0.0.1", "10.0.1.1"} <= own[V4]
        assert "2001:db8::1" in own[V6]
        host.down(host.B)
        assert "10.0.1.1" not in host._thread.submit(own_addresses, V4).result()
    finally:
        host.stop()


@pytest.mark.kernel
def test_really_every_address() -> None:
    host = _real()
    host.add(host.A, "10.0.0.1", "2001:db8::1")
    try:
        assert host._thread.submit(every_address, V4).result() == ("127.0.0.1", "10.0.0.1")
        assert set(host._thread.submit(every_address, V6).result()) == {"::1", "2001:db8::1"}
    finally:
        host.stop()
