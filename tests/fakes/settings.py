"""Settings of a kernel in memory: numbers by path, some of them read-only or missing, as in a container."""

from __future__ import annotations

import errno
import os


class FakeFiles:
    """Implements ``SettingFiles``. Refuses what the real one refuses, with the same errors."""

    def __init__(self, values: dict[str, int]) -> None:
        self.values = dict(values)
        self.read_only: set[str] = set()
        self.written: list[tuple[str, int]] = []

    def read(self, path: str) -> int:
        if path not in self.values:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.values[path]

    def write(self, path: str, value: int) -> None:
        self.read(path)
        if path in self.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        self.values[path] = value
        self.written.append((path, value))
