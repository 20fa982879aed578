"""What nothing in our table uses any more: old generations, unfinished ones, and what others have made in it."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from proxyd.kernel.nft.ruleset import Contents
from proxyd.kernel.refused import KernelRefusedError
from proxyd.nft.layout import LASTING, Layout, generation_of
from proxyd.nft.objects import Chain, Transaction
from proxyd.sync.nft.commits import Commits

log = structlog.get_logger("proxyd.sync")


class Leftovers:
    """What is to be deleted from one family's table, and its deletion."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._left = Contents()
        # Since when a name has been left over (monotonic seconds).
        self._since: dict[str, float] = {}

    @property
    def owed(self) -> bool:
        """Whether there is any."""
        return bool(self._left.chains or self._left.containers)

    def switched(self, generation: int, old: Contents, base: tuple[Chain, ...]) -> None:
        """A generation is in use now: what was there before it, and is neither of it nor lasting, is left over."""
        lasting = {*LASTING, *(chain.name for chain in base)}
        self._note(_part(old, lambda name: name not in lasting and generation_of(name) != generation))

    def found(self, there: Contents) -> None:
        """Takes what is there: the rest of what was left over is forgotten, for its names may be used again."""
        left = self._left
        self._note(_part(there, lambda name: name in left.chains or name in left.containers))

    def abandon(self, layout: Layout) -> None:
        """Deletes a generation that could not be completed, so that failures do not pile up in the kernel.

        Base chains go to "services" only: where the outcome of the switch is in doubt, deleting that chain tells.
        """
        commits = self._commits
        try:
            if layout.name("services") in commits.contents().chains:
                commits.tidy(Transaction(commits.family, delete_chains=(layout.name("services"),)))
            mine = _part(commits.contents(), lambda name: generation_of(name) == layout.generation)
            self._note(Contents(self._left.chains | mine.chains, {**self._left.containers, **mine.containers}))
            self._delete(mine)
        except KernelRefusedError as error:
            log.warning("unfinished rules not deleted", ip_family=commits.family, error=str(error))

    def delete(self, before: float) -> None:
        """Deletes what has been left over since ``before`` (monotonic seconds), for packets may still be in the rest.

        Raises ``KernelRefusedError``; what is there is owed then as before.
        """
        if any(since <= before for since in self._since.values()):
            self._delete(_part(self._left, lambda name: self._since[name] <= before))

    def _delete(self, part: Contents) -> None:
        """In two commits: older kernels let go of chains only after all references are gone."""
        family, tidy, left = self._commits.family, self._commits.tidy, self._left
        emptied = tuple(Chain(name, ()) for name in sorted(part.chains))
        try:
            tidy(Transaction(family, chains=emptied, delete_containers=tuple(sorted(part.containers.items()))))
            tidy(Transaction(family, delete_chains=tuple(sorted(part.chains))))
        except KernelRefusedError:
            # Some of it may be gone already, and then all would be refused for ever.
            self._note(_part(self._commits.contents(), lambda name: name in left.chains or name in left.containers))
            raise
        self._note(_part(left, lambda name: name not in part.chains and name not in part.containers))

    def _note(self, left: Contents) -> None:
        """Keeps in mind what is left over; what was so before has been so since then."""
        now = time.monotonic()
        self._left = left
        self._since = {name: self._since.get(name, now) for name in (*left.chains, *left.containers)}


def _part(contents: Contents, belongs: Callable[[str], bool]) -> Contents:
    return Contents(
        frozenset(filter(belongs, contents.chains)),
        {name: is_map for name, is_map in contents.containers.items() if belongs(name)},
    )
