"""Where Prometheus' programs are, and the files in deploy/ that are for it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "prometheus"
CONFIGURATION, RECORDING, ALERTS = (DEPLOY / f"{name}.yaml" for name in ("prometheus", "recording", "alerts"))
DASHBOARD = ROOT / "deploy" / "grafana" / "proxyd.json"
SCRIPT = ROOT / "tools" / "prometheus.sh"


def programs() -> Path:
    """The folder of the programs. Raises ``LookupError`` that says what to do where there is none."""
    done = subprocess.run([SCRIPT, "--where"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(done.stderr.strip())
    return Path(done.stdout.strip())


def groups(file: Path) -> list[dict[str, Any]]:
    """The groups of rules in a file."""
    found: list[dict[str, Any]] = yaml.safe_load(file.read_text())["groups"]
    return found


def rules(*files: Path) -> list[dict[str, Any]]:
    """All rules of these files, recording and alerting."""
    return [rule for file in files for group in groups(file) for rule in group["rules"]]
