"""A folder of manifests that a source reads, and what tests write into it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from proxyd.kube.manifests import ManifestSource
from proxyd.kube.store import Store

DEADLINE = 30.0


def until(condition: Callable[[], bool], what: object = "") -> None:
    """Waits for a condition; fails after a time that no working machine needs."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"still waiting: {what}"
        time.sleep(0.002)


def typed(obj: dict[str, Any]) -> dict[str, Any]:
    """The object with its apiVersion and kind, as manifests have them."""
    if "addressType" in obj:
        return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", **obj}
    return {"apiVersion": "v1", "kind": "Service", **obj}


def documents(*objects: dict[str, Any]) -> str:
    return yaml.safe_dump_all([typed(obj) for obj in objects])


class Folder:
    """A folder of manifests and the source that reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = Store()
        self.source = ManifestSource(str(path), self.store, "n1")

    def write(self, name: str, text: str) -> None:
        """Replaces a file in one step, as a careful editor does."""
        new = self.path / f".{name}.new"
        new.write_text(text)
        os.replace(new, self.path / name)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.store.services.objects.copy())

    def ip(self, name: str) -> str:
        found = self.store.services.objects.get(("default", name))
        return found.cluster_ips[0] if found else ""

    def complaints(self) -> dict[str, str]:
        with self.store.lock:
            return {finding.object: finding.message for finding in self.store.unreadable.values()}
