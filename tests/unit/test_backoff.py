"""Delays between tries: how they grow, when they start anew, and what the server may ask for."""

import pytest

from proxyd.kube.backoff import CAP_SECONDS, FLOOR_LIMIT_SECONDS, HEALTHY_SECONDS, Backoff


def without_jitter() -> Backoff:
    return Backoff(lambda: 0.0)


def test_doubles_up_to_the_cap() -> None:
    backoff = without_jitter()
    assert [backoff.delay(0) for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]


def test_jitter_adds_up_to_the_same_again() -> None:
    chances = iter([0.0, 0.5, 0.999])
    backoff = Backoff(lambda: next(chances))
    assert [backoff.delay(0) for _ in range(3)] == [0.8, pytest.approx(2.4), pytest.approx(6.3968)]


def test_starts_anew_after_two_healthy_minutes() -> None:
    backoff = without_jitter()
    for _ in range(5):
        delay = backoff.delay(1000.0)
    assert delay == 12.8
    assert backoff.delay(1000.0 + delay + HEALTHY_SECONDS - 0.1) == 25.6
    assert backoff.delay(1000.0 + delay + HEALTHY_SECONDS - 0.1 + 25.6 + HEALTHY_SECONDS) == 0.8


def test_waiting_itself_does_not_count_as_healthy() -> None:
    backoff = without_jitter()
    now = 0.0
    for _ in range(20):
        now += backoff.delay(now, floor=200.0)
    assert backoff.delay(now) == CAP_SECONDS


@pytest.mark.parametrize(
    ("floor", "expected"),
    [(0.0, 0.8), (0.5, 0.8), (7.0, 7.0), (86400.0, FLOOR_LIMIT_SECONDS)],
)
def test_floor_from_the_server(floor: float, expected: float) -> None:
    assert without_jitter().delay(0, floor) == expected


def test_jitter_comes_on_top_of_the_floor() -> None:
    assert Backoff(lambda: 0.5).delay(0, 10.0) == pytest.approx(10.4)


def test_one_try_at_once_is_free_until_healthy_again() -> None:
    backoff = without_jitter()
    assert backoff.free(0.0)
    assert not backoff.free(1.0)
    assert backoff.delay(1.0) == 0.8
    assert not backoff.free(1.8 + HEALTHY_SECONDS - 0.1)
    assert backoff.free(1.8 + HEALTHY_SECONDS)


def test_a_failure_takes_no_free_try_away() -> None:
    backoff = without_jitter()
    delay = backoff.delay(0.0)
    assert backoff.free(delay)
    assert not backoff.free(delay)
    assert backoff.delay(delay) == 1.6
