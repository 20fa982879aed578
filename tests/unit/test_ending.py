"""How the end is asked for: by signals at any moment, and by threads."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from proxyd.ending import Ending

# The signal comes in the last moment before the main thread waits: after Python has looked for signals for the last time.
JUST_BEFORE_A_WAIT = """
import os, signal
from proxyd.ending import Ending
ending = Ending()
ending.on_signals()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
import threading
def other():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)  # taken by this thread, so that it interrupts nothing on the main one
thread = threading.Timer(0.2, other)
thread.start()
while not ending.asked:
    ending.wait()
print("ended")
"""


def test_a_signal_that_interrupts_no_wait_ends_it_all_the_same() -> None:
    done = subprocess.run(
        [sys.executable, "-c", JUST_BEFORE_A_WAIT], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr


def test_the_highest_status_counts_and_a_wake_alone_asks_for_nothing() -> None:
    ending = Ending()
    ending.wake()
    ending.wait()
    assert not ending.asked
    for status in (0, 3, 1):
        ending.ask(status)
    ending.wait()
    assert (ending.asked, ending.status) == (True, 3)


@pytest.mark.parametrize("threads", [1, 4])
def test_no_number_of_wakes_blocks_who_wakes(threads: int) -> None:
    ending = Ending()

    def wake() -> None:
        for _ in range(70_000):
            ending.wake()

    waking = [threading.Thread(target=wake, daemon=True) for _ in range(threads)]
    for each in waking:
        each.start()
    for each in waking:
        each.join(30)
        assert not each.is_alive()
    ending.wait()
