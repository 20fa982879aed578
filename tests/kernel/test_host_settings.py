"""Settings of the host: the same on numbers in memory, on a folder, and on those of a network namespace of our own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from proxyd.config import Config, Conntrack, Document, Parsed, resolve
from proxyd.config.host_settings import CONNTRACK_MAX, HASH_SIZE, OOM_SCORE_ADJ, ROUTE_LOCALNET, TCP_BE_LIBERAL, Setting
from proxyd.kernel.conntrack import load_tracker
from proxyd.kernel.host_settings import KernelFiles, Outcome, SettingFiles, apply_settings
from tests.config.support import flags
from tests.fakes.settings import FakeFiles
from tests.netns import leave, why_not

T = TypeVar("T")
ESTABLISHED = "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
CLOSE_WAIT = "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
# What a kernel begins with, roughly.
FRESH = {
    CONNTRACK_MAX: 65536,
    HASH_SIZE: 16384,
    ESTABLISHED: 432000,
    CLOSE_WAIT: 60,
    TCP_BE_LIBERAL: 0,
    OOM_SCORE_ADJ: 0,
}


def config(**fields: Any) -> Config:
    return msgspec.structs.replace(resolve(Parsed(Document()), flags()), **fields)


class Bench:
    """Settings of one kind, and the thread from which they are seen."""

    def __init__(self, files: SettingFiles, enter: Callable[[], None] = lambda: None) -> None:
        self.files = files
        self._thread = ThreadPoolExecutor(1, initializer=enter)

    def inside(self, call: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return self._thread.submit(call, *arguments, **named).result()

    def apply(self, given: Config, **named: Any) -> Outcome:
        return self.inside(apply_settings, given, self.files, **named)

    def value(self, path: str) -> int:
        return self.inside(self.files.read, path)

    def set(self, path: str, value: int) -> None:
        self.inside(self.files.write, path, value)

    def close(self) -> None:
        self._thread.shutdown()


def folder(root: Path) -> KernelFiles:
    for path, value in FRESH.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{value}\n")
    return KernelFiles(root)


@pytest.fixture(params=["memory", "folder", pytest.param("namespace", marks=pytest.mark.kernel)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    if request.param == "namespace" and (reason := why_not()):
        pytest.skip(reason)
    made = {
        "memory": lambda: Bench(FakeFiles(FRESH)),
        "folder": lambda: Bench(folder(tmp_path)),
        "namespace": lambda: Bench(KernelFiles(), leave),
    }[request.param]()
    yield made
    made.close()


@pytest.fixture
def files() -> FakeFiles:
    return FakeFiles(FRESH)


# What a namespace has for itself: the limit and its hash table are the whole machine's, and a test keeps away from them.
OWN = Conntrack(max_per_core=0, tcp_established_timeout=1000, tcp_close_wait_timeout=70, tcp_be_liberal=True)


def test_what_differs_is_written_and_told_and_a_second_time_nothing_is(bench: Bench) -> None:
    for path, value in ((ESTABLISHED, 2000), (CLOSE_WAIT, 70), (TCP_BE_LIBERAL, 0)):
        bench.set(path, value)
    outcome = bench.apply(config(conntrack=OWN), init_only=True)
    assert {each: bench.value(each) for each in (ESTABLISHED, CLOSE_WAIT, TCP_BE_LIBERAL)} == {
        ESTABLISHED: 1000,
        CLOSE_WAIT: 70,
        TCP_BE_LIBERAL: 1,
    }
    assert outcome.changed == {"nf_conntrack_tcp_be_liberal": 1, "nf_conntrack_tcp_timeout_established": 1000}
    assert outcome.summary == (
        "nf_conntrack_tcp_be_liberal=0->1 nf_conntrack_tcp_timeout_established=2000->1000"
        " nf_conntrack_tcp_timeout_close_wait=70"
    )
    assert outcome.problem == ""
    again = bench.apply(config(conntrack=OWN), init_only=True)
    assert (again.changed, again.failed) == ({}, {})


def test_what_is_not_there_is_named_and_the_rest_is_written(bench: Bench) -> None:
    missing = Setting("some.field", "proc/sys/net/netfilter/nf_not_there", 5)
    outcome = bench.apply(config(conntrack=OWN), more=[missing], init_only=True)
    assert bench.value(ESTABLISHED) == 1000
    assert outcome.failed == {
        "nf_not_there": "net.netfilter.nf_not_there should be =5 (some.field): No such file or directory"
    }


def test_a_file_is_never_made(bench: Bench) -> None:
    with pytest.raises(FileNotFoundError):
        bench.set("proc/sys/net/netfilter/nf_not_there", 5)
    with pytest.raises(FileNotFoundError):
        bench.value("proc/sys/net/netfilter/nf_not_there")


@pytest.mark.kernel
def test_the_kernel_can_be_asked_for_its_tracker() -> None:
    if reason := why_not():
        pytest.skip(reason)
    bench = Bench(KernelFiles(), leave)
    bench.inside(load_tracker)
    assert bench.value(TCP_BE_LIBERAL) in (0, 1)
    bench.close()


def test_a_limit_is_raised_with_its_hash_table(files: FakeFiles) -> None:
    outcome = apply_settings(config(), files)
    limit = max(32768 * (os.cpu_count() or 1), 131072)
    assert (files.values[CONNTRACK_MAX], files.values[HASH_SIZE]) == (limit, limit // 4)
    assert files.written[:2] == [(CONNTRACK_MAX, limit), (HASH_SIZE, limit // 4)]
    assert outcome.failed == {}


def test_a_limit_that_somebody_raised_stays(files: FakeFiles) -> None:
    files.values.update({CONNTRACK_MAX: 1 << 24, HASH_SIZE: 1 << 22})
    outcome = apply_settings(config(), files)
    assert (files.values[CONNTRACK_MAX], files.values[HASH_SIZE]) == (1 << 24, 1 << 22)
    assert outcome.summary.startswith(f"nf_conntrack_max={1 << 24} hashsize={1 << 22} ")


def test_a_read_only_kernel_keeps_nothing_from_being_tried_and_one_line_names_all_of_it(files: FakeFiles) -> None:
    files.read_only = {CONNTRACK_MAX, HASH_SIZE, ESTABLISHED}
    outcome = apply_settings(config(conntrack=Conntrack(max_per_core=0, tcp_established_timeout=5)), files)
    assert files.values[CLOSE_WAIT] == 3600
    assert outcome.problem == (
        "net.netfilter.nf_conntrack_tcp_timeout_established should be =5 (conntrack.tcpEstablishedTimeout) but is 432000:"
        " Read-only file system. To mend it: set it on the node, or run proxyd --init-only with the same configuration in"
        " a privileged init container"
    )
    all_of_it = apply_settings(config(conntrack=Conntrack(max_per_core=1)), files)
    assert "\n" not in all_of_it.problem
    assert set(all_of_it.failed) == {"nf_conntrack_max", "hashsize", "nf_conntrack_tcp_timeout_established"}
    assert "net.netfilter.nf_conntrack_max should be >=131072 (conntrack.min) but is 65536: " in all_of_it.problem
    assert "/sys/module/nf_conntrack/parameters/hashsize should be >=" in all_of_it.problem


def test_our_own_process_that_cannot_be_protected_is_no_serious_matter(files: FakeFiles) -> None:
    files.read_only = {OOM_SCORE_ADJ}
    outcome = apply_settings(config(), files)
    assert not outcome.is_serious
    assert outcome.problem.startswith("/proc/self/oom_score_adj should be =-999 (oomScoreAdj) but is 0: ")
    assert "--init-only" not in outcome.problem


def test_an_init_container_leaves_its_own_process_alone(files: FakeFiles) -> None:
    assert OOM_SCORE_ADJ not in dict((apply_settings(config(), files, init_only=True), files.written)[1])
    apply_settings(config(), files)
    assert files.values[OOM_SCORE_ADJ] == -999


def test_settings_of_a_mode_come_with_the_others(files: FakeFiles) -> None:
    files.values[ROUTE_LOCALNET] = 0
    apply_settings(config(), files, more=[Setting("iptables.localhostNodePorts", ROUTE_LOCALNET, 1)])
    assert files.values[ROUTE_LOCALNET] == 1
