"""A kernel in memory: keeps tables of typed objects and refuses what the real one refuses.

What it refuses was tried on a real kernel, and tests/kernel/test_ruleset_contract.py tries it again on both. Where the
real one is surprising (which overlaps of intervals it notices, what deleting a part of an interval does), so is this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from proxyd.kernel.nft.ruleset import Contents
from proxyd.kernel.refused import KernelRefusedError, OutcomeUnclearError
from proxyd.model import Family
from proxyd.nft import objects as o
from tests.fakes.rules import chains_of, check_hook, check_reachable, check_rule, containers_of
from tests.fakes.values import Entry, Plain, StoredKey, Verdict, check_comment, check_name, entry, read_key

Predicate = Callable[[o.Transaction], bool]


class FakeContainer:
    """A set or map with its elements."""

    def __init__(self, declared: o.Container) -> None:
        self.declared = declared
        self.entries: dict[StoredKey, Entry] = {}
        self.targets: Counter[str] = Counter()
        # What the counters of elements have counted.
        self.counted: dict[StoredKey, int] = {}

    def copy(self) -> FakeContainer:
        """An independent copy."""
        new = FakeContainer(self.declared)
        new.entries, new.targets, new.counted = dict(self.entries), Counter(self.targets), dict(self.counted)
        return new

    def add(self, element: o.Element, family: Family) -> None:
        """Adds an element; one that is there with the same value stays as it is."""
        new = entry(self.declared, element, family)
        known = self.entries.get(new.key)
        if known is not None:
            if known.value != new.value:
                raise KernelRefusedError(f"File exists: {element}")
            return
        if self.declared.interval and (found := self._overlapped(new.key)):
            raise KernelRefusedError(f"File exists: {element} overlaps {found.element.key}")
        if self.declared.size and len(self.entries) >= self.declared.size:
            raise KernelRefusedError(f"Too many open files in system: {self.declared.name} is full")
        self.entries[new.key] = new
        if isinstance(new.value, Verdict) and new.value.chain:
            self.targets[new.value.chain] += 1

    def delete(self, element: o.Element, family: Family) -> None:
        """Deletes by key; in interval sets the kernel takes the element that holds the key's first point."""
        key = read_key(self.declared, element.key, family)
        known = self.entries.get(key)
        if known is None and self.declared.interval:
            known = self._holding(tuple(low for low, _ in key))
        if known is None:
            raise KernelRefusedError(f"No such file or directory: {element}")
        del self.entries[known.key]
        self.counted.pop(known.key, None)
        if isinstance(known.value, Verdict) and known.value.chain:
            self.targets[known.value.chain] -= 1

    def holds(self, point: Plain) -> bool:
        """Whether an interval set holds a point (addresses as numbers)."""
        return self._holding(point) is not None

    def _holding(self, point: Plain) -> Entry | None:
        for key, found in self.entries.items():
            if all(low <= part <= high for (low, high), part in zip(key, point, strict=True)):
                return found
        return None

    def _overlapped(self, key: StoredKey) -> Entry | None:
        """The kernel notices an overlap only where an end of the new element lies in an old one."""
        first, last = zip(*key, strict=True)
        return self._holding(first) or self._holding(last)


