"""What nothing in our table uses any more: old generations, unfinished ones, and what others have made in it."""

from __future__ import annotations

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

    @property
    def owed(self) -> bool:
        """Whether there is any."""
        return bool(self._left.chains or self._left.containers)

    def switched(self, generation: int, old: Contents, base: tuple[Chain, ...]) -> None:
        """A generation is in use now: what was there before it, and is neither of it nor lasting, is left over."""
        lasting = {*LASTING, *(chain.name for chain in base)}
        self._left = _part(old, lambda name: name not in lasting and generation_of(name) != generation)

    def abandon(self, layout: Layout) -> None:
        """Deletes a generation that could not be completed, so that failures do not pile up in the kernel.

        Base chains go to "services" only: where the outcome of the switch is in doubt, deleting that chain tells.
        """
        commits = self._commits
        try:
            if layout.name("services") in commits.contents().chains:
                commits.tidy(Transaction(commits.family, delete_chains=(layout.name("services"),)))
            self._left = _part(commits.contents(), lambda name: generation_of(name) == layout.generation)
            self._delete()
        except KernelRefusedError as error:
            log.warning("unfinished rules not deleted", ip_family=commits.family, error=str(error))

    def delete(self) -> None:
        """Deletes it all. Raises ``KernelRefusedError``; what is there is owed then as before."""
        try:
            self._delete()
        except KernelRefusedError:
            # Some of it may be gone already, and then all would be refused for ever.
            left = self._left
            self._left = _part(self._commits.contents(), lambda name: name in left.chains or name in left.containers)
            raise

    def _delete(self) -> None:
        """In two commits: older kernels let go of chains only after all references are gone."""
        chains, containers = self._left.chains, self._left.containers
        family, tidy = self._commits.family, self._commits.tidy
        emptied = tuple(Chain(name, ()) for name in sorted(chains))
        tidy(Transaction(family, chains=emptied, delete_containers=tuple(sorted(containers.items()))))
        self._left = Contents(chains)
        tidy(Transaction(family, delete_chains=tuple(sorted(chains))))
        self._left = Contents()


def _part(contents: Contents, belongs: Callable[[str], bool]) -> Contents:
    return Contents(
        frozenset(filter(belongs, contents.chains)),
        {name: is_map for name, is_map in contents.containers.items() if belongs(name)},
    )
