"""Metrics of the table of connections, as a scrape sees them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from proxyd.kernel.surroundings import Tracking
from proxyd.serve.tracking import TrackingCollector


def scraped(tracking: Tracking | None) -> list[str]:
    registry = CollectorRegistry()
    registry.register(TrackingCollector(lambda: tracking))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_how_full_the_table_is() -> None:
    assert scraped(Tracking(7, 65536)) == ["proxyd_conntrack_entries 7.0", "proxyd_conntrack_entries_limit 65536.0"]


def test_where_nothing_is_tracked_there_is_no_number_rather_than_a_wrong_one() -> None:
    assert scraped(None) == []
