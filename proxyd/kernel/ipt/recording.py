"""``IptRules`` that only take note: what would be written, and what the tools would print then."""

from __future__ import annotations

from collections.abc import Iterable

from proxyd.ipt.objects import ChainName, Placed, Transaction
from proxyd.ipt.ownership import BUILT_IN
from proxyd.ipt.saved import Contents, printed, unordered
from proxyd.model import Family


class RecordingRules:
    """One family. They believe everything to be accepted. ``there`` is what there is at the beginning."""

    def __init__(self, family: Family, batch: int, there: Contents = Contents()) -> None:  # noqa: B008 - immutable
        self.batch = batch
        self.calls: list[tuple[Transaction, ...]] = []
        """What each call would have been given."""
        self._family = family
        self._chains = {name: list(there.rules(name)) for name in there.chains}
        self._jumps = set(there.jumps)

    def commit(self, transactions: Iterable[Transaction]) -> None:
        """See ``IptRules``."""
        call = tuple(transactions)
        self.calls.append(call)
        for each in call:
            self._carry_out(each)

    def contents(self) -> Contents:
        """See ``IptRules``."""
        chains = {name: "".join(f"{rule}\n" for rule in rules) for name, rules in self._chains.items()}
        return Contents(chains, self.jumps())

    def jumps(self) -> frozenset[Placed]:
        """See ``IptRules``."""
        return frozenset(self._jumps)

    def _carry_out(self, t: Transaction) -> None:
        for chain in t.chains:
            self._chains[ChainName(chain.table, chain.name)] = [printed(rule, self._family) for rule in chain.rules]
        for each in t.delete:
            self._delete(each)
        for each in t.insert:
            if each.chain in BUILT_IN:
                self._jumps.add(each)
            else:
                name = ChainName(each.table, each.chain)
                self._chains.setdefault(name, []).insert(0, printed(each.rule, self._family))
        for name in t.delete_chains:
            self._chains.pop(name, None)

    def _delete(self, placed: Placed) -> None:
        rules = self._chains.get(ChainName(placed.table, placed.chain), [])
        text = printed(placed.rule, self._family)
        if text in rules:
            rules.remove(text)
            return
        found = next((each for each in rules if unordered(each) == unordered(text)), None)
        if found is not None:
            rules.remove(found)
