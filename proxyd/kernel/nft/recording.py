"""A ``Ruleset`` that only takes note: what would be written, and what the kernel would have then."""

from __future__ import annotations

from collections.abc import Iterable

from proxyd.desired.endpoints import Backend
from proxyd.kernel.nft.ruleset import Contents
from proxyd.model import Family
from proxyd.nft.layout import generation_of
from proxyd.nft.objects import Chain, Dnat, Element, Goto, Jump, Transaction, UpdateSet
from proxyd.plan.nft_served import Affinity, Generation, Value

# The base chain whose jump says which generation is in force.
IN_FORCE = "nat-prerouting"


class RecordingRuleset:
    """One family. It believes everything to be accepted: what a kernel refuses is known only when it is asked.

    ``there`` are the names in the kernel's table at the beginning; what the elements of them are, nobody needs to know
    for a full write.
    """

    def __init__(self, there: Contents = Contents()) -> None:  # noqa: B008 - immutable
        self.transactions: list[Transaction] = []
        """What would have been written."""
        self._chains = set(there.chains)
        self._containers = dict(there.containers)
        self._rules: dict[str, Chain] = {}
        self._elements: dict[str, dict[str, Value]] = {}

    def commit(self, transaction: Transaction) -> None:
        """See ``Ruleset``."""
        if not transaction.size and transaction.table is None:
            return
        self.transactions.append(transaction)
        for container in transaction.containers:
            self._containers[container.name] = container.is_map
        for chain in transaction.chains:
            self._chains.add(chain.name)
            self._rules[chain.name] = chain
        for each in transaction.delete_elements:
            self._elements.get(each.container, {}).pop(each.key, None)
        for each in transaction.add_elements:
            self._elements.setdefault(each.container, {})[each.key] = Value(each.value, each.comment)
        for name, _ in transaction.delete_containers:
            self._containers.pop(name, None)
            self._elements.pop(name, None)
        for name in transaction.delete_chains:
            self._chains.discard(name)
            self._rules.pop(name, None)

    def contents(self, family: Family) -> Contents:  # noqa: ARG002 - of one family
        """See ``Ruleset``."""
        return Contents(frozenset(self._chains), dict(self._containers))

    def generation(self) -> Generation:
        """What is in force after all that was written."""
        elements = (
            Element(container, key, *_fields(value))
            for container, found in self._elements.items()
            for key, value in found.items()
        )
        return in_force(_in_force(self._rules.get(IN_FORCE)), elements, self._rules.values())


def _fields(value: Value) -> tuple[str, str]:
    return value.value, value.comment


def _in_force(base: Chain | None) -> int | None:
    for rule in base.rules if base is not None else ():
        for statement in rule:
            if isinstance(statement, Jump):
                return generation_of(statement.chain)
    return None


def in_force(number: int | None, elements: Iterable[Element], chains: Iterable[Chain]) -> Generation:
    """One generation of a table, without its number in names."""
    prefix = f"g{number}/"
    found: dict[str, dict[str, Value]] = {}
    for each in elements:
        if each.container.startswith(prefix):
            value = each.value.replace(prefix, "")
            found.setdefault(each.container.removeprefix(prefix), {})[each.key] = Value(value, each.comment)
    affinity = {chain.name.removeprefix(prefix): _affinity(chain) for chain in chains if chain.name.startswith(prefix)}
    return Generation(found, {name: each for name, each in affinity.items() if each.endpoints})


def _affinity(chain: Chain) -> Affinity:
    statements = [each for rule in chain.rules for each in rule if not isinstance(each, Goto)]
    found = {Backend(each.address, each.port) for each in statements if isinstance(each, Dnat)}
    seconds = next((each.timeout for each in statements if isinstance(each, UpdateSet)), 0)
    return Affinity(tuple(sorted(found)), seconds)
