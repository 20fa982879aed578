"""The configuration file is followed: what counts as a change, and what becomes of each kind of it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from proxyd.config import Config, load
from proxyd.config import watch as module
from proxyd.config.watch import ConfigWatch
from proxyd.errors import UserError
from proxyd.model import Reason
from tests.config.support import HEAD, flags

FIRST = f"{HEAD}clusterCIDR: 10.0.0.0/8\n"
OTHER = f"{HEAD}clusterCIDR: 10.0.0.0/9\nmode: nftables\n"
NONSENSE = f"{HEAD}clusterCIDR: 10.0.0.0/99\noomScoreAdj: 5000\n"


class Running:
    """A configuration in force and the watch over its file, looked at step by step."""

    def __init__(self, path: Path, *words: str) -> None:
        self.path = path
        self.line = flags(f"--config={path}", *words)
        self.told = 0
        self.ended = threading.Event()
        self.refuse = ""
        config = load(self.line)
        self.watch = ConfigWatch(str(path), config, self.read, self.check, self.ended.set, self.attention)

    def read(self) -> Config:
        return load(self.line)

    def check(self, _new: Config) -> None:
        if self.refuse:
            raise UserError(self.refuse)

    def attention(self) -> None:
        self.told += 1

    def look(self) -> bool:
        """Enough looks for whatever has been written; tells whether it is time to end."""
        return any(self.watch.look() for _ in range(3))

    def problems(self) -> list[str]:
        return [finding.message for finding in self.watch.findings]


@pytest.fixture
def running(tmp_path: Path) -> Running:
    path = tmp_path / "config.yaml"
    path.write_text(FIRST)
    return Running(path)


def test_nothing_changes_nothing(running: Running) -> None:
    with capture_logs() as logs:
        assert not running.look()
    assert (running.problems(), running.told, logs) == ([], 0, [])


@pytest.mark.parametrize(
    "text",
    [
        FIRST,
        f"# a comment\n{FIRST}",
        f"{FIRST}mode: nftables\ndetectLocalMode: ClusterCIDR\nhealthzBindAddress: ''\n",
        FIRST.replace("10.0.0.0/8", "10.1.2.3/8"),
        f"{FIRST}unknownField: 1\nenableProfiling: true\n",
    ],
)
def test_what_means_the_same_changes_nothing(running: Running, text: str) -> None:
    running.path.write_text(text)
    assert not running.look()
    assert running.problems() == []


def test_another_configuration_ends_it_and_is_named_field_by_field(running: Running) -> None:
    running.look()
    running.path.write_text(OTHER)
    with capture_logs() as logs:
        assert running.look()
    (event,) = logs
    assert event["changed"] == "clusterCIDR"
    assert running.problems() == []


def test_what_changed_before_the_first_look_is_noticed(running: Running) -> None:
    running.path.write_text(OTHER)
    assert running.look()


def test_a_flag_that_beats_the_file_makes_its_field_the_same(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{HEAD}hostnameOverride: a\nlogging: {{verbosity: 1}}\n")
    running = Running(path, "--hostname-override=b", "--v=2")
    path.write_text(f"{HEAD}hostnameOverride: c\nlogging: {{verbosity: 3}}\n")
    assert not running.look()


def test_nonsense_is_told_once_problem_by_problem_and_changes_nothing(running: Running) -> None:
    running.path.write_text(NONSENSE)
    with capture_logs() as logs:
        assert not running.look()
        assert not running.look()
    assert [event["problem"].partition(":")[0] for event in logs] == ["oomScoreAdj", "clusterCIDR"]
    (finding,) = running.watch.findings
    assert (finding.kind, finding.reason) == ("KubeProxyConfiguration", Reason.CONFIGURATION_REFUSED)
    assert finding.object == str(running.path)
    assert finding.message.startswith(
        "not used, the old one stays in force: oomScoreAdj: must be -1000..1000, got 5000"
    )
    assert finding.message.endswith(" (and 1 more)")
    assert running.told == 1


@pytest.mark.parametrize("break_it", ["empty", "gone", "folder", "unreadable bytes"])
def test_a_file_that_cannot_be_read_is_nonsense(running: Running, break_it: str) -> None:
    running.look()
    running.path.unlink()
    if break_it == "empty":
        running.path.touch()
    elif break_it == "folder":
        running.path.mkdir()
    elif break_it == "unreadable bytes":
        running.path.write_bytes(b"\xff\xfe")
    assert not running.look()
    assert len(running.problems()) == 1


def test_a_file_that_is_right_again_is_no_finding_any_more(running: Running) -> None:
    running.path.write_text(NONSENSE)
    running.look()
    running.path.write_text(f"# mended\n{FIRST}")
    with capture_logs() as logs:
        assert not running.look()
    assert [event["event"] for event in logs] == ["the configuration file is right again"]
    assert (running.problems(), running.told) == ([], 2)


def test_nonsense_that_becomes_another_configuration_ends_it(running: Running) -> None:
    running.path.write_text(NONSENSE)
    assert not running.look()
    running.path.write_text(OTHER)
    assert running.look()


def test_other_nonsense_is_told_anew(running: Running) -> None:
    running.path.write_text(NONSENSE)
    running.look()
    running.path.write_text(f"{HEAD}mode: ipvs\n")
    with capture_logs() as logs:
        assert not running.look()
    assert [event["problem"] for event in logs] == ["mode: ipvs is not supported by proxyd; use nftables or iptables"]


def test_a_configuration_that_could_not_be_started_with_is_nonsense(running: Running) -> None:
    running.refuse = "kubeconfig /none: No such file or directory"
    running.path.write_text(OTHER)
    assert not running.look()
    assert running.problems() == [f"not used, the old one stays in force: {running.refuse}"]


def test_a_fault_of_our_own_ends_nothing(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(running.watch, "_check", fault)
    running.path.write_text(OTHER)
    with capture_logs() as logs:
        assert not running.look()
    assert logs[0]["event"] == "fault in reading the configuration"
    assert running.problems() == ["not used, the old one stays in force: internal error: KeyError('a fault')"]


def test_what_is_being_written_is_not_taken_up(running: Running) -> None:
    running.look()
    for text in ("", OTHER[:20], OTHER[:-20], OTHER[:-1]):
        running.path.write_text(text)
        assert not running.watch.look(), "it changes between any two looks"
        assert running.problems() == []
    running.path.write_text(FIRST)
    assert not running.look()
    assert running.told == 0


class TestMounted:
    """A ConfigMap as the kubelet mounts it: links, of which one is turned."""

    @pytest.fixture
    def mounted(self, tmp_path: Path) -> Running:
        self.folder = tmp_path
        self.publish("..1", FIRST)
        (tmp_path / "config.conf").symlink_to("..data/config.conf")
        return Running(tmp_path / "config.conf")

    def publish(self, name: str, text: str) -> None:
        (self.folder / name).mkdir()
        (self.folder / name / "config.conf").write_text(text)
        (self.folder / "..tmp").symlink_to(name)
        os.replace(self.folder / "..tmp", self.folder / "..data")

    def test_another_configuration(self, mounted: Running) -> None:
        mounted.look()
        self.publish("..2", OTHER)
        assert mounted.look()

    def test_the_same_configuration_in_another_folder(self, mounted: Running) -> None:
        mounted.look()
        self.publish("..2", FIRST)
        assert not mounted.look()
        assert mounted.problems() == []

    def test_nonsense(self, mounted: Running) -> None:
        self.publish("..2", NONSENSE)
        assert not mounted.look()
        assert mounted.problems()


def test_the_thread_calls_once_and_ends(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    running.watch.start()
    running.path.write_text(OTHER)
    assert running.ended.wait(30)
    running.watch.stop(30)
    assert not running.watch._thread.is_alive()


def test_the_thread_can_be_stopped_before_anything_happens(running: Running) -> None:
    running.watch.stop()
    running.watch.start()
    running.watch.stop(30)
    assert not running.watch._thread.is_alive()
    assert not running.ended.is_set()
