"""Memory is flat in each kind of trouble: a reflector goes through it some hundred times, and nothing stays behind.

Tests at a real API server (tests/cluster_api) bound what one trouble costs; here no retry takes any time, so that also
what each of them would leave behind adds up.
"""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
import structlog

from proxyd.kube import reflector as reflector_module
from tests.fakes import apifaults as faults
from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import service
from tests.fakes.apiserver import ApiServer
from tests.kube.rig import Rig, list_and_expire, until

# What leaks grows with each batch; what the interpreter keeps for later grows in one of them.
WARM_UP, ROUNDS, BATCHES = 30, 40, 3
# Bytes for each round: a leaked answer takes many times as much.
LEAK = 512
FOREVER = 100 * ROUNDS

Prepare = Callable[[ApiServer], None]


def in_the_watch(fault: faults.Fault) -> Prepare:
    return lambda api: api.fail(fault, kind="watch", times=FOREVER)


def everywhere(fault: faults.Fault) -> Prepare:
    return lambda api: api.fail(fault, times=FOREVER)


def expiring_pages(api: ApiServer) -> None:
    """No streaming lists, pages that expire, and versions that do: all is listed anew all the time."""
    api.fail(faults.status(422), kind="watchlist")
    api.fail(faults.status(410, "Expired"), kind="page", times=FOREVER)
    api.fail(faults.error_event(410, "Expired"), kind="watch", times=FOREVER)


def expiring_lists(api: ApiServer) -> None:
    """Whole lists, and each expires at once."""
    api.fail(faults.error_event(410, "Expired"), kind="watch", times=FOREVER)
    api.fail(list_and_expire, kind="watchlist", times=FOREVER)


def bookmarks_and_an_end(exchange: fake.Exchange) -> None:
    exchange.begin()
    exchange.send(
        *(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % n for n in range(900, 950))
    )
    exchange.cut()


TROUBLES: dict[str, Prepare] = {
    "refused": lambda api: api.stop(),
    "broken in an event": in_the_watch(faults.cut_in_line),
    "broken after bookmarks": in_the_watch(bookmarks_and_an_end),
    "ended at once": in_the_watch(faults.end_at_once),
    "expired": expiring_lists,
    "expired in pages": expiring_pages,
    "unauthorized": everywhere(faults.status(401, "Unauthorized")),
    "forbidden": everywhere(faults.status(403, "Forbidden")),
    "patience": everywhere(faults.status(429, "TooManyRequests", retry_after=2)),
    "an error": everywhere(faults.status(500, "InternalError")),
    "garbled": everywhere(faults.garbage),
}


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer().start()
    yield server
    if not server.stopping:
        server.stop()


@pytest.fixture
def rig(api: ApiServer) -> Iterator[Rig]:
    rig = Rig(api)
    yield rig
    rig.end()


def say_nothing(*_: object) -> NoReturn:
    raise structlog.DropEvent


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory is counted, pages are small, and no log is kept by whoever runs the test."""
    monkeypatch.setattr(reflector_module, "PAGE", 3)
    monkeypatch.setattr(reflector_module, "log", structlog.wrap_logger(None, processors=[say_nothing]))
    # Whoever measures coverage keeps something for each thread that there ever was, and the server has many.
    tracing = threading.gettrace()
    threading.settrace(None)
    tracemalloc.start()
    yield
    tracemalloc.stop()
    threading.settrace(tracing)


def held(api: ApiServer) -> tuple[int, int, int]:
    """Bytes, open files and threads of this process, while the reflector stands still and the server is idle."""
    gc.collect()
    until(lambda: sum("process_request" in each.name for each in threading.enumerate()) <= 1, "idle")
    api.requests.clear()
    api.connections.clear()
    return tracemalloc.get_traced_memory()[0], len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_nothing_stays_behind(rig: Rig, api: ApiServer, traced: None, trouble: str) -> None:
    api.put(fake.SERVICES, *(service(f"s{number}", "10.0.1.1") for number in range(5)))
    rig.run_synced()
    TROUBLES[trouble](api)
    rig.most_waits = WARM_UP
    rig.now += 600.0
    api.end_watches()
    seen = [after(rig, api, WARM_UP)]
    errors = sum(rig.reflector.state.errors.values())
    for batch in range(1, BATCHES + 1):
        go_on(rig, WARM_UP + batch * ROUNDS)
        seen.append(after(rig, api, WARM_UP + batch * ROUNDS))
    assert sum(rig.reflector.state.errors.values()) - errors >= BATCHES * ROUNDS
    memory, files, threads = (min(growth) for growth in zip(*map(growth_between, seen, seen[1:]), strict=True))
    assert memory < ROUNDS * LEAK, "memory"
    assert files < ROUNDS // 10, "files"
    assert threads < ROUNDS // 10, "threads"


def growth_between(before: tuple[int, int, int], now: tuple[int, int, int]) -> tuple[int, ...]:
    return tuple(late - early for early, late in zip(before, now, strict=True))


def after(rig: Rig, api: ApiServer, waits: int) -> tuple[int, int, int]:
    until(lambda: len(rig.delays) >= waits, rig.reflector.state)
    return held(api)


def go_on(rig: Rig, waits: int) -> None:
    rig.most_waits, before = waits, rig.held
    rig.held = threading.Event()
    before.set()
