"""Kernels for what writes to them: in memory, and in memory with a real one beside it that must agree; no waiting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from proxyd.sync import family
from tests.fakes.ruleset import FakeRuleset
from tests.netns import MirroredRuleset, why_not


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kernel)])
def ruleset(request: pytest.FixtureRequest) -> Iterator[FakeRuleset]:
    """An empty kernel."""
    if request.param == "fake":
        yield FakeRuleset()
        return
    if reason := why_not():
        pytest.skip(reason)
    mirrored = MirroredRuleset()
    yield mirrored
    mirrored.check()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has retries follow at once."""
    monkeypatch.setattr(family, "RETRY_FIRST", 0.01)
