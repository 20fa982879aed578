"""The page about explain shows what explain says, and names all that it can say."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from proxyd.desired.endpoints import LeftOut
from proxyd.explain.answer import Source, Verdict

PAGE = (Path(__file__).parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```\n\$ proxyd explain ([^\n]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = re.search(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    (tmp_path / "all.yaml").write_text(found[1], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(("words", "shown"), EXAMPLES, ids=[words for words, _ in EXAMPLES])
def test_each_example_is_what_is_said(words: str, shown: str, folder: Path) -> None:
    flags = ["--manifests", str(folder), "--hostname-override", "node1", "--cluster-cidr", "10.244.0.0/16"]
    command = [sys.executable, "-m", "proxyd", "explain", *shlex.split(words), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    # That this host is another one is said, and is of no interest there.
    assert (done.stdout.partition("\nnote: ")[0], done.stderr) == (shown, "")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 5


@pytest.mark.parametrize("word", [*Verdict, *Source, *LeftOut])
def test_everything_that_can_be_said_is_on_the_page(word: str) -> None:
    assert f"`{word}`" in PAGE
