"""The full write: a new generation beside the old one, loaded in chunks and then switched to, so traffic sees no gap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from proxyd.model import Family, NodeSettings, ServiceKey
from proxyd.nft.delta import NODE, Holdings
from proxyd.nft.fixed import base_chains, generation_chains, node_port_elements
from proxyd.nft.layout import COUNTERS, TABLE_COMMENT, Layout, generation_of
from proxyd.nft.objects import Chain, Transaction
from proxyd.nft.render import ServiceObjects, render_service
from proxyd.sync.nft.commits import Changes, Commits
from proxyd.sync.nft.leftovers import Leftovers
from proxyd.sync.order import StoppedError, importance
from proxyd.sync.services import Services, Worked
from proxyd.sync.splitting import Splitting

# Operations in one commit of a full write: the library's memory follows it (measured flat at this size).
CHUNK = 5000
Work = dict[ServiceKey, Worked[ServiceObjects]]


def node_objects(layout: Layout, settings: NodeSettings) -> ServiceObjects:
    """What does not belong to any Service: kept like a Service, so that it changes like one."""
    return ServiceObjects(shared=node_port_elements(layout, settings), chains=generation_chains(layout, settings))


class Written(NamedTuple):
    """The generation that is in use, and what the kernel holds of it."""

    layout: Layout
    holdings: Holdings


class FullWriter:
    """Writes everything about one family, with nothing known. Used by the sync thread only."""

    def __init__(
        self,
        commits: Commits,
        services: Services,
        leftovers: Leftovers,
        stopping: Callable[[], bool],
        progress: Callable[[Family, int, int], None],
    ) -> None:
        """``progress`` is told how many Services of how many are written."""
        self._commits = commits
        self._services = services
        self._leftovers = leftovers
        self._stopping = stopping
        self._progress = progress

    def write(self, keys: Iterable[ServiceKey], settings: NodeSettings) -> Written | None:
        """Writes a new generation and switches to it. With nothing of ours there, it is in use from the first commit.

        ``keys`` are all Services. Gives None where the generation may have more than was accepted. Raises
        ``KernelRefusedError``, with what was in use before still in use, and ``StoppedError``.
        """
        commits, desired = self._commits, self._services.desired
        old = commits.contents()
        self._leftovers.found(old)
        generation = 1 + max((generation_of(name) or 0 for name in (*old.chains, *old.containers)), default=0)
        written = Written(
            Layout(commits.family, generation, settings.masquerade_mark, settings.drop_invalid),
            Holdings(commits.family),
        )
        switch = base_chains(written.layout)
        in_use = old.chains.isdisjoint(chain.name for chain in switch)
        desired.forget()
        try:
            self._declare(written, settings, switch if in_use else ())
            concerned = desired.concerned(keys)
            self._progress(commits.family, 0, len(concerned))
            in_doubt = self._load(written, sorted(concerned, key=importance), settings)
            if not in_use:
                commits.write(Transaction(commits.family, chains=switch))
        except StoppedError:
            raise
        except Exception:  # a fault of ours leaves as much behind as a refusal
            if not in_use:
                self._leftovers.abandon(written.layout)
            raise
        self._leftovers.switched(generation, old, switch)
        self._services.flows.all_written(concerned)
        return None if in_doubt else written

    def _declare(self, written: Written, settings: NodeSettings, base: tuple[Chain, ...]) -> None:
        layout, holdings = written
        plan = holdings.plan({NODE: node_objects(layout, settings)})
        self._commits.write(
            Transaction(
                layout.family,
                table=TABLE_COMMENT,
                containers=layout.containers(),
                counters=COUNTERS,
                chains=plan.before.chains + base,
                add_elements=plan.transaction.add_elements,
            )
        )
        holdings.confirm(plan)

    def _load(self, written: Written, keys: list[ServiceKey], settings: NodeSettings) -> bool:
        """Writes Services in commits that are each complete, the most important ones first.

        Gives whether the kernel may have something of those that it refused.
        """
        layout, holdings = written
        self._services.count_anew(keys)
        splitting = Splitting(self._services)

        def commit(changes: Changes) -> None:
            self._commits.change(holdings, changes)

        done = 0
        # The library works without the interpreter lock: the next chunk is worked out while one is being committed.
        with ThreadPoolExecutor(1, "commit") as committing:
            chunks = self._chunks(layout, keys, settings)
            chunk = next(chunks, None)
            while chunk is not None:
                if self._stopping():
                    raise StoppedError
                work: Work = chunk
                changes: Changes = {key: each.objects for key, each in work.items() if each.objects is not None}
                committed = committing.submit(splitting.write, changes, commit)
                chunk = next(chunks, None)
                committed.result()
                here = {key: each for key, each in work.items() if each.objects is None or key in holdings}
                self._services.settled(here, settings)
                done += len(work)
                self._progress(layout.family, done, len(keys))
        return splitting.in_doubt

    def _chunks(self, layout: Layout, keys: list[ServiceKey], settings: NodeSettings) -> Iterator[Work]:
        work: Work = {}
        size = 0
        for key in keys:
            work[key] = each = self._services.work_out(key, settings, lambda made: render_service(made, layout))
            size += _size(each.objects) if each.objects is not None else 0
            if size >= CHUNK:
                yield work
                work, size = {}, 0
        yield work


def _size(objects: ServiceObjects) -> int:
    return (
        len(objects.elements)
        + len(objects.shared)
        + sum(len(each.backends) for each in objects.lists)
        + sum(len(chain.rules) for chain in objects.chains)
    )