class FakeTable:
    """One family's table."""

    def __init__(self, comment: str) -> None:
        self.comment = comment
        self.containers: dict[str, FakeContainer] = {}
        self.chains: dict[str, o.Chain] = {}
        self.counters: dict[str, int] = {}
        self._own: set[str] = set()

    def copy(self) -> FakeTable:
        """A copy that copies containers when they are first written to."""
        new = FakeTable(self.comment)
        new.containers, new.chains, new.counters = dict(self.containers), dict(self.chains), dict(self.counters)
        return new

    def container(self, name: str) -> FakeContainer:
        """A container to write to."""
        if name not in self.containers:
            raise KernelRefusedError(f"No such file or directory: {name}")
        if name not in self._own:
            self.containers[name] = self.containers[name].copy()
            self._own.add(name)
        return self.containers[name]

    def base_chains(self, hook: str) -> list[o.Chain]:
        """Base chains of a hook in the order in which packets meet them."""
        found = [(c.hook.priority, c) for c in self.chains.values() if c.hook is not None and c.hook.hook == hook]
        return [chain for _, chain in sorted(found, key=lambda each: each[0])]

    def declare(self, container: o.Container) -> None:
        """Makes a container, or takes the one that is there if it is of the same make (size aside)."""
        check_name(container.name)
        known = self.containers.get(container.name)
        if known is None:
            self.containers[container.name] = FakeContainer(container)
            self._own.add(container.name)
        elif _make(known.declared) != _make(container):
            raise KernelRefusedError(f"File exists: {container.name}")

    def declare_counters(self, names: Iterable[str]) -> None:
        """Makes named counters; one that is there keeps its count."""
        for name in names:
            check_name(name)
            self.counters.setdefault(name, 0)

    def declare_chain(self, chain: o.Chain) -> None:
        """Makes a chain without rules, or takes the one that is there if the hook is the same or not mentioned."""
        check_name(chain.name)
        check_comment(chain.comment)
        check_hook(chain.hook)
        known = self.chains.get(chain.name)
        if known is None:
            self.chains[chain.name] = o.Chain(chain.name, (), chain.hook, chain.comment)
        elif chain.hook is not None and known.hook != chain.hook:
            raise KernelRefusedError(f"Operation not supported: {chain.name} has another hook")

    def write(self, chain: o.Chain, family: Family) -> None:
        """Replaces a chain's rules."""
        declared = {name: each.declared for name, each in self.containers.items()}
        for rule in chain.rules:
            check_rule(rule, family, declared, self.chains, self.counters)
        known = self.chains[chain.name]
        self.chains[chain.name] = o.Chain(chain.name, chain.rules, known.hook, known.comment)

    def add(self, element: o.Element, family: Family) -> None:
        """Adds an element; a chain that it leads to must exist and may not be a base chain."""
        container = self.container(element.container)
        container.add(element, family)
        if container.declared.value == ():
            _, _, target = element.value.partition(" ")
            if target and target not in self.chains:
                raise KernelRefusedError(f"No such file or directory: chain of {element}")
            if target and self.chains[target].hook is not None:
                raise KernelRefusedError(f"Operation not supported: base chain as target of {element}")

    def delete_containers(self, names: Iterable[str]) -> None:
        """Deletes containers that no rule refers to."""
        used = {name for chain in self.chains.values() for rule in chain.rules for name in containers_of(rule)}
        for name in names:
            if name not in self.containers:
                raise KernelRefusedError(f"No such file or directory: {name}")
            if name in used:
                raise KernelRefusedError(f"Device or resource busy: {name}")
            del self.containers[name]

    def delete_chains(self, names: Iterable[str]) -> None:
        """Deletes chains, with their rules, one after the other; each must be unused when its turn comes."""
        used = self._targets()
        for name in names:
            if name not in self.chains:
                raise KernelRefusedError(f"No such file or directory: {name}")
            if used[name] > 0:
                raise KernelRefusedError(f"Device or resource busy: {name}")
            used.subtract(chains_of(self.chains.pop(name)))

    def validate(self) -> None:
        """What the kernel checks at the end: loops, depth, and statements where they are not allowed."""
        targets = {name: [t for t, n in each.targets.items() if n > 0] for name, each in self.containers.items()}
        check_reachable(self.chains, targets)

    def _targets(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for chain in self.chains.values():
            used.update(chains_of(chain))
        for container in self.containers.values():
            used.update(container.targets)
        return used


def _make(container: o.Container) -> tuple[object, ...]:
    return (container.key, container.value, container.counter, container.interval, container.timeout)


class FakeRuleset:
    """Implements ``Ruleset`` in memory.

    ``commits`` are the transactions that were carried out; ``watchers`` are called after each of them.
    """

    def __init__(self) -> None:
        self.tables: dict[Family, FakeTable] = {}
        self.commits: list[o.Transaction] = []
        self.refused: list[o.Transaction] = []
        self.watchers: list[Callable[[], None]] = []
        self.listings = 0
        self._refusals = 0
        self._predicates: list[Predicate] = []
        self._unclear: list[Predicate] = []
        self._down: set[Family] = set()

    def refuse_next(self, count: int = 1) -> None:
        """Refuses this many commits from now on."""
        self._refusals = count

    def refuse_if(self, predicate: Predicate) -> None:
        """Refuses all transactions that the predicate holds for."""
        self._predicates.append(predicate)

    def refuse_family(self, family: Family) -> None:
        """Refuses everything of one family, listings too."""
        self._down.add(family)

    def unclear_if(self, predicate: Predicate) -> None:
        """Carries the transactions out that the predicate holds for, and then says that this is not known."""
        self._unclear.append(predicate)

    def recover(self) -> None:
        """Ends all trouble that was asked for."""
        self._refusals = 0
        self._predicates.clear()
        self._unclear.clear()
        self._down.clear()

    def commit(self, transaction: o.Transaction) -> None:
        """See ``Ruleset``."""
        if not transaction.size and transaction.table is None:
            return
        try:
            self._trouble(transaction)
            self._carry_out(transaction)
        except KernelRefusedError:
            self.refused.append(transaction)
            raise
        self.commits.append(transaction)
        for watcher in self.watchers:
            watcher()
        if any(holds(transaction) for holds in self._unclear):
            raise OutcomeUnclearError("Interrupted: the outcome is not known")

    def contents(self, family: Family) -> Contents:
        """See ``Ruleset``."""
        self.listings += 1
        if family in self._down:
            raise KernelRefusedError("Operation not permitted: this family is down")
        table = self.tables.get(family)
        if table is None:
            return Contents()
        return Contents(frozenset(table.chains), {n: c.declared.is_map for n, c in table.containers.items()})

    def elements(self, family: Family) -> dict[str, dict[str, str]]:
        """Keys and values of all elements by container, for assertions."""
        table = self.tables.get(family)
        if table is None:
            return {}
        return {name: dict(_texts(each)) for name, each in table.containers.items()}

    def counters(self, family: Family) -> dict[str, int]:
        """What the named counters have counted."""
        table = self.tables.get(family)
        return dict(table.counters) if table is not None else {}

    def has_counted(self, family: Family, counter: str, packets: int) -> None:
        """Makes a named counter that has counted already."""
        self.tables[family].counters[counter] = packets

    def has_passed(self, family: Family, element: o.Element, packets: int) -> None:
        """Has the counter of an element that is there stand at this."""
        container = self.tables[family].container(element.container)
        key = read_key(container.declared, element.key, family)
        assert container.declared.counter
        assert key in container.entries
        container.counted[key] = packets

    def _trouble(self, transaction: o.Transaction) -> None:
        if self._refusals:
            self._refusals -= 1
            raise KernelRefusedError("Device or resource busy: refused on demand")
        if transaction.family in self._down or any(holds(transaction) for holds in self._predicates):
            raise KernelRefusedError("Operation not permitted: refused on demand")

    def _carry_out(self, transaction: o.Transaction) -> None:
        after = apply(self.tables.get(transaction.family), transaction)
        if after is None:
            self.tables.pop(transaction.family, None)
        else:
            self.tables[transaction.family] = after


def apply(before: FakeTable | None, t: o.Transaction) -> FakeTable | None:
    """The table after a transaction, None if it is gone; the table before is left as it was."""
    table = before.copy() if before is not None else None
    if table is None:
        if t.table is None:
            raise KernelRefusedError("No such file or directory: table")
        check_comment(t.table)
        table = FakeTable(t.table)
    for container in t.containers:
        table.declare(container)
    table.declare_counters(t.counters)
    for chain in t.chains:
        table.declare_chain(chain)
    for chain in t.chains:
        table.write(chain, t.family)
    for element in t.delete_elements:
        table.container(element.container).delete(element, t.family)
    for element in t.add_elements:
        table.add(element, t.family)
    if t.delete_containers:
        table.delete_containers(name for name, _ in t.delete_containers)
    if t.delete_chains:
        table.delete_chains(t.delete_chains)
    if t.delete_table:
        return None
    if t.chains or any(each.value for each in t.add_elements):
        table.validate()
    return table


def _texts(container: FakeContainer) -> Iterator[tuple[str, str]]:
    for each in container.entries.values():
        key = each.element.key
        # nft lists a range of one address as the address.
        for single in ("/32", "/128"):
            key = key.removesuffix(single) if ":" in key or single == "/32" else key
        yield key, each.element.value
