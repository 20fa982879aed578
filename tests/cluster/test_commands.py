"""What all commands that ask a running proxyd have in common: readers that quit, ^C, and answers of another version."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.program import DEADLINE, PROXYD, Proxyd
from tests.topology import Topology

COMMANDS = {
    "status": (("status",), 1),
    "history": (("history",), 1),
    "history for programs": (("history", "-o", "json"), 1),
    "history followed": (("history", "-f"), 1),
    "explain": (("explain", "default/web"), 4),
    "drain": (("drain", "--wait", "5m"), 4),
    "plan": (("plan", "--masquerade-all", "--rules"), 4),
}
EACH = pytest.mark.parametrize(("words", "unanswered"), COMMANDS.values(), ids=list(COMMANDS))
# Somebody who has the socket of a proxyd, and sends everybody the same answer, or none.
OTHER = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind("\\0proxyd/status")
server.listen()
print("listens", flush=True)
answer, clients = os.fsencode(sys.argv[1]), []
while True:
    client = server.accept()[0]
    client.recv(65536)
    print("asked", flush=True)
    if sys.argv[2] == "answer":
        client.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(answer) + answer)
    clients.append(client)
"""


@contextmanager
def other(node: Topology, answer: bytes | None) -> Iterator[subprocess.Popen[str]]:
    """Somebody else in the place of a proxyd; ``answer`` is what everybody is told, None: it never answers."""
    words = [os.fsdecode(answer or b""), "keep silent" if answer is None else "answer"]
    process = node.start([sys.executable, "-I", "-c", OTHER, *words], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == "listens\n"
            yield process
        finally:
            process.terminate()


@EACH
def test_a_reader_that_quits_is_no_trouble(
    node: Topology, folder: Path, log: Path, words: tuple[str, ...], unanswered: int
) -> None:
    with Proxyd(node, folder, log):
        gone, output = os.pipe()
        os.close(gone)
        with os.fdopen(output, "w") as stream:
            process = node.start([PROXYD, *words], stdout=stream, stderr=subprocess.PIPE)
        assert process.communicate(timeout=DEADLINE)[1] == ""
        assert process.returncode == 128 + signal.SIGPIPE


@EACH
def test_an_interrupt_ends_it_without_a_word(node: Topology, words: tuple[str, ...], unanswered: int) -> None:
    with other(node, None) as silent:
        # Whoever runs the tests in the background has ^C ignored.
        command = ["env", "--default-signal=INT", PROXYD, *words]
        process = node.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert silent.stdout is not None
        assert silent.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=DEADLINE) == ("", "")
        assert process.returncode == 128 + signal.SIGINT


def test_a_name_that_is_too_long_for_manifests_on_top(node: Topology, folder: Path, log: Path) -> None:
    name = "a" * 256
    with Proxyd(node, folder, log):
        done = node.node.run(PROXYD, "plan", "--apply", name, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"proxyd: manifest folder {name}: File name too long\n"


@EACH
@pytest.mark.parametrize("answer", [b'{"identity": {}}', b"[]", b"", b"not JSON", b"\xff"])
def test_an_answer_of_another_version_is_no_answer(
    node: Topology, words: tuple[str, ...], unanswered: int, answer: bytes
) -> None:
    with other(node, answer):
        done = node.node.run(PROXYD, *words, check=False)
    assert (done.returncode, done.stdout) == (unanswered, "")
    assert done.stderr.startswith("proxyd: the running proxyd is of another version (")
    assert done.stderr.count("\n") == 1
