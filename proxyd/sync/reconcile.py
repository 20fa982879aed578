"""One family's rules: brings the kernel to what is desired, by what changed if possible and from scratch if not.

What the kernel holds is known only from commits that succeeded. Whenever that knowledge is in doubt (start, a refused
transaction) everything is written anew as a new generation beside the old one, so traffic never sees the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import structlog

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live, places
from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Desired, Lookup
from proxyd.kernel.ruleset import Contents, KernelRefusedError, Ruleset
from proxyd.model import Family, Finding, NodeSettings, Reason, ServiceKey
from proxyd.nft.delta import NODE, Holdings
from proxyd.nft.fixed import base_chains, generation_chains, node_port_elements
from proxyd.nft.layout import AFFINITY, TABLE_COMMENT, Layout, generation_of
from proxyd.nft.objects import Chain, Transaction
from proxyd.nft.render import ServiceObjects, render_service
from proxyd.sync.flows import FlowTracker
from proxyd.sync.tally import Tally

log = structlog.get_logger("proxyd.sync")

# Operations in one commit of a full sync: the library's memory follows it (measured flat at this size).
CHUNK = 5000
# Services that the kernel may refuse in one full sync before the trouble is taken to lie elsewhere.
QUARANTINED_AT_MOST = 16
FIRST = (ServiceKey("default", "kubernetes"), ServiceKey("kube-system", "kube-dns"))

Changes = dict[ServiceKey, ServiceObjects | None]


class Worked(NamedTuple):
    """One Service as it was worked out: what it forwards (None: nothing here), its objects, and what to say about it.

    ``failed``: it could not be worked out; what the kernel has of it stays as it is.
    """

    forwarding: Forwarding | None
    objects: ServiceObjects | None
    findings: tuple[Finding, ...]
    failed: bool = False


Work = dict[ServiceKey, Worked]


class StoppedError(Exception):
    """The daemon is asked to end; what is in the kernel is complete for the Services it has."""


class Reconciler:
    """Keeps one family's table equal to the desired state. Used by the sync thread only.

    ``operations`` and ``refusals`` tell of the last pass: what was written, and how many transactions were refused.
    """

    def __init__(
        self,
        family: Family,
        ruleset: Ruleset,
        lookup: Lookup,
        stopping: Callable[[], bool] = lambda: False,
        progress: Callable[[Family, int, int], None] = lambda *_: None,
        clean_flows: Callable[[Family, Mapping[FrontendKey, Live]], None] = lambda *_: None,
    ) -> None:
        self.family = family
        self.tally = Tally()
        self.findings: dict[ServiceKey, tuple[Finding, ...]] = {}
        self.operations = 0
        self.refusals = 0
        self._ruleset = ruleset
        self._desired = Desired(family, lookup)
        self._stopping = stopping
        self._progress = progress
        self._clean_flows = clean_flows
        self._flows = FlowTracker()
        self._settings: NodeSettings | None = None
        self._layout: Layout | None = None
        self._holdings: Holdings | None = None
        self._owed: set[ServiceKey] = set()
        self._leftovers = Contents()
        self._quarantined = 0

    @property
    def settings(self) -> NodeSettings | None:
        """The settings that the kernel's rules were made with, None before the first pass."""
        return self._settings

    def finds_rules(self) -> bool:
        """Whether the kernel has rules of an earlier run in use. Raises ``KernelRefusedError``."""
        names = {chain.name for chain in base_chains(Layout(self.family, 1, 0))}
        return not names.isdisjoint(self._ruleset.contents(self.family).chains)

    @property
    def full_owed(self) -> bool:
        """Whether the next pass has to write everything."""
        return self._holdings is None

    @property
    def cleanup_owed(self) -> bool:
        """Whether there are objects in the kernel that nothing uses any more."""
        unused = self._holdings is not None and self._holdings.plan_cleanup() is not None
        return unused or bool(self._leftovers.chains or self._leftovers.containers)

    @property
    def quarantined(self) -> tuple[ServiceKey, ...]:
        """The Services that the kernel refused, and that are not served until it takes them."""
        refused = Reason.KERNEL_REFUSED
        return tuple(key for key, found in self.findings.items() if any(each.reason is refused for each in found))

    def sync(
        self, dirty: Iterable[ServiceKey], all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        """One pass. ``dirty`` are Services that changed; whatever an earlier pass could not do is done as well.

        Raises ``KernelRefusedError`` where something is still owed afterwards, ``StoppedError`` at shutdown.
        """
        self.operations = self.refusals = 0
        self._owed.update(dirty)
        self._write(all_keys, settings)
        self._hand_over_flows()

    def retry_quarantined(self) -> None:
        """Tries each Service that was refused once more, alone: the refusal may not have been about the Service."""
        if self._holdings is None or self._layout is None or self._settings is None:
            return
        for key in self.quarantined:
            work = {key: self._work_out(key, self._layout, self._settings)}
            try:
                self._commit(self._holdings, {key: work[key].objects})
            except KernelRefusedError:
                continue
            self._settled(work, self._settings)
        self._hand_over_flows()

    def forget(self) -> None:
        """Takes nothing about the kernel for known any more: the next pass writes everything."""
        self._holdings = None

    def _hand_over_flows(self) -> None:
        """Only with the new rules in place: a flow that goes before them can come back as it was."""
        if changed := self._flows.take():
            self._clean_flows(self.family, changed)

    def _write(self, all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings) -> None:
        if self._holdings is not None and self._layout is not None:
            try:
                self._sync_changes(self._holdings, self._layout, all_keys, settings)
                return
            except KernelRefusedError as error:
                # Most likely our picture of the kernel is wrong; nothing that follows may build on it.
                self._holdings = None
                log.warning("transaction refused, writing everything anew", ip_family=self.family, error=str(error))
        self._sync_all(all_keys(), settings)

    def cleanup(self) -> None:
        """Deletes what nothing uses any more. Raises ``KernelRefusedError``; it is then owed as before."""
        if self._leftovers.chains or self._leftovers.containers:
            try:
                self._delete_leftovers()
            except KernelRefusedError:
                # Some of it may be gone already, and then all would be refused for ever.
                self._leftovers = _only(self._ruleset.contents(self.family), self._leftovers)
                raise
        if self._holdings is not None and (transaction := self._holdings.plan_cleanup()) is not None:
            self._ruleset.commit(transaction)
            self._holdings.confirm_cleanup(transaction)

    def _sync_changes(
        self, holdings: Holdings, layout: Layout, all_keys: Callable[[], list[ServiceKey]], settings: NodeSettings
    ) -> None:
        if settings != self._settings:
            self._owed.update(self._desired.affected(self._settings, settings, all_keys()))
        self._owed = self._desired.concerned(self._owed)
        if not self._owed and settings == self._settings:
            return
        changes: Changes = {}
        if settings != self._settings:
            changes[NODE] = _node_objects(layout, settings)
        work = {key: self._work_out(key, layout, settings) for key in self._owed}
        changes.update((key, each.objects) for key, each in work.items() if not each.failed)
        self._commit(holdings, changes)
        self._settled(work, settings)
        self._settings = settings
        self._owed = set()

    def _sync_all(self, keys: list[ServiceKey], settings: NodeSettings) -> None:
        """Writes a new generation and switches to it. With nothing of ours there, it is in use from the first commit."""
        old = self._ruleset.contents(self.family)
        generation = 1 + max((generation_of(name) or 0 for name in (*old.chains, *old.containers)), default=0)
        layout, holdings = Layout(self.family, generation, settings.masquerade_mark), Holdings(self.family)
        switch = base_chains(layout)
        in_use = old.chains.isdisjoint(chain.name for chain in switch)
        self._quarantined = 0
        self._desired.forget()
        try:
            self._declare(layout, holdings, settings, switch if in_use else ())
            concerned = self._desired.concerned([*keys, *self._owed])
            self._load(layout, holdings, sorted(concerned, key=_importance), settings)
            if not in_use:
                self._commit_counted(Transaction(self.family, chains=switch))
        except KernelRefusedError:
            if not in_use:
                self._abandon(layout)
            raise
        self._layout, self._holdings, self._settings, self._owed = layout, holdings, settings, set()
        self._leftovers = _not_of(generation, old, switch)
        self._flows.all_written(concerned)

    def _declare(self, layout: Layout, holdings: Holdings, settings: NodeSettings, base: tuple[Chain, ...]) -> None:
        plan = holdings.plan({NODE: _node_objects(layout, settings)})
        chains = plan.transaction.chains + base
        self._commit_counted(
            Transaction(
                self.family,
                table=TABLE_COMMENT,
                containers=layout.containers(),
                chains=chains,
                add_elements=plan.transaction.add_elements,
            )
        )
        holdings.confirm(plan)

    def _load(self, layout: Layout, holdings: Holdings, keys: list[ServiceKey], settings: NodeSettings) -> None:
        """Writes Services in commits that are each complete, the most important ones first."""
        self.tally = Tally()
        # Each stays until its Service has been looked at again, so that a failure does not hide it for a while.
        here = set(keys)
        self.findings = {key: each for key, each in self.findings.items() if key in here}
        done = 0
        self._progress(self.family, done, len(keys))
        # The library works without the interpreter lock: the next chunk is worked out while one is being committed.
        with ThreadPoolExecutor(1, "commit") as committing:
            chunks = self._chunks(layout, keys, settings)
            chunk = next(chunks, None)
            while chunk is not None:
                if self._stopping():
                    raise StoppedError
                work: Work = chunk
                changes: Changes = {key: each.objects for key, each in work.items() if each.objects is not None}
                committed = committing.submit(self._commit_or_split, holdings, changes)
                chunk = next(chunks, None)
                committed.result()
                written = {key: each for key, each in work.items() if each.objects is None or key in holdings}
                self._settled(written, settings)
                done += len(work)
                self._progress(self.family, done, len(keys))

    def _chunks(self, layout: Layout, keys: list[ServiceKey], settings: NodeSettings) -> Iterator[Work]:
        work: Work = {}
        size = 0
        for key in keys:
            work[key] = each = self._work_out(key, layout, settings)
            size += _size(each.objects) if each.objects is not None else 0
            if size >= CHUNK:
                yield work
                work, size = {}, 0
        yield work

    def _commit_or_split(self, holdings: Holdings, changes: Changes) -> None:
        """Commits; what the kernel refuses is halved until the Services at fault are alone, and these are left out."""
        try:
            self._commit(holdings, changes)
        except KernelRefusedError as error:
            if len(changes) > 1:
                keys = list(changes)
                for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                    self._commit_or_split(holdings, {key: changes[key] for key in half})
                return
            self._quarantined += 1
            if self._quarantined > QUARANTINED_AT_MOST:
                raise
            (key,) = changes
            self.findings[key] = (Finding("Service", str(key), Reason.KERNEL_REFUSED, str(error)),)

    def _commit(self, holdings: Holdings, changes: Changes) -> None:
        plan = holdings.plan(changes)
        self._commit_counted(plan.transaction)
        holdings.confirm(plan)

    def _commit_counted(self, transaction: Transaction) -> None:
        if not transaction.size:
            return
        try:
            self._ruleset.commit(transaction)
        except KernelRefusedError:
            self.refusals += 1
            raise
        self.operations += transaction.size

    def _work_out(self, key: ServiceKey, layout: Layout, settings: NodeSettings) -> Worked:
        """Decides about one Service and makes its objects; a fault of ours in doing so costs this Service only."""
        try:
            forwarding, findings = self._desired.forwarding(key, settings)
            return Worked(forwarding, render_service(forwarding, layout) if forwarding else None, findings)
        except Exception as error:
            log.exception("a Service could not be worked out", service=str(key), ip_family=self.family)
            finding = Finding("Service", str(key), Reason.INTERNAL_ERROR, repr(error))
            return Worked(None, None, (finding,), failed=True)

    def _settled(self, work: Work, settings: NodeSettings) -> None:
        for key, each in work.items():
            if not each.failed:
                self.tally.note(key, each.forwarding)
                self._flows.note(key, places(each.forwarding, settings) if each.forwarding else {})
            if each.findings:
                self.findings[key] = each.findings
            else:
                self.findings.pop(key, None)

    def _abandon(self, layout: Layout) -> None:
        """Deletes a generation that could not be completed, so that failures do not pile up in the kernel.

        Base chains go to "services" only: where the outcome of the switch is in doubt, deleting that chain tells.
        """
        try:
            contents = self._ruleset.contents(self.family)
            if layout.name("services") in contents.chains:
                self._ruleset.commit(Transaction(self.family, delete_chains=(layout.name("services"),)))
            self._leftovers = _generation(layout.generation, self._ruleset.contents(self.family))
            self._delete_leftovers()
        except KernelRefusedError as error:
            log.warning("unfinished rules not deleted", ip_family=self.family, error=str(error))

    def _delete_leftovers(self) -> None:
        """Deletes an old generation, in two commits: older kernels let go of chains only after all references are gone."""
        chains, containers = self._leftovers.chains, self._leftovers.containers
        self._ruleset.commit(
            Transaction(
                self.family,
                chains=tuple(Chain(name, ()) for name in sorted(chains)),
                delete_containers=tuple(sorted(containers.items())),
            )
        )
        self._leftovers = Contents(chains)
        self._ruleset.commit(Transaction(self.family, delete_chains=tuple(sorted(chains))))
        self._leftovers = Contents()


def _node_objects(layout: Layout, settings: NodeSettings) -> ServiceObjects:
    """What does not belong to any Service: kept like a Service, so that it changes like one."""
    return ServiceObjects(shared=node_port_elements(layout, settings), chains=generation_chains(layout, settings))


def _not_of(generation: int, contents: Contents, base: tuple[Chain, ...]) -> Contents:
    """What of ``contents`` is neither of this generation nor lasting."""
    lasting = {AFFINITY, *(chain.name for chain in base)}

    def stale(name: str) -> bool:
        return name not in lasting and generation_of(name) != generation

    return Contents(
        frozenset(filter(stale, contents.chains)),
        {name: is_map for name, is_map in contents.containers.items() if stale(name)},
    )


def _generation(generation: int, contents: Contents) -> Contents:
    """What of ``contents`` is of this generation."""
    return Contents(
        frozenset(name for name in contents.chains if generation_of(name) == generation),
        {name: is_map for name, is_map in contents.containers.items() if generation_of(name) == generation},
    )


def _only(contents: Contents, wanted: Contents) -> Contents:
    """What of ``wanted`` there is."""
    return Contents(
        contents.chains & wanted.chains,
        {name: is_map for name, is_map in contents.containers.items() if name in wanted.containers},
    )


def _importance(key: ServiceKey) -> tuple[bool, ServiceKey]:
    return key not in FIRST, key


def _size(objects: ServiceObjects) -> int:
    return (
        len(objects.elements)
        + len(objects.shared)
        + sum(len(each.backends) for each in objects.lists)
        + sum(len(chain.rules) for chain in objects.chains)
    )
