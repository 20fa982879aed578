"""The documents speak of tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_troubles_names_is_there() -> None:
    text = (ROOT / "docs" / "troubles.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]+)::(test_\w+)`", text))
    scenarios = set(re.findall(r"`([a-z0-9-]+)\.yaml`", text))
    missing = [f"{file}::{name}" for file, name in named if not _defines(ROOT / "tests" / f"{file}.py", name)]
    missing += [each for each in scenarios if not (ROOT / "tests" / "scenarios" / f"{each}.yaml").exists()]
    assert len(named) > 50
    assert not missing


def _defines(path: Path, name: str) -> bool:
    return path.exists() and re.search(rf"^ *def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE) is not None
