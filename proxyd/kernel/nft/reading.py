"""Reads our table whole from the kernel: for a command that somebody waits for, never for the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proxyd.desired.endpoints import Backend
from proxyd.kernel.nft.libnftables import Library
from proxyd.kernel.nft.recording import IN_FORCE
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.nft.layout import TABLE, generation_of
from proxyd.nft.script import FAMILY_WORD
from proxyd.plan.nft_served import Affinity, Generation, Value


def read_generation(library: Library, family: Family) -> Generation | None:
    """What is in force of our table, None where nothing is. Raises ``KernelRefusedError``."""
    table = f"{FAMILY_WORD[family]} {TABLE}"
    number = generation_in_force(library, family)
    if number is None:
        return None
    prefix = f"g{number}/"
    elements: dict[str, dict[str, Value]] = {}
    affinity: dict[str, list[list[dict[str, Any]]]] = {}
    for each in library.query(f"list table {table}", terse=False):
        container = each.get("map") or each.get("set") or {}
        name = str(container.get("name", ""))
        if name.startswith(prefix):
            elements[name.removeprefix(prefix)] = {
                key: Value(value.replace(prefix, ""), comment) for key, value, comment in _elements(container)
            }
        rule = each.get("rule", {})
        if str(rule.get("chain", "")).startswith(prefix):
            affinity.setdefault(rule["chain"].removeprefix(prefix), []).append(rule["expr"])
    chains = {name: _affinity(rules) for name, rules in affinity.items()}
    return Generation(elements, {name: each for name, each in chains.items() if each.endpoints})


def generation_in_force(library: Library, family: Family) -> int | None:
    """The generation that the base chains lead to, None where there are none. Raises ``KernelRefusedError``."""
    try:
        return _in_force(library.query(f"list chain {FAMILY_WORD[family]} {TABLE} {IN_FORCE}"))
    except KernelRefusedError as error:
        if "No such file" in str(error):
            return None
        raise


def _in_force(listed: list[dict[str, Any]]) -> int | None:
    for each in listed:
        for expression in each.get("rule", {}).get("expr", ()):
            if "jump" in expression:
                return generation_of(expression["jump"]["target"])
    return None


def _elements(container: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Key, value and comment of each element."""
    is_map = "map" in container
    for each in container.get("elem", ()):
        key, value = each if is_map else (each, None)
        inner = key.get("elem", {}) if isinstance(key, dict) else {}
        yield _text(inner.get("val", key)), _value(value), str(inner.get("comment", ""))


def _value(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict) and "goto" in value:
        return f"goto {value['goto']['target']}"
    if isinstance(value, dict) and "drop" in value:
        return "drop"
    return _text(value)


def _text(part: Any) -> str:
    if isinstance(part, dict):
        if "concat" in part:
            return " . ".join(map(_text, part["concat"]))
        if "prefix" in part:
            return f"{part['prefix']['addr']}/{part['prefix']['len']}"
    return str(part)


def _affinity(rules: list[list[dict[str, Any]]]) -> Affinity:
    found, seconds = set(), 0
    for rule in rules:
        for each in rule:
            # Others translate to what a map says, and have no port here.
            if "port" in each.get("dnat", ()):
                found.add(Backend(str(each["dnat"]["addr"]), int(each["dnat"]["port"])))
            if "set" in each:
                seconds = int(each["set"]["elem"]["elem"]["timeout"])
    return Affinity(tuple(sorted(found)), seconds)
