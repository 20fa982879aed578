"""The lock of iptables while somebody holds it: the wait is bounded, measured and told, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import LogCapture

from proxyd.kernel.ipt.iptables import Backend, IptablesLockedError, IptablesTools
from proxyd.kernel.ipt.lock import VARIABLE, XtablesLock, holder
from proxyd.model import Family
from tests.netns import leave, why_not
from tests.program import until

HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)
RULES = "*filter\n:KUBE-FORWARD - [0:0]\nCOMMIT\n"
HELD, FREE = "somebody holds the lock of iptables, waiting for it", "the lock of iptables was had at last"


class Holder:
    """Another process that holds the lock until it is told to let go."""

    def __init__(self, file: Path) -> None:
        pipe = subprocess.PIPE
        words = [sys.executable, "-I", "-S", "-c", HOLD, str(file)]
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.pid = self._process.pid
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        if self._process.poll() is None:
            self._process.communicate("\n")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock of our own."""
    made = tmp_path / "xtables.lock"
    monkeypatch.setenv(VARIABLE, str(made))
    return made


@pytest.fixture
def held(file: Path) -> Iterator[Holder]:
    made = Holder(file)
    yield made
    made.let_go()


def said(log: LogCapture) -> list[str]:
    return [entry["event"] for entry in log.entries]


def call(lock: XtablesLock) -> None:
    with lock.call():
        pass


def test_a_lock_that_nobody_holds_is_not_waited_for(file: Path, log: LogCapture) -> None:
    waits: list[float] = []
    lock = XtablesLock(waits.append)
    call(lock)
    file.touch()
    call(lock)
    assert waits == [0, 0]
    assert not said(log)


def test_looking_ends_after_a_while_and_what_follows_counts_too(held: Holder, log: LogCapture) -> None:
    waits: list[float] = []
    call(XtablesLock(waits.append, looking=0.05))
    assert waits[0] >= 0.05
    assert not said(log), "that was not long"
    assert held.pid


def test_who_keeps_us_waiting_is_told_and_the_end_of_it_too(held: Holder, file: Path, log: LogCapture) -> None:
    waits: list[float] = []
    lock = XtablesLock(waits.append, patience=0.02, looking=30)
    thread = threading.Thread(target=call, args=(lock,))
    thread.start()
    until(lambda: HELD in said(log), "told")
    held.let_go()
    thread.join()
    assert said(log) == [HELD, FREE]
    assert log.entries[0]["log_level"] == "warning"
    assert str(held.pid) in log.entries[0]["holder"]
    assert 0.02 <= waits[0] < 30
    assert holder(file) == "unknown"


@pytest.fixture
def namespace() -> Iterator[ThreadPoolExecutor]:
    if reason := why_not():
        pytest.skip(reason)
    with ThreadPoolExecutor(1, "namespace", leave) as made:
        yield made


@pytest.mark.kernel
@pytest.mark.parametrize("looking", [0.03, 30], ids=["the-tool-queues", "we-look"])
def test_a_call_is_carried_out_when_the_lock_is_free_again(
    namespace: ThreadPoolExecutor, held: Holder, log: LogCapture, looking: float
) -> None:
    waits: list[float] = []
    lock = XtablesLock(waits.append, patience=0.02, looking=looking)
    tools = IptablesTools(Family.IPV4, Backend.LEGACY, lock_wait=30, lock=lock)
    going_on = namespace.submit(tools.restore, RULES)
    until(lambda: HELD in said(log), "told")
    assert not going_on.done()
    held.let_go()
    going_on.result()
    assert waits[0] >= 0.02
    assert said(log) == [HELD, FREE]
    assert ":KUBE-FORWARD - [0:0]\n" in namespace.submit(lambda: list(tools.save("filter"))).result()


@pytest.mark.kernel
def test_a_call_whose_time_is_over_changes_nothing(namespace: ThreadPoolExecutor, held: Holder) -> None:
    waits: list[float] = []
    tools = IptablesTools(Family.IPV4, Backend.LEGACY, lock_wait=1, lock=XtablesLock(waits.append))
    with pytest.raises(IptablesLockedError):
        namespace.submit(tools.restore, RULES).result()
    assert waits[0] >= 1
    held.let_go()
    assert ":KUBE-FORWARD - [0:0]\n" not in namespace.submit(lambda: list(tools.save("filter"))).result()


@pytest.mark.kernel
def test_iptables_nft_has_no_lock_to_wait_for(namespace: ThreadPoolExecutor, held: Holder) -> None:
    waits: list[float] = []
    tools = IptablesTools(Family.IPV4, Backend.NFT, lock=XtablesLock(waits.append))
    namespace.submit(tools.restore, RULES).result()
    assert not waits
    assert held.pid
