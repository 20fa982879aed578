"""Node ports on the loopback address: a listener for each, in step with what is written to the kernel.

All of it happens on the event loop of the HTTP server; only what ``LocalhostRelay`` says may be called from elsewhere.
Source: kube-proxy 1.37, KubeProxyNFTablesLocalhostNodePorts.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import structlog

from proxyd.desired.endpoints import Backend
from proxyd.desired.localhost import LocalhostPort
from proxyd.model import Family
from proxyd.serve import http, sockets
from proxyd.serve.relay import dial, relay, reset
from proxyd.sync.status import Status

log = structlog.get_logger("proxyd.serve")

HOST = {Family.IPV4: "127.0.0.1", Family.IPV6: "::1"}
DIAL_SECONDS = 5.0
# Endpoints to try for one connection; kube-proxy tries one. A node has each endpoint's failure before the cluster has.
ATTEMPTS = 3
# All connections to all node ports; each takes two descriptors, and at worst two chunks of memory.
MAX_CONNECTIONS = 2048
# Seconds until a port that could not be had is tried again: doubled each time, up to the longest.
RETRY_FIRST = 1.0
RETRY_LONGEST = 30.0
BACKLOG = 512
_ACCEPTS_AT_ONCE = 64
_NO_DESCRIPTORS_PAUSE = 1.0
_TELL_AGAIN = 60.0


class LocalhostObserver(Protocol):
    """Who counts (the metrics). Called on the event loop's thread; must be quick and never raise."""

    def listening(self, family: Family, count: int) -> None:
        """So many node ports of a family have a listener now."""

    def cannot_listen(self, family: Family) -> None:
        """A port could not be had; it will be tried again."""

    def opened(self, family: Family) -> None:
        """A client has connected."""

    def closed(self, family: Family) -> None:
        """A connection has ended, however it did."""

    def refused(self, family: Family) -> None:
        """A client was turned away, since there are too many connections."""

    def dial_failed(self, family: Family) -> None:
        """An endpoint could not be reached; another may have been."""


class Listener:
    """One node port of one family. ``retry`` has a port tried again that could not be had."""

    def __init__(self, family: Family, wanted: LocalhostPort) -> None:
        self.family = family
        self.wanted = wanted
        self.retry = asyncio.Event()
        self.binding: asyncio.Task[None] | None = None
        self.sock: socket.socket | None = None
        self.connections: set[asyncio.Task[None]] = set()
        self._pin: tuple[Backend, float] | None = None

    def __str__(self) -> str:
        host = HOST[self.family]
        return f"[{host}]:{self.wanted.port}" if ":" in host else f"{host}:{self.wanted.port}"

    def change(self, wanted: LocalhostPort) -> None:
        """Takes other endpoints or another affinity for new connections; those that there are stay."""
        kept = self._pin is not None and self._pin[0] in wanted.backends
        if wanted.affinity_seconds != self.wanted.affinity_seconds or not kept:
            self._pin = None
        self.wanted = wanted

    def candidates(self, now: float) -> list[Backend]:
        """The endpoints to try for a new connection, in this order: any, or first the one that the last one had."""
        wanted = self.wanted
        chosen = random.sample(wanted.backends, min(ATTEMPTS, len(wanted.backends)))
        if wanted.affinity_seconds:
            if self._pin is not None and now - self._pin[1] <= wanted.affinity_seconds:
                pinned = self._pin[0]
                chosen = [pinned, *(each for each in chosen if each != pinned)][:ATTEMPTS]
            self.pin(chosen[0], now)
        return chosen

    def pin(self, backend: Backend, now: float) -> None:
        """Has the next connections go to this endpoint, if there is affinity."""
        if self.wanted.affinity_seconds and backend in self.wanted.backends:
            self._pin = (backend, now)


