"""Metrics as they are scraped, by what dashboards and rules depend on: names, types, labels, bucket bounds."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families


class Shape(NamedTuple):
    """What is fixed about a metric. ``bounds`` are those of its buckets, as they are written."""

    kind: str
    labels: frozenset[str] = frozenset()
    bounds: tuple[str, ...] = ()


def shapes(text: str) -> dict[str, Shape]:
    """The metrics of a page in the text format that have a series, by the name in its TYPE line."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        bounds = [sample.labels["le"] for sample in family.samples if "le" in sample.labels]
        if family.samples:
            found[name] = Shape(family.type, frozenset(labels - {"le"}), tuple(dict.fromkeys(bounds)))
    return found


def value(text: str, name: str, **labels: str) -> float:
    """The sum of all samples of that name that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
