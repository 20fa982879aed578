"""What the last successful commit left in the kernel, and the transaction that leads from there to what is wanted now.

The only place in nftables mode that remembers: which index each endpoint has in its list, and how many Services share
an element or a chain. It learns from commits that succeeded, never from hopes: ``plan`` changes nothing, ``confirm``
takes a plan over once the kernel has accepted its transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TypeVar

import msgspec

from proxyd.model import Family, ServiceKey
from proxyd.nft.keys import frontend_of
from proxyd.nft.layout import declared, permits, refuses, restricts
from proxyd.nft.objects import Chain, Element, Transaction
from proxyd.nft.render import EndpointList, ServiceObjects

T = TypeVar("T")

# The chains and elements that belong to the node and not to a Service are kept under this key.
NODE = ServiceKey("", "node")


class Plan(msgspec.Struct, frozen=True):
    """A transaction, one to come before it and one after it, and what will be known once they have succeeded.

    A packet under way sees the rules of chains as they were when it entered a hook, and elements as they are when it looks
    them up, one after the other. So chains are there ``before`` anything leads to them: it could be led to one that has no
    rules for it yet. And what it may still be led to goes ``after``: endpoint lists of frontends that are served otherwise
    now, and refusals of those that are served now, which it looks up last.
    """

    before: Transaction
    transaction: Transaction
    after: Transaction
    records: dict[ServiceKey, ServiceObjects | None]
    element_uses: Counter[Element]
    chain_uses: Counter[str]
    chains: dict[str, Chain]


def reorder(old: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Gives the members of ``wanted`` in an order that differs from ``old`` in as few places as possible.

    New members fill the holes that removed ones leave; remaining holes are filled from the end, so the list stays dense.
    """
    wanted = dict.fromkeys(wanted)
    known = set(old)
    new = [member for member in wanted if member not in known]
    order: list[str | None] = [member if member in wanted else None for member in old]
    holes = [i for i, member in enumerate(order) if member is None]
    for hole, member in zip(holes, new, strict=False):
        order[hole] = member
    order.extend(new[len(holes) :])
    for hole in holes[len(new) :]:
        while order and order[-1] is None:
            order.pop()
        if hole >= len(order):
            break
        order[hole] = order.pop()
    return tuple(member for member in order if member is not None)


