"""What others changed in our table, as far as the kernel told: the places to look at, or that all of it is in doubt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from proxyd.model import Family

# Places (elements and chains) that are mended one by one; beyond that, writing everything anew is cheaper and surer.
PLACES_AT_MOST = 1000
_SHOWN = 5

# An element: container and key.
Place = tuple[str, str]


class Drift(msgspec.Struct, frozen=True):
    """Changes to our table of one family that were not ours. ``what`` is for people, ``edits`` counts transactions: 0
    where nobody told of any, and all is to be compared.

    ``elements`` are the places that were written, with whether the last that was told is that something is there now;
    ``chains`` those whose rules changed. ``everything``: these do not say all.
    """

    family: Family
    what: str
    edits: int = 1
    elements: Mapping[Place, bool] = {}
    chains: frozenset[str] = frozenset()
    everything: bool = False

    def then(self, later: Drift) -> Drift:
        """Both together; ``what`` stays that of the first."""
        elements, chains = {**self.elements, **later.elements}, self.chains | later.chains
        if self.everything or later.everything or len(elements) + len(chains) > PLACES_AT_MOST:
            return Drift(self.family, self.what, self.edits + later.edits, everything=True)
        return Drift(self.family, self.what, self.edits + later.edits, elements, chains)


class Edits:
    """Collects what is told of one transaction on the table of one family. Its size is bounded, whatever comes."""

    def __init__(self, family: Family) -> None:
        self.everything = False
        self._family = family
        self._told: Counter[str] = Counter()
        self._elements: dict[Place, bool] = {}
        self._chains: set[str] = set()

    def told(self, what: str) -> None:
        """Counts one change, in words for people."""
        if what in self._told or len(self._told) < PLACES_AT_MOST:
            self._told[what] += 1

    def element(self, container: str, key: str, *, there: bool) -> None:
        """An element came (with whatever value) or went."""
        # The last word counts: the kernel tells in the order in which things happened.
        self._elements[container, key] = there
        self._bound()

    def rules(self, chain: str) -> None:
        """Rules of a chain came or went."""
        self._chains.add(chain)
        self._bound()

    def all_in_doubt(self) -> None:
        """Something happened that places do not describe."""
        self.everything = True
        self._elements, self._chains = {}, set()

    def _bound(self) -> None:
        if self.everything or len(self._elements) + len(self._chains) > PLACES_AT_MOST:
            self.all_in_doubt()

    def drift(self) -> Drift | None:
        """All of it, None where nothing was told."""
        if not self._told:
            return None
        return Drift(self._family, self._words(), 1, self._elements, frozenset(self._chains), self.everything)

    def _words(self) -> str:
        # The table itself first: the kernel tells what goes with it before.
        told = sorted(self._told.items(), key=lambda each: (" table " not in each[0], -each[1], each[0]))
        words = [text if count == 1 else f"{count} x {text}" for text, count in told]
        more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
        return ", ".join(words[:_SHOWN]) + more
