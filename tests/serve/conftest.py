"""What tests of servers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.relays import Node


@pytest.fixture
def relaying() -> Iterator[Node]:
    """A node that relays its node ports on localhost; it has ended after the test."""
    node = Node()
    yield node
    node.server.stop()
