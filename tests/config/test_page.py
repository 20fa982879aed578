"""The page about the configuration speaks of every field and flag, and of none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxyd.config import Document
from proxyd.config.effects import NOT_YET, WITHOUT_EFFECT
from proxyd.config.flags import FLAGS
from proxyd.config.leftovers import LEFTOVER_SWITCHES, LEFTOVER_VALUES
from proxyd.config.schema import leaves
from proxyd.config.usage import usage
from proxyd.config.validate import FEATURE_GATES

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]
FIELDS = [path for path, _ in leaves(Document())]


def row_of(field: str) -> str:
    names = [f"`{field}`", *(f"`{field[:at]}.*`" for at in range(len(field)) if field[at] == ".")]
    found = [row for row in ROWS if any(name in row.split("|")[1] for name in names)]
    assert len(found) == 1, f"{field} has {len(found)} rows"
    return found[0]


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_has_its_row(field: str) -> None:
    row = row_of(field)
    idle = any(field == each or field.startswith(f"{each}.") for each in WITHOUT_EFFECT)
    assert (PAGE.index(row) > PAGE.index("## Without effect")) == idle
    assert (row.rstrip("| ").rpartition("|")[2].strip() == "not yet") == (field in NOT_YET)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_flag_stands_beside_its_field_and_in_the_help(flag) -> None:  # type: ignore[no-untyped-def]
    rows = {row_of(path) for path in flag.paths} or set(ROWS)
    assert any(f"`{flag.name}`" in row for row in rows)
    assert re.search(rf"^ .*{re.escape(flag.name)}\b", usage(), re.MULTILINE)


def test_no_flag_is_spoken_of_that_there_is_not() -> None:
    known = {flag.name for flag in FLAGS} | {*LEFTOVER_SWITCHES, *LEFTOVER_VALUES}
    spoken = set(re.findall(r"`(--[a-z0-9-]+)`", PAGE)) - {"--flag"}
    assert spoken <= known


def test_what_is_called_idle_are_fields() -> None:
    assert set(NOT_YET) <= set(FIELDS)
    for each in WITHOUT_EFFECT:
        assert each in FIELDS or any(field.startswith(f"{each}.") for field in FIELDS)


def test_it_explains_every_feature_gate() -> None:
    (row,) = (line for line in PAGE.splitlines() if line.startswith("| `featureGates` |"))
    assert [each for each in sorted(FEATURE_GATES) if f"`{each}`" not in row] == []