class Holdings:
    """The contents of one generation in the kernel, as far as commits have told."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self._records: dict[ServiceKey, ServiceObjects] = {}
        self._element_uses: Counter[Element] = Counter()
        self._chain_uses: Counter[str] = Counter()
        self._chains: dict[str, Chain] = {}
        # Since when nothing has used a chain, 0 where nothing ever did.
        self._unused: dict[str, float] = {}
        # Whose a frontend is. The texts are those of elements, so an entry costs two references.
        self._owners: dict[str, ServiceKey] = {}

    def __contains__(self, key: ServiceKey) -> bool:
        return key in self._records

    def keys(self) -> set[ServiceKey]:
        """The Services that have something in the kernel."""
        return {key for key in self._records if key != NODE}

    def plan(self, changes: Mapping[ServiceKey, ServiceObjects | None]) -> Plan:
        """Works out what has to happen so that these Services are as given (None: gone), and all others as they are."""
        step = _Step(self)
        for key, objects in changes.items():
            step.change(key, objects)
        return step.plan()

    def confirm_before(self, plan: Plan) -> None:
        """Takes over the chains of a plan whose first transaction has succeeded. Nothing uses them yet."""
        for chain in plan.before.chains:
            self._chains[chain.name] = chain
            self._unused.setdefault(chain.name, 0.0)

    def confirm(self, plan: Plan, at: float = 0.0) -> None:
        """Takes over a plan whose transactions have all succeeded; ``at`` is when (of any clock)."""
        for key in plan.records:
            for frontend in _frontends(self._records.pop(key, None)):
                if self._owners.get(frontend) == key:
                    del self._owners[frontend]
        for key, record in plan.records.items():
            if record is not None:
                self._records[key] = record
                self._owners.update((frontend, key) for frontend in _frontends(record))
        _count(self._element_uses, plan.element_uses)
        _count(self._chain_uses, plan.chain_uses)
        self._chains.update(plan.chains)
        for name in plan.chain_uses:
            if name in self._chain_uses:
                self._unused.pop(name, None)
            elif name in self._chains:
                self._unused[name] = at

    def owner(self, container: str, key: str) -> ServiceKey | None:
        """The Service that has the frontend that an element is about, whether it has the element or not."""
        return self._owners.get(_frontend(Element(container, key)))

    def element(self, container: str, key: str) -> Element | None:
        """What the kernel should hold in this place. Costs as much as its Service has ports, whatever else there is."""
        plain = Element(container, key)
        if plain in self._element_uses:
            return plain
        record = self._records.get(self.owner(container, key) or NODE) or ServiceObjects()
        for element in record.elements:
            if element.container == container and element.key == key:
                return element
        frontend, _, index = key.rpartition(" . ")
        for each in record.lists:
            if each.container == container and each.frontend == frontend and index.isdecimal():
                place = int(index) - each.base
                if 0 <= place < len(each.backends):
                    return _list_element(each, place, each.backends[place])
        return None

    def chain(self, name: str) -> Chain | None:
        """What the kernel should hold as this chain."""
        return self._chains.get(name)

    def plan_cleanup(self, before: float = inf) -> Transaction | None:
        """A transaction that deletes chains that nothing has used since ``before``, None if there are none.

        Apart and later, since older kernels (before 6.2) hold on to a chain for a moment after its last reference.
        """
        unused = [name for name, since in self._unused.items() if since <= before]
        return Transaction(self.family, delete_chains=tuple(sorted(unused, key=_callers_first))) if unused else None

    def confirm_cleanup(self, transaction: Transaction) -> None:
        """Takes over a cleanup that has succeeded."""
        for name in transaction.delete_chains:
            self._unused.pop(name, None)
            self._chains.pop(name, None)


def _frontends(record: ServiceObjects | None) -> Iterator[str]:
    """The frontends of a Service. Each has an element with just its key: where it leads, or that it leads nowhere."""
    for element in record.elements if record is not None else ():
        declaration = declared(element.container)
        if declaration is not None and declaration.value == ():
            yield element.key


def _count(uses: Counter[T], changes: Counter[T]) -> None:
    for item, change in changes.items():
        uses[item] += change
        if not uses[item]:
            del uses[item]


def _callers_first(name: str) -> tuple[bool, str]:
    """Chains that go to other chains must be deleted before these."""
    return ("/external-" not in name, name)


class _Step:
    """One plan in the making."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._records: dict[ServiceKey, ServiceObjects | None] = {}
        self._element_uses: Counter[Element] = Counter()
        self._chain_uses: Counter[str] = Counter()
        self._wanted_chains: dict[str, Chain] = {}
        self._delete: list[Element] = []
        self._delete_lists: list[Element] = []
        self._add: list[Element] = []

    def change(self, key: ServiceKey, objects: ServiceObjects | None) -> None:
        old = self._holdings._records.get(key) or ServiceObjects()
        new = objects or ServiceObjects()
        if old.elements != new.elements:
            before, after = set(old.elements), set(new.elements)
            self._delete.extend(e for e in old.elements if e not in after)
            self._add.extend(e for e in new.elements if e not in before)
        if old.shared != new.shared:
            self._element_uses.subtract(old.shared)
            self._element_uses.update(new.shared)
        if old.chains != new.chains:
            self._chain_uses.subtract(chain.name for chain in old.chains)
            self._chain_uses.update(chain.name for chain in new.chains)
        self._wanted_chains.update((chain.name, chain) for chain in new.chains)
        lists = self._change_lists(old.lists, new.lists)
        self._records[key] = msgspec.structs.replace(new, lists=lists) if objects is not None else None

    def _change_lists(self, old: tuple[EndpointList, ...], new: tuple[EndpointList, ...]) -> tuple[EndpointList, ...]:
        """Element operations for all lists of a Service; gives the lists in the order that they then have."""
        before = {(each.container, each.frontend, each.base): each for each in old}
        result = []
        for each in new:
            known = before.pop((each.container, each.frontend, each.base), None)
            if known is None:
                self._add.extend(_list_element(each, i, backend) for i, backend in enumerate(each.backends))
                result.append(each)
                continue
            order = reorder(known.backends, each.backends)
            self._change_order(known, order)
            result.append(EndpointList(each.container, each.frontend, each.base, order))
        for gone in before.values():
            self._delete_lists.extend(_list_element(gone, i, backend) for i, backend in enumerate(gone.backends))
        return tuple(result)

    def _change_order(self, known: EndpointList, order: tuple[str, ...]) -> None:
        old = known.backends
        for i in range(max(len(old), len(order))):
            before = old[i] if i < len(old) else None
            after = order[i] if i < len(order) else None
            if before == after:
                continue
            if before is not None:
                self._delete.append(_list_element(known, i, before))
            if after is not None:
                self._add.append(_list_element(known, i, after))

    def plan(self) -> Plan:
        holdings = self._holdings
        for element, change in self._element_uses.items():
            count = holdings._element_uses[element]
            if not count and change > 0:
                self._add.append(element)
            elif count and count + change <= 0:
                self._delete.append(element)
        write = {name: chain for name, chain in self._wanted_chains.items() if holdings._chains.get(name) != chain}
        in_use = {name for name in write if name in holdings._chain_uses}
        late_deletes, late_adds = self._late()
        deletes = (e for e in (*self._delete, *self._delete_lists) if e not in late_deletes)
        adds = (e for e in self._add if e not in late_adds)
        transaction = Transaction(
            holdings.family,
            chains=tuple(chain for name, chain in write.items() if name in in_use),
            delete_elements=tuple(sorted(deletes, key=_container_of)),
            add_elements=tuple(sorted(adds, key=_container_of)),
        )
        return Plan(
            before=Transaction(
                holdings.family, chains=tuple(chain for name, chain in write.items() if name not in in_use)
            ),
            transaction=transaction,
            after=Transaction(
                holdings.family, delete_elements=tuple(sorted(late_deletes)), add_elements=tuple(sorted(late_adds))
            ),
            records=self._records,
            element_uses=self._element_uses,
            chain_uses=self._chain_uses,
            chains=write,
        )

    def _late(self) -> tuple[set[Element], set[Element]]:
        """What goes after the rest, and what takes its place there."""
        refusals = [e for e in self._delete if refuses(e.container)]
        restricted = [e for e in self._delete if restricts(e.container)]
        if not (refusals or restricted or self._delete_lists):
            return set(), set()
        places = {(e.container, e.key) for e in self._add}
        frontends = {_frontend(e) for e in self._add} - {""}
        served = {_frontend(e) for e in self._add if not refuses(e.container)} - {""}
        refused = {e for e in refusals if _frontend(e) in served}
        lists = {e for e in self._delete_lists if _frontend(e) in frontends and (e.container, e.key) not in places}
        opened = {_frontend(e) for e in restricted} - {_frontend(e) for e in self._add if restricts(e.container)}
        sources = {e for e in self._delete if permits(e.container) and _frontend(e) in opened}
        replaced = {(e.container, e.key) for e in refused}
        return refused | lists | sources, {e for e in self._add if (e.container, e.key) in replaced}


def _container_of(element: Element) -> str:
    return element.container


def _frontend(element: Element) -> str:
    declaration = declared(element.container)
    return frontend_of(declaration, element.key) if declaration is not None else ""


def _list_element(each: EndpointList, index: int, backend: str) -> Element:
    return Element(each.container, f"{each.frontend} . {each.base + index}", backend)
