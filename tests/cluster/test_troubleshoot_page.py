"""The cases of the page about troubles are played, and its commands say what it shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import PROXYD, Proxyd, until, write
from tests.topology import Topology

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshoot.md").read_text(encoding="utf-8")
CASES = dict(re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCKS = re.compile(r"^```(yaml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^\$ ([^\n]+)\n(.*?)(?=^\$ |\Z)", re.MULTILINE | re.DOTALL)
# What is another one each time: points in time, how long things took, numbers of changes, ports of clients.
VARYING = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z|#\d+|\b\d+(\.\d+)? m?s\b")


def steps(case: str) -> Iterator[tuple[str, str, str]]:
    """What a case does: ``("file", name, content)`` and ``("command", words, output)``."""
    for kind, text in BLOCKS.findall(CASES[case]):
        if kind == "yaml":
            named = re.match(r"# (\S+)\n", text)
            assert named is not None, text
            yield "file", named[1], text
        else:
            yield from (("command", words, shown) for words, shown in COMMANDS.findall(text))


def said(node: Topology, words: str) -> str:
    """What a command of the page prints on the node."""
    program, *rest = shlex.split(words)
    command = node.node.command(PROXYD if program == "proxyd" else program, *rest)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


def alike(one: str, other: str) -> bool:
    return VARYING.sub("?", one) == VARYING.sub("?", other)


@pytest.mark.parametrize("case", CASES)
def test_each_case_is_as_it_is_told(
    case: str, node: Topology, folder: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "web.yaml").unlink()
    with Proxyd(node, folder, log):
        for kind, name, text in steps(case):
            if kind == "file":
                (tmp_path / name).parent.mkdir(exist_ok=True)
                write(tmp_path / Path(name).parent, Path(name).name, text)
                continue
            # A file that was written just now is taken up in its own time.
            output = ""

            def as_shown(name: str = name, text: str = text) -> bool:
                nonlocal output
                output = said(node, name)
                return alike(output, text)

            try:
                until(as_shown, name, deadline=10, every=0.3)
            except TimeoutError:
                assert output == text, name


def test_there_are_cases() -> None:
    assert len(CASES) > 4
    assert all(any(kind == "command" for kind, _, _ in steps(case)) for case in CASES)
