"""Compares an answer of explain with this kernel: its rules, as they are, and the connections that it tracks.

For a command that somebody waits for, never for the daemon: reading may take a second on a node with many rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from proxyd.desired.conflicts import FrontendKey
from proxyd.explain.answer import Connections, Element, EndpointSet, Explanation, Verified, Written
from proxyd.ipt.objects import ChainName, Table
from proxyd.ipt.saved import read, unordered
from proxyd.kernel.conntrack import Conntrack
from proxyd.kernel.flows import FlowsError
from proxyd.kernel.ipt.iptables import Iptables, IptablesRefusedError, IptablesUnavailableError
from proxyd.kernel.nft.counters import CountersError, NetlinkCounters
from proxyd.kernel.nft.libnftables import Library
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft.layout import LOCAL_BASE, TABLE, generation_of

_FAMILY = {Family.IPV4: "ip", Family.IPV6: "ip6"}
_ELEMENT = re.compile(r"elements = \{ [^}]*?(?: : ([^}]*?))? \}")


class CannotVerifyError(Exception):
    """The kernel cannot be asked; the text says why."""


class Reader(Protocol):
    """The rules of one mode in one family."""

    def differences(self, written: Written) -> Iterator[str]:
        """What is not as it must be, in words. Raises ``CannotVerifyError``."""


def verify(told: Explanation, written: Written, reader: Reader) -> Verified:
    """Compares rules, and looks whose the tracked connections to the destination are. Raises ``CannotVerifyError``."""
    compared = len(written.elements) + len(written.lists) + len(written.dispatch) + len(written.chains)
    return Verified(compared, tuple(reader.differences(written)), tuple(_connections(told)))


def _connections(told: Explanation) -> Iterator[Connections]:
    asked = told.asked
    if asked.protocol == "sctp":
        return
    key = FrontendKey(asked.destination, asked.protocol, asked.port)
    chosen = {(each.address, each.port) for each in told.endpoints}
    try:
        counts = Conntrack().answered_by(told.family, key)
    except FlowsError as error:
        raise CannotVerifyError(f"tracked connections: {error}") from error
    for backend, count in sorted(counts.items()):
        yield Connections(*backend, count, tuple(backend) in chosen)


class NftReader:
    """Our nftables table, in the namespace of the thread that makes it."""

    def __init__(self, family: Family) -> None:
        self._family, self._library, self._counters = family, Library(), NetlinkCounters()

    def differences(self, written: Written) -> Iterator[str]:
        """See ``Reader``."""
        try:
            generation = self._generation()
            if generation is None:
                yield "nftables has no rules of proxyd in force"
                return
            for element in written.elements:
                yield from self._element(generation, element)
            for each in written.lists:
                yield from self._list(generation, each)
        except (KernelRefusedError, CountersError) as error:
            raise CannotVerifyError(f"nftables: {error}") from error

    def _generation(self) -> int | None:
        """The generation that the base chains lead to."""
        try:
            for rule in self._rules("nat-prerouting"):
                for expression in rule:
                    if "jump" in expression:
                        return generation_of(expression["jump"]["target"])
        except KernelRefusedError as error:
            if "No such file" not in str(error):
                raise
        return None

    def _rules(self, chain: str) -> list[list[dict[str, Any]]]:
        listed = self._library.query(f"list chain {_FAMILY[self._family]} {TABLE} {chain}")
        return [each["rule"]["expr"] for each in listed if "rule" in each]

    def _element(self, generation: int, element: Element) -> Iterator[str]:
        where = f"g{generation}/{element.container}"
        said = self._library.element(_FAMILY[self._family], TABLE, where, element.key)
        found = None
        if said is not None and (match := _ELEMENT.search(said)):
            found = (match[1] or "").replace(f"g{generation}/", "")
        if found != element.value:
            yield f"{where}: {element.key} is {_shown(found)}, and should be {_shown(element.value)}"

    def _list(self, generation: int, wanted: EndpointSet) -> Iterator[str]:
        if wanted.container.startswith("chain "):
            name = wanted.container.removeprefix("chain ")
            found = {_dnat(each) for rule in self._rules(f"g{generation}/{name}") for each in rule if "dnat" in each}
        else:
            found = self._endpoints(generation, wanted)
        for each in sorted(set(wanted.values) - found):
            yield f"g{generation}/{wanted.container}: {each} is missing for {wanted.frontend}"
        for each in sorted(found - set(wanted.values)):
            yield f"g{generation}/{wanted.container}: {each} is there for {wanted.frontend}, and should not be"

    def _endpoints(self, generation: int, wanted: EndpointSet) -> set[str]:
        counts = self._counters.endpoints(self._family, generation, wanted.frontend, len(wanted.values) + 1)
        return {
            f"{each.endpoint.address} . {each.endpoint.port}"
            for each in counts
            if (each.place >= LOCAL_BASE) == (wanted.base >= LOCAL_BASE)
        }


class IptReader:
    """The rules of one family in one backend of iptables."""

    def __init__(self, tools: Iptables, family: Family) -> None:
        self._tools, self._family = tools, family

    def differences(self, written: Written) -> Iterator[str]:
        """See ``Reader``."""
        try:
            contents = read(line for table in (Table.NAT, Table.FILTER) for line in self._tools.save(table))
        except (IptablesRefusedError, IptablesUnavailableError) as error:
            raise CannotVerifyError(f"iptables: {error}") from error
        for chain in written.chains:
            name = ChainName(Table(chain.table), chain.chain)
            if name not in contents.chains:
                yield f"{chain.table} {chain.chain}: the chain is missing"
            elif _comparable(contents.rules(name)) not in (_comparable(chain.rules), _comparable(chain.plain)):
                yield f"{chain.table} {chain.chain}: its rules are not: {' | '.join(chain.rules)}"
        for rule in written.dispatch:
            if unordered(rule.text) not in _comparable(contents.rules(ChainName(Table(rule.table), rule.chain))):
                yield f"{rule.table} {rule.chain}: missing: {rule.text}"


def _comparable(rules: Iterable[str]) -> list[int]:
    return list(map(unordered, rules))


def _dnat(expression: dict[str, Any]) -> str:
    return f"{expression['dnat'].get('addr')} . {expression['dnat'].get('port')}"


def _shown(value: str | None) -> str:
    return "missing" if value is None else f'"{value}"' if value else "there"