class LocalhostRelay:
    """Keeps listeners in step with the status and carries their connections."""

    def __init__(
        self,
        server: http.Server,
        observer: LocalhostObserver,
        *,
        max_connections: int = MAX_CONNECTIONS,
        max_listeners: int = sys.maxsize,
        dial_seconds: float = DIAL_SECONDS,
        retry_first: float = RETRY_FIRST,
    ) -> None:
        self._server = server
        self._observer = observer
        self._max_connections = max_connections
        self._max_listeners = max_listeners
        self._dial_seconds = dial_seconds
        self._retry_first = retry_first
        # What the sync thread has handed over.
        self._given: dict[Family, tuple[LocalhostPort, ...]] = {}
        # Below: the event loop's own.
        self._listeners: dict[Family, dict[int, Listener]] = {family: {} for family in Family}
        self._listening: Counter[Family] = Counter()
        self._unbound: set[Listener] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._closed = False
        self._told_at: float | None = None
        self._idle = threading.Event()
        self._idle.set()

    def update(self, status: Status) -> None:
        """Takes what is in the kernel now. Called by the sync thread; costs little where no node port has changed.

        Ports that could not be had are tried again.
        """
        given = {each.family: each.localhost_ports for each in status.families}
        changed = {family: ports for family, ports in given.items() if self._given.get(family, ()) is not ports}
        self._given = given
        if changed or self._unbound:
            self._server.call(self._apply, changed)

    def close(self) -> None:
        """Closes all listeners for good; connections go on. From any thread."""
        self._server.call(self._close)

    def drain(self, seconds: float) -> None:
        """After ``close``: waits until all connections have ended, at most so long, and ends the rest. Any other thread."""
        done = threading.Event()
        # Only behind everything that was asked for before is it known what there is to wait for.
        self._server.call(done.set)
        if done.wait(seconds):
            self._idle.wait(seconds)
        self._server.call(self._cut_all)

    # -- listeners ------------------------------------------------------------------------------------------------------

    def _apply(self, changed: Mapping[Family, tuple[LocalhostPort, ...]]) -> None:
        if self._closed:
            return
        for family, ports in changed.items():
            listeners = self._listeners[family]
            for port in listeners.keys() - {each.port for each in ports}:
                self._remove(listeners[port])
            for each in ports:
                known = listeners.get(each.port)
                # All that did not change are the same objects as before.
                if known is None or known.wanted is not each:
                    self._take(family, each, known)
        for listener in self._unbound:
            listener.retry.set()

    def _take(self, family: Family, wanted: LocalhostPort, known: Listener | None) -> None:
        if known is not None and known.wanted.service == wanted.service:
            known.change(wanted)
            return
        if known is not None:
            self._remove(known)
        listener = self._listeners[family][wanted.port] = Listener(family, wanted)
        listener.binding = asyncio.get_running_loop().create_task(self._bind(listener))

    async def _bind(self, listener: Listener) -> None:
        delay = 0.0
        while not self._try_bind(listener, again=bool(delay)):
            delay = min(max(self._retry_first, delay * 2), RETRY_LONGEST)
            listener.retry.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await listener.retry.wait()

    def _try_bind(self, listener: Listener, *, again: bool) -> bool:
        try:
            if self._listening.total() >= self._max_listeners:
                # The rest of the process needs descriptors too: without one, libnftables ends it.
                raise OSError(errno.EMFILE, "too many node ports for the limit of open files")
            sock = sockets.bind_tcp(HOST[listener.family], listener.wanted.port)
            sock.listen(BACKLOG)
        except OSError as error:
            self._unbound.add(listener)
            self._observer.cannot_listen(listener.family)
            tell = log.debug if again else log.warning
            tell(
                "cannot listen for a node port on localhost, will be tried again",
                address=str(listener),
                service=str(listener.wanted.service),
                error=str(error),
            )
            return False
        self._unbound.discard(listener)
        listener.sock = sock
        asyncio.get_running_loop().add_reader(sock, self._accept, listener)
        self._count(listener.family, 1)
        tell = log.info if again else log.debug
        tell("listening for a node port on localhost", address=str(listener), service=str(listener.wanted.service))
        return True

    def _count(self, family: Family, change: int) -> None:
        self._listening[family] += change
        self._observer.listening(family, self._listening[family])

    def _remove(self, listener: Listener) -> None:
        """Closes a listener and cuts its connections: whatever they were for is no longer served."""
        del self._listeners[listener.family][listener.wanted.port]
        self._stop_listening(listener)
        for task in listener.connections:
            task.cancel()

    def _stop_listening(self, listener: Listener) -> None:
        self._unbound.discard(listener)
        if listener.binding is not None:
            listener.binding.cancel()
        if listener.sock is not None:
            asyncio.get_running_loop().remove_reader(listener.sock)
            listener.sock.close()
            listener.sock = None
            self._count(listener.family, -1)

    def _close(self) -> None:
        self._closed = True
        for listeners in self._listeners.values():
            for listener in listeners.values():
                self._stop_listening(listener)

    # -- connections ----------------------------------------------------------------------------------------------------

    def _accept(self, listener: Listener) -> None:
        if (sock := listener.sock) is None:
            return
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                client, _ = sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause_accepting(listener, sock, error)
                return
            if len(self._connections) >= self._max_connections:
                self._refuse(listener, client)
            else:
                self._begin(listener, client)

    def _pause_accepting(self, listener: Listener, sock: socket.socket, error: OSError) -> None:
        """No descriptor or memory for another connection: what waits is taken in a moment."""
        self._tell_rarely("cannot accept connections to node ports on localhost", error=str(error))
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock)
        loop.call_later(_NO_DESCRIPTORS_PAUSE, self._accept_again, listener)

    def _accept_again(self, listener: Listener) -> None:
        if listener.sock is not None:
            asyncio.get_running_loop().add_reader(listener.sock, self._accept, listener)

    def _refuse(self, listener: Listener, client: socket.socket) -> None:
        self._observer.refused(listener.family)
        reset(client)
        self._tell_rarely("too many connections to node ports on localhost", limit=self._max_connections)

    def _tell_rarely(self, event: str, **fields: object) -> None:
        now = time.monotonic()
        if self._told_at is None or now - self._told_at > _TELL_AGAIN:
            self._told_at = now
            log.warning(event, **fields)

    def _begin(self, listener: Listener, client: socket.socket) -> None:
        client.setblocking(False)
        task = asyncio.get_running_loop().create_task(self._serve(listener, client))
        self._connections.add(task)
        listener.connections.add(task)
        self._idle.clear()
        self._observer.opened(listener.family)

        def ended(_: asyncio.Task[None]) -> None:
            # A task that is cancelled before its first step has closed nothing.
            reset(client)
            self._connections.discard(task)
            listener.connections.discard(task)
            self._observer.closed(listener.family)
            if not self._connections:
                self._idle.set()

        task.add_done_callback(ended)

    async def _serve(self, listener: Listener, client: socket.socket) -> None:
        try:
            endpoint = await self._dial(listener)
            if endpoint is not None:
                await relay(client, endpoint)
        except Exception:
            log.exception("a connection to a node port on localhost failed", address=str(listener))

    async def _dial(self, listener: Listener) -> socket.socket | None:
        """A connection to one of the endpoints, None where none that was tried can be reached."""
        for attempt, backend in enumerate(listener.candidates(time.monotonic())):
            try:
                endpoint = await dial(backend, self._dial_seconds)
            except OSError as error:
                self._observer.dial_failed(listener.family)
                log.debug("endpoint not reached", address=str(listener), endpoint=str(backend), error=str(error))
                continue
            if attempt:
                listener.pin(backend, time.monotonic())
            return endpoint
        return None

    def _cut_all(self) -> None:
        for task in self._connections:
            task.cancel()
