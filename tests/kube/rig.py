"""A reflector between a misbehaving API server and a store, with a clock that only moves when the reflector waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from proxyd.kube import client as transport
from proxyd.kube.reflector import Reflector, Timing
from proxyd.kube.resources import SERVICES
from proxyd.kube.store import Store
from proxyd.model import Service
from tests.fakes import apiserver as fake
from tests.fakes.apiserver import ApiServer

DEADLINE = 30.0


def until(condition: Callable[[], bool], what: object = "") -> None:
    """Waits for a condition; fails after a time that no working machine needs."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"still waiting: {what}"
        time.sleep(0.002)


class Rig:
    """A reflector with everything around it. Its clock stands still but for the reflector's own waits."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.store = Store()
        self.now = 1000.0
        self.delays: list[float] = []
        self.most_waits: int | None = None
        self.held = threading.Event()
        self.reflector: Reflector[Service] = self.make(Timing(clock=lambda: self.now, chance=lambda: 0.0))

    def make(self, timing: Timing) -> Reflector[Service]:
        client = transport.connect("", self.api.url)
        self.reflector = Reflector(client, SERVICES, self.store.services, timing, self.wait)
        return self.reflector

    def wait(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.now += seconds
        if self.most_waits is not None and len(self.delays) >= self.most_waits:
            self.held.wait(DEADLINE)

    def after_waits(self, number: int) -> list[float]:
        """Runs until that many delays were asked for, and stands still there; gives them."""
        self.most_waits = number
        self.reflector.start()
        until(lambda: len(self.delays) >= number, self.reflector)
        return self.delays

    def run_synced(self) -> None:
        self.reflector.start()
        self.until_synced()

    def until_synced(self) -> None:
        until(lambda: self.store.services.synced and self.api.watching > 0, self.reflector)

    def names(self) -> list[str]:
        return sorted(name for _, name in self.store.services.objects.copy())

    def end(self) -> None:
        self.most_waits = None
        self.held.set()
        assert self.reflector.stop(DEADLINE)


def list_and_expire(exchange: fake.Exchange) -> None:
    """A WatchList that is complete, and at once expired."""
    version, objects = exchange.api.snapshot(exchange.request)
    exchange.begin()
    exchange.send(*(b'{"type":"ADDED","object":%b}\n' % raw for _, raw in objects))
    annotations = b'{"k8s.io/initial-events-end":"true"}'
    exchange.send(
        b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d","annotations":%b}}}\n'
        % (version, annotations),
        b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n',
    )
    exchange.end()
