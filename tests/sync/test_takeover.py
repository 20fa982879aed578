"""When kube-proxy's rules are removed: after ours are in, in the background, again if they come back, not for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from structlog.testing import LogCapture

from proxyd.ipt.removal import Chain, Found, Jump
from proxyd.kernel.predecessor import PredecessorError, Rest
from proxyd.model import FAMILIES, Family
from proxyd.sync import takeover as module
from proxyd.sync.status import FamilyStatus, Status
from proxyd.sync.takeover import Takeover
from tests.program import until

RULES = Found((Jump("nat", "OUTPUT", "1"),), (Chain("nat", "KUBE-SERVICES"),))
# Looks are as near together as can be.
AT_ONCE = (0.01,)
FOUND, BACK = "rules of kube-proxy found, removing them", "rules of kube-proxy are back, removing them again"


class FakePredecessor:
    """Rules of kube-proxy in memory. ``fail`` is why nothing can be done just now."""

    def __init__(self, family: Family = Family.IPV4, found: Found | None = RULES) -> None:
        self.family = family
        self.place = f"memory, {family}"
        self.there = found
        self.looks = 0
        self.removals = 0
        self.fail = ""
        self.written_again = 0
        self.took = 0.0
        self.in_removal: Callable[[], object] = lambda: None

    def find(self) -> Found | None:
        self.looks += 1
        if self.written_again > 0 and self.there is None:
            self.written_again -= 1
            self.there = RULES
        return self.there

    def remove(self, found: Found, rest: Rest = lambda _: None) -> None:
        if self.fail:
            raise PredecessorError(self.fail)
        assert found == self.there
        self.in_removal()
        rest(self.took)
        self.removals += 1
        self.there = None


def written(*families: Family) -> Status:
    """A status in which the rules of these families are in the kernel."""
    return Status("nftables", tuple(FamilyStatus(each, 1.0 if each in families else None) for each in FAMILIES))


Start = Callable[..., Takeover]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Takeover] = []

    def begin(*predecessors: FakePredecessor, delays: tuple[float, ...] = AT_ONCE) -> Takeover:
        made = Takeover(predecessors, delays)
        made.start()
        started.append(made)
        return made

    yield begin
    for each in started:
        each.stop()


def events(log: LogCapture, name: str) -> list[dict[str, object]]:
    return [dict(entry) for entry in log.entries if entry["event"].startswith(name)]


def test_nothing_is_even_looked_at_before_our_rules_are_in(start: Start) -> None:
    four, six = FakePredecessor(Family.IPV4), FakePredecessor(Family.IPV6)
    taking = start(four, six)
    taking.update(written())
    taking.update(written(Family.IPV6))
    until(lambda: six.there is None, "removed")
    assert (four.looks, four.there) == (0, RULES)
    taking.update(written(*FAMILIES))
    until(lambda: four.there is None, "removed")


def test_the_thread_that_writes_rules_is_never_kept_waiting(start: Start) -> None:
    going_on = threading.Event()
    old = FakePredecessor()
    old.in_removal = lambda: going_on.wait(10)
    taking = start(old)
    taking.update(written(Family.IPV4))
    until(lambda: old.looks, "looked at")
    taking.update(written(Family.IPV4))
    assert old.removals == 0
    going_on.set()
    until(lambda: old.removals, "removed")


def test_what_was_found_and_removed_is_told(start: Start, log: LogCapture) -> None:
    kept = Found(RULES.jumps, RULES.chains, (Chain("nat", "KUBE-MARK-MASQ"),), forward_drops=True)
    old = FakePredecessor(found=kept)
    start(old).update(written(Family.IPV4))
    until(lambda: events(log, "rules of kube-proxy removed"), "told")
    (told,) = events(log, FOUND)
    assert (told["place"], told["jumps"], told["chains"]) == ("memory, IPv4", 1, 1)
    assert told["kept_because_others_use_them"] == "nat KUBE-MARK-MASQ"
    assert events(log, "the policy of FORWARD is DROP")[0]["log_level"] == "warning"


def test_rules_of_our_own_other_mode_are_not_called_kube_proxys(start: Start, log: LogCapture) -> None:
    old = FakePredecessor(found=Found(RULES.jumps, RULES.chains, own=True))
    start(old).update(written(Family.IPV4))
    until(lambda: events(log, "rules of proxyd's other mode removed"), "told")
    assert events(log, "rules of proxyd's other mode found, removing them")
    assert not [entry for entry in log.entries if "kube-proxy" in entry["event"]]


def test_where_nothing_is_nothing_is_said(start: Start, log: LogCapture) -> None:
    old = FakePredecessor(found=None)
    start(old).update(written(Family.IPV4))
    until(lambda: old.looks > 3, "looked at")
    assert not log.entries


def test_a_failure_is_tried_again_and_told_once(start: Start, log: LogCapture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRIES", (0.01, 0.01))
    old, other = FakePredecessor(), FakePredecessor(Family.IPV6)
    old.fail = "the lock is held"
    start(old, other).update(written(*FAMILIES))
    until(lambda: old.looks > 5, "tried again")
    assert other.there is None, "one place does not keep another"
    told = [each["error"] for each in events(log, "rules of kube-proxy not removed") if each["log_level"] == "warning"]
    assert told == ["the lock is held"]
    old.fail = ""
    until(lambda: old.there is None, "removed")
    assert not events(log, BACK), "what was never removed is not back"


def test_rules_that_come_back_are_told_loudly_and_removed_again(start: Start, log: LogCapture) -> None:
    old = FakePredecessor()
    old.written_again = 2
    start(old).update(written(Family.IPV4))
    until(lambda: old.removals == 3, "removed three times")
    until(lambda: len(events(log, "rules of kube-proxy removed")) == 3, "told")
    assert [each["removed_before"] for each in events(log, BACK)] == [1, 2]
    assert all(each["log_level"] == "warning" for each in events(log, BACK))


def test_there_is_no_fight_with_a_kube_proxy_that_runs(start: Start) -> None:
    old = FakePredecessor()
    old.written_again = 1000
    start(old, delays=(0.01, 0.01, 1000.0)).update(written(Family.IPV4))
    until(lambda: old.removals == 3, "removed three times")
    assert not _comes(lambda: old.removals > 3)
    assert old.looks == 3


def test_looks_become_ever_more_rare() -> None:
    assert list(module.DELAYS) == sorted(module.DELAYS)
    assert module.DELAYS[-1] >= 3600


def test_an_internal_error_does_not_end_the_thread(
    start: Start, log: LogCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRIES", (0.01,))
    old = FakePredecessor()
    faults = iter([ZeroDivisionError("a fault")])

    def fault() -> None:
        for each in faults:
            raise each

    old.in_removal = fault
    start(old).update(written(Family.IPV4))
    until(lambda: old.there is None, "removed")
    assert "a fault" in str(events(log, "rules of kube-proxy not removed")[0]["error"])


def test_it_can_be_ended_before_and_in_between() -> None:
    idle = Takeover([FakePredecessor()])
    idle.stop()
    waiting = Takeover([FakePredecessor()])
    waiting.start()
    waiting.stop()
    assert "takeover" not in {thread.name for thread in threading.enumerate()}


def test_a_long_removal_rests_in_between_and_ends_when_asked_to(start: Start, log: LogCapture) -> None:
    old = FakePredecessor()
    old.took = 1000.0
    taking = start(old)
    taking.update(written(Family.IPV4))
    until(lambda: events(log, FOUND), "found")
    taking.stop()
    assert "takeover" not in {thread.name for thread in threading.enumerate()}
    assert old.there == RULES


def _comes(condition: Callable[[], bool]) -> bool:
    try:
        until(condition, "", 0.2)
    except TimeoutError:
        return False
    return True
