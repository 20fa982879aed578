"""What the rules of iptables mode do with each frontend, read off what the tools print; kube-proxy's rules too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.endpoints import Backend
from proxyd.ipt import names
from proxyd.ipt.objects import DROP, REJECT, ChainName, Table
from proxyd.ipt.saved import Contents
from proxyd.plan.served import Effect, Served, Serving, backends, client_ranges

_WORD = re.compile(r'"[^"]*"|\S+')
_REFUSALS = (names.SERVICES, names.EXTERNAL_SERVICES)
Words = Mapping[str, str]


def serving(contents: Contents) -> Serving:
    """What is done with each frontend."""
    return _Reader(contents).serving()


class _Reader:
    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._lists: dict[str, tuple[tuple[Backend, ...], int]] = {}

    def serving(self) -> dict[FrontendKey, Served]:
        found: dict[FrontendKey, Served] = {}
        for chain in _REFUSALS:
            for rule in self._rules(Table.FILTER, chain):
                if rule.get("-j") in (REJECT, DROP):
                    effect = Effect.REJECTED if rule["-j"] == REJECT else Effect.DROPPED
                    found[_frontend(rule)] = Served(_port(rule), effect)
        # What is translated counts: where policy Local has no endpoint here, some are refused and others are not.
        for chain in (names.SERVICES, names.NODE_PORTS):
            for rule in self._rules(Table.NAT, chain):
                if rule.get("-j", "").startswith(names.PREFIXES) and "--nfacct-name" not in rule:
                    found[_frontend(rule)] = self._served(rule)
        return found

    def _served(self, rule: Words) -> Served:
        target, sources = rule["-j"], None
        if target.startswith(names.SOURCES):
            rules = [each for each in self._rules(Table.NAT, target) if "-j" in each]
            # The tools do not print a range that everybody is in.
            sources = client_ranges(each.get("-s", _everybody(rule)) for each in rules)
            target = names.EXTERNAL + target.removeprefix(names.SOURCES)
        if not target.startswith(names.EXTERNAL):
            endpoints, seconds = self._endpoints(target)
            return Served(_port(rule), Effect.FORWARDED, endpoints, (), sources, seconds)
        effect, cluster, local = self._external(target)
        (endpoints, seconds), (near, also) = self._endpoints(cluster), self._endpoints(local)
        return Served(_port(rule), effect, endpoints, near, sources, seconds or also)

    def _external(self, chain: str) -> tuple[Effect, str, str]:
        """The effect of a chain for what comes from outside, and its chains of endpoints: anywhere and here."""
        cluster = local = ""
        split = False
        for rule in self._rules(Table.NAT, chain):
            split = split or "--src-type" in rule
            if rule.get("-j", "").startswith(names.SERVICE):
                cluster = rule["-j"]
            elif rule.get("-j", "").startswith(names.LOCAL):
                local = rule["-j"]
        if not split:
            return Effect.EXTERNAL, cluster, local
        return Effect.EXTERNAL_LOCAL if local else Effect.EXTERNAL_NO_LOCAL, cluster, local

    def _endpoints(self, chain: str) -> tuple[tuple[Backend, ...], int]:
        if not chain:
            return (), 0
        if chain not in self._lists:
            self._lists[chain] = self._read_endpoints(chain)
        return self._lists[chain]

    def _read_endpoints(self, chain: str) -> tuple[tuple[Backend, ...], int]:
        found: list[Backend] = []
        seconds = 0
        for rule in self._rules(Table.NAT, chain):
            if rule.get("-j", "").startswith(names.ENDPOINT):
                seconds = int(rule.get("--seconds", seconds))
                for each in self._rules(Table.NAT, rule["-j"]):
                    if to := each.get("--to-destination"):
                        address, _, port = to.rpartition(":")
                        found.append(Backend(address.strip("[]"), int(port)))
        return backends(found), seconds

    def _rules(self, table: Table, chain: str) -> Iterator[Words]:
        return map(_words, self._contents.rules(ChainName(table, chain)))


def _words(rule: str) -> Words:
    """Options and their values ("" where they have none); of ``-m`` the last."""
    found: dict[str, str] = {}
    option = ""
    for word in _WORD.findall(rule):
        if word[0] == "-":
            option = word
            found[option] = ""
        elif option:
            found[option] = word.strip('"')
    return found


def _frontend(rule: Words) -> FrontendKey:
    # Rules that meet a node port have no destination of their own.
    address = rule.get("-d", "").partition("/")[0]
    return FrontendKey(address, rule.get("-p", ""), int(rule.get("--dport", "0")))


def _port(rule: Words) -> str:
    """The ServicePort: the first word of the comment, fit to be told (of others' comments not every byte is)."""
    return rule.get("--comment", "").partition(" ")[0].encode(errors="surrogateescape").decode(errors="replace")


def _everybody(rule: Words) -> str:
    return "::/0" if ":" in rule.get("-d", "") else "0.0.0.0/0"
