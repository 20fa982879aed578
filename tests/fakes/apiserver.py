"""A small API server on loopback, for tests and measurements: lists, pages, WatchList and watches, faults on demand.

It keeps objects as JSON with one counter for all resource versions. ``fail`` queues a fault for the next request that
fits (see ``apifaults``); what happened is in ``requests``. Real sockets and threads; TLS if given an ``ssl.SSLContext``.
"""

from __future__ import annotations

import json
import select
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.fakes.apifaults import Fault, status
from tests.fakes.apiobjects import (
    Change,
    Key,
    Request,
    added_line,
    error_line,
    event_line,
    first_after,
    initial_end,
    key_of,
    selected,
)
from tests.fakes.eventlog import EventLog

SERVICES = "/api/v1/services"
SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
NODES = "/api/v1/nodes"


class _Queued(NamedTuple):
    fault: Fault
    kind: str | None
    path: str | None


class ApiServer:
    """The server. Use as a context manager, or ``start`` and ``stop``."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.token: str | None = None  # if set, requests need it
        self.events = EventLog()
        self.watching = 0
        self.changed = threading.Condition()
        self.stopping = False
        self._objects: dict[str, dict[Key, tuple[dict[str, Any], bytes]]] = {}
        self._log: dict[str, list[Change]] = {}
        self._oldest = 0
        self.generation = 0  # of watches: an older one has to end
        self._version = 100
        self._faults: list[_Queued] = []
        self._sockets: set[socket.socket] = set()
        self.connections: list[socket.socket] = []  # all that ever were
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self._http.request_queue_size = 64
        self._http.daemon_threads = True
        self._http.api = self  # type: ignore[attr-defined]
        self._http.server_bind()
        self._http.server_activate()
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self._http.serve_forever(poll_interval=0.02), daemon=True)

    def start(self) -> ApiServer:
        self._thread.start()
        return self

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()
            for sock in list(self._sockets):
                _shutdown(sock)
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def __enter__(self) -> ApiServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- objects -------------------------------------------------------------------------------------------------------

    def put(self, path: str, *objects: dict[str, Any]) -> None:
        """Adds or changes objects; sets their resourceVersion."""
        with self.changed:
            for given in objects:
                self._version += 1
                obj = {**given, "metadata": {**given["metadata"], "resourceVersion": str(self._version)}}
                raw = json.dumps(obj, separators=(",", ":")).encode()
                old = self._objects.setdefault(path, {}).get(key_of(obj))
                self._objects[path][key_of(obj)] = (obj, raw)
                self._log.setdefault(path, []).append(Change(self._version, old[0] if old else None, obj, raw))
            self.changed.notify_all()

    def put_raw(self, path: str, raw: str) -> None:
        """Adds an object as it stands, for what no API server should send; every selection lets it through."""
        with self.changed:
            self._version += 1
            self._log.setdefault(path, []).append(Change(self._version, None, {}, raw.encode()))
            self.changed.notify_all()

    def delete(self, path: str, namespace: str, name: str) -> None:
        with self.changed:
            self._version += 1
            old, _ = self._objects[path].pop((namespace, name))
            last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(self._version)}}
            self._log[path].append(Change(self._version, old, None, json.dumps(last).encode()))
            self.changed.notify_all()

    def bookmark(self, path: str) -> None:
        """Sends a bookmark with the newest version to the open watches."""
        with self.changed:
            self._version += 1
            raw = json.dumps({"metadata": {"resourceVersion": str(self._version)}}).encode()
            self._log.setdefault(path, []).append(Change(self._version, None, None, raw))
            self.changed.notify_all()

    def end_watches(self) -> None:
        """Ends all open watches in good order, as at their timeoutSeconds."""
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def compact(self) -> None:
        """Forgets the past: a watch from any older version gets 410."""
        with self.changed:
            self._version += 1
            self._oldest = self._version
            self._log.clear()

    # -- faults --------------------------------------------------------------------------------------------------------

    def fail(self, fault: Fault, *, times: int = 1, kind: str | None = None, path: str | None = None) -> None:
        """Answers the next ``times`` requests (of that kind and path) with ``fault``."""
        with self.changed:
            self._faults += [_Queued(fault, kind, path)] * times

    def heal(self) -> None:
        """Drops all queued faults."""
        with self.changed:
            self._faults.clear()

    def count(self, kind: str | None = None, path: str | None = None) -> int:
        """How many requests there were."""
        return sum(1 for r in list(self.requests) if kind in (None, r.kind) and path in (None, r.path))

    # -- used by the handlers ------------------------------------------------------------------------------------------

    def take_fault(self, request: Request) -> Fault | None:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
            for number, queued in enumerate(self._faults):
                if queued.kind in (None, request.kind) and queued.path in (None, request.path):
                    return self._faults.pop(number).fault
        return None

    def snapshot(self, request: Request) -> tuple[int, list[tuple[Key, bytes]]]:
        with self.changed:
            objects = self._objects.get(request.path, {})
            fits = [(key, raw) for key, (obj, raw) in sorted(objects.items()) if selected(request, obj)]
            return self._version, fits

    def follow(self, exchange: Exchange, version: int) -> None:
        """Sends what changed since ``version``, until the watch ends."""
        with self.changed:
            self.watching += 1
            self.changed.notify_all()
        try:
            deadline = time.monotonic() + float(exchange.request.params.get("timeoutSeconds", 3600))
            while not exchange.gone():
                with self.changed:
                    if self.stopping:
                        return
                    if version < self._oldest:
                        exchange.send(error_line(410, "Expired"))
                        break
                    log = self._log.get(exchange.request.path, [])
                    news = log[first_after(log, version) :]
                    if not news and (exchange.generation != self.generation or time.monotonic() >= deadline):
                        break
                    if not news:
                        self.changed.wait(0.05)
                lines = [line for change in news if (line := event_line(exchange.request, change))]
                if lines:
                    exchange.send(*lines)
                version = news[-1].version if news else version
            exchange.end()
        finally:
            with self.changed:
                self.watching -= 1
                self.changed.notify_all()

    def keep(self, sock: socket.socket, here: bool) -> None:
        with self.changed:
            (self._sockets.add if here else self._sockets.discard)(sock)
            if here:
                self.connections.append(sock)


class Exchange:
    """One request being answered; what faults are written with."""

    def __init__(self, handler: _Handler, request: Request) -> None:
        self.api: ApiServer = handler.server.api  # type: ignore[attr-defined]
        self.request = request
        self.generation = self.api.generation  # before anybody can see that there was this request
        self._handler = handler

    def reply(self, code: int, body: bytes, **headers: str) -> None:
        """A whole answer."""
        self._handler.send_response(code)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        self._handler.wfile.write(body)

    def begin(self, **headers: str) -> None:
        """The headers of a stream; more are given with _ in place of -."""
        self._handler.send_response(200)
        self._handler.send_header("Content-Type", "application/json")
        self._handler.send_header("Transfer-Encoding", "chunked")
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        self._handler.wfile.flush()

    def send(self, *parts: bytes) -> None:
        """One HTTP chunk for each part, as the API server does for each event."""
        self._handler.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts))
        self._handler.wfile.flush()

    def end(self) -> None:
        """The proper end of a stream."""
        self._handler.wfile.write(b"0\r\n\r\n")
        self._handler.wfile.flush()

    def cut(self) -> None:
        """Closes the connection here."""
        self._handler.close_connection = True
        _shutdown(self._handler.connection)

    def hold(self) -> None:
        """Sends nothing until the client goes away or the server stops."""
        while not self.api.stopping and not self.gone():
            with self.api.changed:
                self.api.changed.wait(0.02)
        self._handler.close_connection = True

    def gone(self) -> bool:
        """Whether the client closed the connection."""
        readable, _, _ = select.select([self._handler.connection], [], [], 0)
        return bool(readable)

    def added(self) -> list[bytes]:
        """Events for all objects, as a WatchList begins."""
        return [added_line(raw) for _, raw in self.api.snapshot(self.request)[1]]

    def serve(self) -> None:
        """The answer without any fault."""
        if self.request.kind in ("post", "patch"):
            write = self.api.events.create if self.request.kind == "post" else self.api.events.patch
            code, answer = write(self.request.path, self.request.body)
            self.reply(code, json.dumps(answer).encode())
            return
        version, objects = self.api.snapshot(self.request)
        params = self.request.params
        if self.request.kind in ("list", "page"):
            start, limit = int(params.get("continue", 0)), int(params.get("limit", 0)) or len(objects)
            page, left = objects[start : start + limit], len(objects) > start + limit
            meta = {"resourceVersion": str(version), **({"continue": str(start + limit)} if left else {})}
            items = b",".join(raw for _, raw in page)
            self.reply(200, b'{"kind":"List","metadata":%b,"items":[%b]}' % (json.dumps(meta).encode(), items))
            return
        self.begin()
        if self.request.kind == "watchlist":
            self.send(*(added_line(raw) for _, raw in objects), initial_end(version))
        else:
            version = int(params["resourceVersion"])
        self.api.follow(self, version)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024
    timeout = 30

    def setup(self) -> None:
        super().setup()
        self.server.api.keep(self.connection, True)  # type: ignore[attr-defined]

    def finish(self) -> None:
        self.server.api.keep(self.connection, False)  # type: ignore[attr-defined]
        try:
            super().finish()
        except OSError:
            return

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        params = dict(parse_qsl(url.query))
        kind = "page" if "continue" in params else "list"
        if params.get("watch") == "true":
            kind = "watchlist" if params.get("sendInitialEvents") == "true" else "watch"
        if self.command != "GET":
            kind = self.command.lower()
        api: ApiServer = self.server.api  # type: ignore[attr-defined]
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        exchange = Exchange(self, Request(kind, url.path, params, dict(self.headers.items()), body))
        fault = api.take_fault(exchange.request)
        if fault is None and api.token is not None and self.headers.get("Authorization") != f"Bearer {api.token}":
            fault = status(401, "Unauthorized")
        (fault or Exchange.serve)(exchange)
        self.wfile.flush()

    do_POST = do_PATCH = do_GET  # noqa: N815 - what that package calls them

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        return


def _shutdown(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
