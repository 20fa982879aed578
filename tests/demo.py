"""Shows proxyd at work: ``python -m tests.demo`` (or ``make demo``), as root; a few seconds.

A small cluster of network namespaces, the real daemon on one node of it, a folder of manifests, and real connections.
Exits 1 if anything did not behave as it should, 130 on ^C; leaves nothing behind.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import sys
import tempfile
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.program import FLAGS, Proxyd, write
from tests.scenes import BAD, BAR, CHANGES, HTTP, NODE_YAML, OURS, SCENES, SHOP, Ask, slice_yaml
from tests.topology import ADDRESSES, CLIENTS, PODS, V4, Answer, Topology


class Screen:
    """What the user sees. Colours only on a terminal; counts what was right and remembers what was wrong."""

    def __init__(self) -> None:
        self._colours = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.right = 0
        self.wrong: list[str] = []

    def paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text

    def bold(self, text: str) -> str:
        return self.paint(text, 1)

    def dim(self, text: str) -> str:
        return self.paint(text, 2)

    def say(self, text: str = "") -> None:
        print(text, flush=True)

    def title(self, text: str, right: str = "") -> None:
        self.say()
        self.say(f"{self.bold(text)}  {self.dim(right)}".rstrip())

    def verdict(self, wrong: str, what: str) -> str:
        """A mark for something that is right (``wrong`` empty) or not."""
        if not wrong:
            self.right += 1
            return self.paint("ok", 32)
        self.wrong.append(f"{what}: {wrong}")
        return self.paint(f"WRONG: {wrong}", 31)


class Demo:
    """The course of it."""

    def __init__(self, screen: Screen, world: Topology, folder: Path, proxyd: Proxyd) -> None:
        self.screen, self.world, self.folder, self.proxyd = screen, world, folder, proxyd

    def run(self) -> None:
        for scene in SCENES:
            self.screen.title(scene.title, scene.file)
            for ask in scene.asks:
                self._show(ask)
        self._refusals()
        self._changes()
        self._end()

    def _ask(self, ask: Ask) -> list[Answer]:
        return self.world.ask(ask.who, ask.ip, ask.port, ask.protocol, ask.times, timeout=ask.timeout)

    def _show(self, ask: Ask) -> None:
        started = time.monotonic()
        answers = self._ask(ask)
        each = (time.monotonic() - started) / ask.times * 1000
        counts = Counter(answer.by for answer in answers)
        target = f"[{ask.ip}]:{ask.port}" if ":" in ask.ip else f"{ask.ip}:{ask.port}"
        head = f"  {ask.who:<8}-> {target:<20} {ask.protocol} {ask.times:>4} x"
        verdict = self.screen.verdict(wrong(ask, answers), f"{ask.who} to {target}/{ask.protocol}")
        for place, (name, count) in enumerate(sorted(counts.items())):
            if name in ADDRESSES:
                bar = "#" * round(BAR * count / ask.times)
                text = f"{name} {count:>4} {self.screen.paint(f'{bar:<{BAR}}', 36)} saw {seen(ask, name, answers)}"
            else:
                text = f"{name:<9} {count:>4} x, each after {each:.1f} ms"
            end = f"  {verdict}" if place == len(counts) - 1 else ""
            self.screen.say(f"{head if place == 0 else ' ' * len(head)}  {text}{end}")

    def _refusals(self) -> None:
        self.screen.title("Services that cannot be served are refused, and harm nobody", "80-bad.yaml")
        for line in BAD.splitlines():
            self.screen.say(self.screen.dim(f"    {line}"))
        write(self.folder, "80-bad.yaml", BAD)
        for words in ("10.96.0.999", "80000", "is served for default/shop"):
            self._wait_finding(words)
        for finding in self.proxyd.events("finding"):
            self.screen.say(f"  {finding['reason']:<18} {finding['object']}: {finding['detail']}")
        self.screen.say("  the others go on:")
        self._show(Ask("pod2", "10.96.0.10", 80, ("pod1", "pod3", "pod4"), "own"))

    def _wait_finding(self, words: str) -> None:
        """Waits until proxyd has said something with these words."""
        end = time.monotonic() + 10
        while not any(words in finding["detail"] for finding in self.proxyd.events("finding")):
            if time.monotonic() > end:
                self.screen.say(self.screen.verdict("proxyd does not say so", f"refusal of {words}"))
                return
            time.sleep(0.01)

    def _changes(self) -> None:
        self.screen.title(
            f"A file changes: how long until the new endpoint answers? ({CHANGES} times)", "10-shop.yaml, renamed"
        )
        answered, written = [], []
        self.world.node.call("watch_elements")
        # The first change only gets it to one endpoint.
        for pod in ("pod4", *(("pod1", "pod3")[number % 2] for number in range(CHANGES))):
            at = write(self.folder, "10-shop.yaml", SHOP + slice_yaml("shop", HTTP, (pod,)))
            until = self.world.hosts["pod2"].call("ask_until", ip="10.96.0.10", port=80, answer=pod)
            added = self.world.node.call("endpoint_added", ip=PODS[pod].addresses[V4], port=8080, since=at)
            if not (until and added):
                self.screen.say(f"  {self.screen.verdict('not within 10 s', f'change to {pod}')}")
                return
            answered.append((until - at) * 1000)
            written.append((added - at) * 1000)
        for what, figures in (("element in the kernel", written), ("first connection answered", answered)):
            middle, most = statistics.median(figures[1:]), max(figures[1:])
            self.screen.say(f"  {what:<27} median {middle:5.1f} ms, at most {most:5.1f} ms after the rename")
        self.screen.say(f"  {self.screen.verdict('' if statistics.median(answered[1:]) < 1000 else 'slow', 'changes')}")

    def _end(self) -> None:
        self.screen.title("The end: SIGTERM, and the rules stay")
        status = self.proxyd.stop()
        self.screen.say(f"  exit status {status}  {self.screen.verdict('' if status == 0 else 'not 0', 'exit status')}")
        self._show(Ask("client1", "203.0.113.10", 80, ("pod1",), "own"))
        self.screen.title("From proxyd's own log")
        for record in self.proxyd.events():
            self._tell(record)

    def _tell(self, record: dict[str, Any]) -> None:
        if record["event"] == "finding":
            return
        time_, level = record["timestamp"][11:23], record["level"]
        hidden = {"event", "level", "logger", "timestamp"}
        fields = {key: value for key, value in record.items() if key not in hidden}
        self.screen.say(f"  {self.screen.dim(time_)} {level:<7} {record['event']}")
        words = "  ".join(f"{key}={value}".replace(" ", "\0") for key, value in fields.items())
        for line in textwrap.wrap(words, 110, break_long_words=False, break_on_hyphens=False):
            self.screen.say(self.screen.dim(f"    {line}".replace("\0", " ")))


def wrong(ask: Ask, answers: list[Answer]) -> str:
    """What is wrong with these answers; empty if nothing."""
    counts = Counter(answer.by for answer in answers)
    if strange := set(counts) - set(ask.by):
        return f"{', '.join(sorted(strange))} instead of {', '.join(ask.by)}"
    if ask.pinned:
        return "" if len(counts) == 1 else "not one endpoint"
    share = 1 / len(ask.by)
    # Six standard deviations: chance goes there once in 500 million times.
    allowed = 6 * math.sqrt(ask.times * share * (1 - share)) if len(ask.by) > 1 else 0
    if any(abs(counts[name] - ask.times * share) > allowed for name in ask.by):
        return "not even"
    own = ADDRESSES[ask.who].values()
    for source in {answer.source for answer in answers}:
        if (ask.source == "own" and source not in own) or (ask.source == "node" and source not in OURS):
            return f"source {source}"
    return ""


def seen(ask: Ask, name: str, answers: list[Answer]) -> str:
    """The source address that one endpoint saw, and what that means."""
    sources = sorted({answer.source for answer in answers if answer.by == name})
    if len(sources) > 1:
        return ", ".join(sources)
    (source,) = sources
    if source in ADDRESSES[ask.who].values() and ask.who != "node":
        return f"{source} (kept)"
    return f"{source} (the node)" if source in OURS else source


def main() -> int:
    """Runs the demo; gives the exit status."""
    if os.geteuid():
        print("demo: needs root: it makes network namespaces (sudo make demo)", file=sys.stderr)
        return 1
    # A kill is to clean up as ^C does; and ^C must do so where we were started with it ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    screen = Screen()
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="proxyd-demo-") as temporary, Topology() as world:
            folder = Path(temporary, "manifests")
            folder.mkdir()
            write(folder, "00-node.yaml", NODE_YAML)
            for scene in SCENES:
                write(folder, scene.file, scene.manifest)
            introduce(screen, folder)
            with Proxyd(world, folder, Path(temporary, "log")) as proxyd:
                Demo(screen, world, folder, proxyd).run()
    except KeyboardInterrupt:
        screen.say("\nstopped; everything is cleaned up")
        return 130
    except Exception as error:  # noqa: BLE001 - whatever it is, the user gets one message
        print(f"\ndemo: failed: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    screen.say()
    seconds = time.monotonic() - started
    if screen.wrong:
        screen.say(screen.paint(f"{len(screen.wrong)} of {screen.right + len(screen.wrong)} checks failed:", 31))
        for each in screen.wrong:
            screen.say(f"  {each}")
        return 1
    screen.say(
        screen.paint(f"All {screen.right} checks passed", 32) + f" in {seconds:.1f} s; everything is cleaned up."
    )
    return 0


def introduce(screen: Screen, folder: Path) -> None:
    """Says what is there."""
    screen.say(screen.bold("proxyd, on a node made of network namespaces"))
    for where, names in (("node1", ("node", "pod1", "pod2")), ("node2", ("pod3", "pod4")), ("outside", tuple(CLIENTS))):
        hosts = "  ".join(f"{name} {ADDRESSES[name][V4]}" for name in names)
        screen.say(f"  {where:<8} {hosts}")
    screen.say(screen.dim(f"  proxyd run --manifests {folder} {' '.join(FLAGS)}"))


if __name__ == "__main__":
    sys.exit(main())
