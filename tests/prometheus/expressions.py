"""Expressions in rules and in the dashboard: which metrics they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.prometheus.programs import ALERTS, DASHBOARD, RECORDING, rules

# The panels that have data only where there is an API server.
OF_AN_API_SERVER = {"Watch age", "Watches open", "Watch errors and lists", "Requests", "Request duration", "Clock"}
WORDS = {"and", "or", "unless", "bool", "offset"}


class Query(NamedTuple):
    """A query of the dashboard."""

    panel: str
    expression: str


def dashboard() -> dict[str, Any]:
    """The dashboard as it is shipped."""
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def queries() -> list[Query]:
    """All queries of the dashboard, with variables as they are."""
    panels = [panel for panel in dashboard()["panels"] if panel["type"] != "row"]
    return [Query(panel["title"], target["expr"]) for panel in panels for target in panel["targets"]]


def filled_in(expression: str, node: str = ".*") -> str:
    """A query as Grafana sends it."""
    return expression.replace("$node", node).replace("$__rate_interval", "10m")


def recorded() -> set[str]:
    """The names that the recording rules give."""
    return {rule["record"] for rule in rules(RECORDING)}


def expressions() -> Iterator[str]:
    """All expressions of rules and dashboard."""
    yield from (rule["expr"] for rule in rules(RECORDING, ALERTS))
    yield from (query.expression for query in queries())


def metrics_in(expression: str) -> set[str]:
    """The names of series that an expression asks for; works for as much of PromQL as is used here."""
    rest = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', " ", expression)
    rest = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", rest)
    # What is left are numbers, operators, functions (a parenthesis follows) and names.
    names = set(re.findall(r"(?<![\w.:])([a-zA-Z_:][\w:]*)(?!\s*\()(?![\w:])", rest))
    return names - WORDS
