"""Debian's Prometheus, and what is shipped for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prometheus.programs import programs


@pytest.fixture(scope="session")
def found() -> Path:
    """The folder that has prometheus and promtool; skips where there is none."""
    try:
        return programs()
    except LookupError as missing:
        pytest.skip(str(missing))
