"""What the commands make of their words: one line where they are wrong, whatever is wrong with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from proxyd.asking import read_line
from proxyd.errors import UserError

NODE = ("--hostname-override", "node1", "--cluster-cidr", "10.244.0.0/16")
# A name that is longer than names can be.
LONG = "a" * 256
SWITCHES = {"--verify": True, "--rules": True}


def run(*words: str | bytes) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "proxyd", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    "words",
    [
        ("status", b"\xff"),
        ("history", b"shop/w\xffb"),
        ("drain", b"shop/w\xffb"),
        ("explain", b"shop/w\xffb"),
        ("explain", "--from", "10.244.1.2", "--to", "10.96.0.1:80", "--interface", b"\xff"),
        ("plan", "--manifests", ".", "--hostname-override", b"\xff"),
    ],
    ids=lambda words: words[0],
)
def test_words_that_are_no_text_are_refused(words: tuple[str | bytes, ...]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    shown = "shop/w\\xffb" if b"shop/w\xffb" in words else "\\xff"
    assert done.stderr == f"proxyd: arguments must be UTF-8, got {shown}\n"


@pytest.mark.parametrize("words", [("explain", "default/web"), ("plan",)], ids=["explain", "plan"])
def test_a_name_that_is_too_long_for_a_folder(words: tuple[str, ...]) -> None:
    done = run(*words, "--manifests", LONG, *NODE)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"proxyd: manifest folder {LONG}: File name too long\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_folder_that_may_not_be_searched(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.mkdir(0o700)
    (path / "dump.yaml").write_text("kind: List")
    script = (
        "import os, sys; from proxyd import cli, explaining; import proxyd.kube.manifests; os.setgroups([]); "
        "os.setuid(65534); sys.exit(cli.main(sys.argv[1:]))"
    )
    words = ["explain", "default/web", "--manifests", str(path / "dump.yaml"), *NODE]
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"proxyd: manifest folder {path / 'dump.yaml'}: Permission denied\n"


@pytest.mark.parametrize(("text", "on"), [("=1", True), ("=T", True), ("=true", True), ("", True), ("=F", False)])
def test_own_switches_are_read_like_those_of_run(text: str, on: bool) -> None:
    assert read_line([f"--verify{text}"], SWITCHES).switches == {"--verify": on, "--rules": False}


def test_a_switch_that_is_neither_on_nor_off_is_refused_with_all_else() -> None:
    with pytest.raises(UserError) as caught:
        read_line(["--verify=maybe", "--rules=", "--no-such-flag"], SWITCHES)
    assert str(caught.value).splitlines() == [
        "--no-such-flag: unknown flag",
        '--verify: must be true or false, got "maybe"',
        '--rules: must be true or false, got ""',
    ]


def test_flags_with_which_run_does_not_run_are_refused() -> None:
    with pytest.raises(UserError) as caught:
        read_line(["--cleanup", "--write-config-to", "file", "--rules", "--init-only=false"], SWITCHES)
    assert str(caught.value).splitlines() == [
        "--cleanup: goes with the command run only",
        "--init-only: goes with the command run only",
        "--write-config-to: goes with the command run only",
    ]


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("history", "--help"), ("plan", "--help"), ("drain", "--no-such-flag")]
)
def test_a_reader_that_quits_is_no_trouble(words: tuple[str, ...]) -> None:
    gone, output = os.pipe()
    os.close(gone)
    wrong = "--no-such-flag" in words
    with os.fdopen(output, "w") as stream:
        command = [sys.executable, "-m", "proxyd", *words]
        done = subprocess.run(
            command, stdout=stream, stderr=stream if wrong else subprocess.PIPE, text=True, check=False, timeout=120
        )
    assert (done.returncode, done.stderr or "") == (128 + signal.SIGPIPE, "")
