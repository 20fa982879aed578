"""What holds for all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from structlog.testing import LogCapture

from proxyd.kernel.ipt.lock import VARIABLE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", action="store_true", help="write the pictures of the status page in docs/ anew")


def pytest_configure() -> None:
    """The legacy tools of a run have a lock of their own: that of the machine has nothing to do with our namespaces."""
    lock = Path(tempfile.gettempdir(), f"proxyd-tests-{os.getpid()}.lock")
    os.environ.setdefault(VARIABLE, str(lock))


def pytest_unconfigure() -> None:
    """Takes it away."""
    lock = Path(os.environ.get(VARIABLE, ""))
    if lock.name == f"proxyd-tests-{os.getpid()}.lock":
        lock.unlink(missing_ok=True)


@pytest.fixture
def log() -> Iterator[LogCapture]:
    """What is logged in this process meanwhile, event by event."""
    captured = LogCapture()
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[captured])
    yield captured
    structlog.configure(processors=before)
