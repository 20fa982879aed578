"""In iptables mode too, any history of changes and refusals ends where a fresh start from the last state begins."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxyd.model import EndpointSlice, Service
from tests.fakes.ipt_kernel import FakeKernel
from tests.ipt_world import IptWorld, normal
from tests.unit.test_convergence import Batch, batches, services, slices

SETTINGS = settings(
    max_examples=int(os.environ.get("PROXYD_EXAMPLES", "60")),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@given(
    first=st.lists(services | slices, max_size=6),
    history=batches,
    batch=st.sampled_from([1, 4, 100]),
    restarts=st.booleans(),
)
def test_any_history_ends_in_the_rules_of_a_fresh_start(
    first: list[Service | EndpointSlice], history: list[Batch], batch: int, *, restarts: bool
) -> None:
    lived = IptWorld(*first, kernel=FakeKernel(batch=batch))
    lived.try_sync()
    for each in history:
        for present, changed in each.changes:
            (lived.put if present else lived.remove)(changed)
        _make_trouble(lived, each)
        lived.try_sync()
        lived.kernel.recover()
        if restarts:
            lived.restart()
    lived.settle()
    lived.sync(lived.quarantined())
    lived.settle()

    fresh = IptWorld(*lived.store.services.objects.values(), *lived.store.slices.objects.values())
    fresh.settle()
    assert normal(lived.kernel) == normal(fresh.kernel)
    assert lived.reconciler.findings == fresh.reconciler.findings
    assert lived.reconciler.counts.rules == fresh.reconciler.counts.rules
    assert lived.reconciler.tally.total == fresh.reconciler.tally.total


def _make_trouble(world: IptWorld, batch: Batch) -> None:
    seen = iter(range(batch.after + 1))

    def now(_: object) -> bool:
        return next(seen, None) == batch.after

    if batch.trouble == "refused":
        world.kernel.refuse_if(now)
    elif batch.trouble == "unclear":
        world.kernel.unclear_if(now)
