"""Both kernels: the one in memory and the real one, the latter in a network namespace of its own."""

from __future__ import annotations

import pytest

from tests.fakes.ruleset import FakeRuleset
from tests.netns import RealRuleset, why_not

EitherRuleset = FakeRuleset | RealRuleset


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.kernel)])
def ruleset(request: pytest.FixtureRequest) -> EitherRuleset:
    """An empty kernel, of either kind."""
    if request.param == "fake":
        return FakeRuleset()
    return _real()


@pytest.fixture
def real() -> RealRuleset:
    """The real kernel only."""
    return _real()


def _real() -> RealRuleset:
    if reason := why_not():
        pytest.skip(reason)
    return RealRuleset()
