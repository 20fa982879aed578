"""The real proxyd as a program on the node of a topology, fed from a folder of manifests or from an API server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.topology import Host

# What is tested is this checkout, or for `make image-test` what an image has.
PROXYD = os.environ.get("PROXYD_PROGRAM", str(Path(sys.executable).with_name("proxyd")))
CLUSTER_CIDR = "10.244.0.0/16,fd00:10:244::/48"
FLAGS = ("--proxy-mode", "nftables", "--hostname-override", "node1", "--cluster-cidr", CLUSTER_CIDR)
HEALTH_PORT = 10256
# Longer than anything takes on a working machine, however busy.
DEADLINE = 30.0


def until(condition: Callable[[], object], what: str, deadline: float = DEADLINE, every: float = 0.005) -> None:
    """Waits for a condition, and looks at it ``every`` so many seconds.

    Raises ``TimeoutError``, naming ``what``, where it does not come.
    """
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {deadline:g} s: {what}")
        time.sleep(every)


def write(folder: Path, name: str, text: str) -> float:
    """Replaces a file in one step, as a careful editor does; gives the time of that (Unix)."""
    hidden = folder / f".{name}"
    hidden.write_text(text)
    at = time.time()
    os.replace(hidden, folder / name)
    return at


class Place(Protocol):
    """Where a proxyd can run: on the node of a topology, or in another namespace."""

    @property
    def node(self) -> Host:
        """That namespace."""

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a program there."""


class Proxyd:
    """A running proxyd. A context manager: it has ended after it, by force if it must be."""

    def __init__(
        self, place: Place, folder: Path | None, log: Path, *more: str, flags: Sequence[str] = FLAGS, wait: bool = True
    ) -> None:
        """Starts it, and waits until it says that it is healthy (all rules are written) unless told not to.

        ``folder`` has the manifests; without one, ``more`` says where the API server is.
        """
        self._place = place
        self._log = log
        source = ["--manifests", str(folder)] if folder else []
        words = [PROXYD, "run", *source, *flags, "--logging-format", "json", *more]
        with log.open("a") as stream:
            self.process = place.start(words, stdout=stream, stderr=stream)
        if wait:
            try:
                self.wait_healthy()
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def get(self, path: str, port: int = HEALTH_PORT, host: str = "127.0.0.1") -> tuple[int, str]:
        """Fetches a page from it, on the node; status 0 where nobody answers."""
        status, body = self._place.node.call("http_get", host=host, port=port, path=path)
        return status, body

    def wait_healthy(self) -> None:
        """Waits until all rules are written."""

        def healthy() -> bool:
            if self.process.poll() is not None:
                raise ChildProcessError(f"proxyd ended with {self.process.returncode}:\n{self.output()}")
            return self.get("/healthz")[0] == 200

        until(healthy, f"healthy; its log:\n{self.output()}")

    def output(self) -> str:
        """All that it has written."""
        return self._log.read_text()

    def events(self, event: str = "", **fields: Any) -> list[dict[str, Any]]:
        """The events in its log that have this name and these fields."""
        found = []
        for line in self.output().splitlines(keepends=True):
            if line.startswith("{") and line.endswith("}\n"):
                record = json.loads(line)
                wanted = {"event": event, **fields} if event else fields
                if wanted.items() <= record.items():
                    found.append(record)
        return found

    def wait_event(self, event: str, **fields: Any) -> dict[str, Any]:
        """Waits for an event in its log and gives it."""
        until(lambda: self.events(event, **fields), f"event {event} {fields} in\n{self.output()}")
        return self.events(event, **fields)[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to end and gives its exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def close(self) -> None:
        """Ends it, if it has not ended."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
