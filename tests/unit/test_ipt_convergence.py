"""In iptables mode too, any history of changes and refusals ends where a fresh start from the last state begins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxyd.model import EndpointSlice, Service
from tests.fakes.ipt_kernel import FakeKernel
from tests.ipt_world import IptWorld, normal
from tests.unit.test_convergence import SETTINGS, Batch, batches, make_trouble, services, slices


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
        make_trouble(lived.kernel, each)
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
