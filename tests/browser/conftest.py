"""One Chromium for all tests here; each has a tab of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, program


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Skips where there is none. Gone after these tests: open pages ask on and on, and others here count memory."""
    try:
        program()
    except LookupError as missing:
        pytest.skip(str(missing))
    with Browser(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running
