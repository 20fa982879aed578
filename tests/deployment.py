"""What deploy/ ships, read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DAEMON_SET = DEPLOY / "daemonset.yaml"
CLEANUP = DEPLOY / "cleanup.yaml"
METRICS_SERVICE = DEPLOY / "prometheus" / "service.yaml"
POD_MONITOR = DEPLOY / "prometheus" / "podmonitor.yaml"


def objects(file: Path) -> list[dict[str, Any]]:
    """All objects of a file."""
    return list(yaml.safe_load_all(file.read_text()))


def one(kind: str, file: Path = DAEMON_SET) -> dict[str, Any]:
    """The only object of a kind in a file."""
    [found] = [each for each in objects(file) if each["kind"] == kind]
    return found


def pod(file: Path = DAEMON_SET) -> dict[str, Any]:
    """The spec of a DaemonSet's Pods."""
    spec: dict[str, Any] = one("DaemonSet", file)["spec"]["template"]["spec"]
    return spec


def proxyd_container() -> dict[str, Any]:
    """The container that stays."""
    [found] = pod()["containers"]
    return dict(found)
