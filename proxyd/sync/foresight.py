"""What a write would do: the real reconcilers, on a recorder in the kernel's place. Nothing is written.

A full write needs to know of the kernel what it needs to know of it in the daemon (names in nftables mode, rules in
iptables mode). A change of what a running proxyd has is worked out from what it has written, which is written to the
recorder first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from proxyd.desired.services import Lookup
from proxyd.ipt.restore import restore_input
from proxyd.ipt.saved import Contents as IptContents
from proxyd.ipt.style import Style
from proxyd.kernel.ipt.recording import RecordingRules
from proxyd.kernel.nft.recording import RecordingRuleset
from proxyd.kernel.nft.ruleset import Contents as NftContents
from proxyd.kube.store import Store
from proxyd.model import EndpointSlice, Family, Finding, NodeSettings, Service, ServiceKey
from proxyd.nft.script import script
from proxyd.plan import ipt_served, nft_served
from proxyd.plan.served import Serving
from proxyd.sync.family import FamilyRules
from proxyd.sync.ipt.reconcile import IptReconciler
from proxyd.sync.nft.reconcile import NftReconciler


class Wanted(NamedTuple):
    """What one family is to have, or has: the objects, and the settings of the node."""

    store: Store
    settings: NodeSettings


class Foreseen(NamedTuple):
    """What would be written (each text is one call), what it would delete later, and what would be served then."""

    operations: int
    writes: tuple[str, ...]
    tidying: tuple[str, ...]
    serving: Serving
    findings: tuple[Finding, ...]


class Recorder(Protocol):
    """A kernel in whose place nothing is written, with the reconciler that writes to it."""

    def rules(self, lookup: Lookup) -> FamilyRules:
        """A reconciler that has just started."""

    def take(self) -> tuple[str, ...]:
        """The texts of what was written since the last time, a call each."""

    def serving(self) -> Serving:
        """What is served after all that."""


class NftRecorder:
    """nftables mode. ``by_expressions`` as for ``nft.script``."""

    def __init__(self, family: Family, there: NftContents, *, by_expressions: bool) -> None:
        self._family, self._by_expressions = family, by_expressions
        self._kernel = RecordingRuleset(there)

    def rules(self, lookup: Lookup) -> FamilyRules:
        """See ``Recorder``."""
        return NftReconciler(self._family, self._kernel, lookup)

    def take(self) -> tuple[str, ...]:
        """See ``Recorder``."""
        written, self._kernel.transactions = self._kernel.transactions, []
        return tuple(script(each, by_expressions=self._by_expressions) for each in written)

    def serving(self) -> Serving:
        """See ``Recorder``."""
        return nft_served.serving(self._kernel.generation())


class IptRecorder:
    """iptables mode. ``batch`` is that of the backend."""

    def __init__(self, family: Family, there: IptContents, batch: int, style: Style) -> None:
        self._family, self._style = family, style
        self._kernel = RecordingRules(family, batch, there)

    def rules(self, lookup: Lookup) -> FamilyRules:
        """See ``Recorder``."""
        return IptReconciler(self._family, self._kernel, lookup, self._style)

    def take(self) -> tuple[str, ...]:
        """See ``Recorder``."""
        written, self._kernel.calls = self._kernel.calls, []
        return tuple("".join(restore_input(each)) for each in written)

    def serving(self) -> Serving:
        """See ``Recorder``."""
        return ipt_served.serving(self._kernel.contents())


def start(recorder: Recorder, wanted: Wanted) -> Foreseen:
    """What a proxyd writes that starts now."""
    rules = recorder.rules(wanted.store.service)
    return _write(recorder, rules, wanted, wanted.store.keys())


def change(recorder: Recorder, running: Wanted, wanted: Wanted) -> tuple[Serving, Foreseen]:
    """What a proxyd writes that has written ``running`` and is then given ``wanted``; also what it serves before that."""
    current = running.store

    def lookup(key: ServiceKey) -> tuple[Service | None, tuple[EndpointSlice, ...]]:
        return current.service(key)

    rules = recorder.rules(lookup)
    _write(recorder, rules, running, running.store.keys())
    before = recorder.serving()
    dirty = differing(running.store, wanted.store)
    current = wanted.store
    return before, _write(recorder, rules, wanted, dirty)


def differing(these: Store, those: Store) -> set[ServiceKey]:
    """The Services that are not the same in both, or have other slices."""
    keys = {*these.keys(), *those.keys(), *(each.service for each in these.slices.objects.values())}
    keys |= {each.service for each in those.slices.objects.values()}
    return {key for key in keys if these.service(key) != those.service(key)}


def _write(recorder: Recorder, rules: FamilyRules, wanted: Wanted, dirty: Iterable[ServiceKey]) -> Foreseen:
    rules.sync(dirty, wanted.store.keys, wanted.settings)
    writes, operations = recorder.take(), rules.operations
    while rules.cleanup_owed:
        rules.cleanup()
    findings = tuple(each for about in rules.findings.values() for each in about)
    return Foreseen(operations, writes, recorder.take(), recorder.serving(), findings)
