"""The token bucket."""

from __future__ import annotations

from proxyd.kube.tokens import TokenBucket


def test_so_many_at_once_and_then_one_each_period() -> None:
    bucket = TokenBucket(3, 10.0)
    assert [bucket.take(100.0) for _ in range(5)] == [True, True, True, False, False]
    assert [bucket.take(at) for at in (105.0, 110.0, 111.0, 120.0)] == [False, True, False, True]


def test_it_never_has_more_than_its_size() -> None:
    bucket = TokenBucket(2, 1.0)
    bucket.take(0.0)
    assert [bucket.take(1000.0) for _ in range(3)] == [True, True, False]


def test_it_tells_how_long_to_wait() -> None:
    bucket = TokenBucket(1, 8.0)
    assert bucket.wait(0.0) == 0
    bucket.take(0.0)
    assert bucket.wait(2.0) == 6
    assert bucket.take(8.0)
