"""Named counters of the kernel in memory."""

from __future__ import annotations

import errno

NAME_LENGTH = 31


class FakeAccounting:
    """Implements ``Accounting``. ``counted`` are the counters; ``missing``: the kernel keeps none."""

    def __init__(self, *, missing: bool = False) -> None:
        self.missing = missing
        self.counted: dict[str, int] = {}

    def ensure(self, name: str) -> None:
        """See ``Accounting``."""
        if self.missing or not 0 < len(name) <= NAME_LENGTH:
            raise OSError(errno.EINVAL, "Invalid argument")
        self.counted.setdefault(name, 0)

    def packets(self, name: str) -> int | None:
        """See ``Accounting``."""
        return None if self.missing else self.counted.get(name)
