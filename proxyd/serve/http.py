"""HTTP/1.1 for probes and scrapes: one event loop in one thread, any number of listeners, quick handlers.

h11 understands the protocol; this module moves the bytes and bounds whatever a client could make grow: the head of a
request, the time it takes to send one, the queue of pipelined requests, unread answers, the number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import functools
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, cast

import h11
import structlog

from proxyd.serve import sockets

log = structlog.get_logger("proxyd.serve")

TEXT = "text/plain; charset=utf-8"
# A route for every path that has none of its own.
ANY_PATH = "*"

RETRY_SECONDS = 5.0
# From one answer to the next, or from connecting to the first: longer than usual scrape intervals.
IDLE_SECONDS = 90.0
# How long an answer that ends a connection may still be read while the client goes on sending.
LINGER_SECONDS = 1.0
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 * 1024


class Request(NamedTuple):
    """What a handler gets to see of a request: its method (GET or HEAD), path, query and Host header, all as sent."""

    method: str
    path: str
    query: str = ""
    host: str = ""


class Response(NamedTuple):
    """An answer; ``Content-Length``, ``Date`` and ``X-Content-Type-Options`` are added to its headers."""

    status: int = 200
    content_type: str = TEXT
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Response]
Routes = Mapping[str, Handler]


class Listener:
    """One address to answer on. Made by ``Server.add_listener``; its public attributes may be read from any thread.

    ``listening`` is set once the socket is open; ``address`` then tells host and port (the real one where 0 was asked).
    """

    def __init__(
        self,
        name: str,
        bind: Callable[[], socket.socket],
        routes: Routes,
        hard_fail: Callable[[str], None] | None = None,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.listening = threading.Event()
        self.address: tuple[str, int] | None = None
        # Below: the event loop's own.
        self.bind = bind
        self.routes = routes
        self.hard_fail = hard_fail
        self.told = told
        self.failed = False
        self.closed = False
        self.task: asyncio.Task[None] | None = None
        self.server: asyncio.Server | None = None

    def __str__(self) -> str:
        return self.name


class Server:
    """The event loop and its thread. All public methods may be called from any thread and never wait for clients."""

    def __init__(
        self,
        *,
        retry_seconds: float = RETRY_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.idle_seconds = idle_seconds
        self._retry_seconds = retry_seconds
        self._max_connections = max_connections
        self._listeners: set[Listener] = set()
        # In order of their last answer (or of connecting): the first is the least useful one.
        self._connections: dict[_Connection, None] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Starts the thread; listeners can be added from here on."""
        running = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(running)), name="serve", daemon=True)
        self._thread.start()
        running.wait()

    def stop(self, timeout: float = 2.0) -> None:
        """Closes every listener and connection and ends the thread; harmless where it does not run."""
        if self._thread is not None:
            self.call(self._stopping.set)
            self._thread.join(timeout)
            self._thread = None

    def add_listener(
        self,
        host: str,
        port: int,
        routes: Routes,
        hard_fail: Callable[[str], None] | None = None,
        told: Callable[[str], None] = lambda _: None,
        *,
        both: bool = True,
    ) -> Listener:
        """Begins to listen on an IP address, without waiting for it; "0.0.0.0" is IPv4 only, "::" is ``both`` families.

        An address that cannot be had is tried again for as long as it takes. With ``hard_fail``, that is called instead
        (on the server's thread, with what went wrong) and the listener given up. ``told`` is called so too, the first time.
        """
        name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bind = functools.partial(sockets.bind_tcp, host, port, both=both)
        listener = Listener(name, bind, routes, hard_fail, told)
        self.call(self._add, listener)
        return listener

    def add_local_listener(self, name: str, routes: Routes) -> Listener:
        """Begins to listen on an abstract Unix socket, for root and for the user of this process.

        Such a name belongs to the network namespace, as rules do, and leaves no file behind.
        """
        listener = Listener(f"@{name}", functools.partial(sockets.bind_local, name), routes)
        self.call(self._add, listener)
        return listener

    def remove_listener(self, listener: Listener) -> None:
        """Closes a listener and its connections, at once and before any listener that is added after this call."""
        self.call(self._close, listener)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Has a function called on the event loop's thread, in the order of the calls; once it has ended: never."""
        if self._loop is None:
            raise RuntimeError("the server has not been started")
        # Raised by a loop that has ended: whatever was asked is done.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    async def _main(self, running: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        running.set()
        await self._stopping.wait()
        for listener in list(self._listeners):
            self._close(listener)
        # Lets the transports close their sockets.
        await asyncio.sleep(0)

    def _add(self, listener: Listener) -> None:
        if not self._stopping.is_set():
            self._listeners.add(listener)
            listener.task = asyncio.get_running_loop().create_task(self._listen(listener))

    async def _listen(self, listener: Listener) -> None:
        while True:
            try:
                sock = listener.bind()
                break
            except OSError as error:
                problem = f"cannot listen on {listener}: {error}"
                if not listener.failed:
                    listener.told(problem)
                if listener.hard_fail is not None:
                    self._listeners.discard(listener)
                    listener.hard_fail(problem)
                    return
                if not listener.failed:
                    log.warning("cannot listen yet", address=str(listener), error=str(error), retry=self._retry_seconds)
                listener.failed = True
            await asyncio.sleep(self._retry_seconds)
        # Between bind and here nothing else has run, so ``_close`` finds either a task or a server to end.
        listener.server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self, listener), sock=sock, backlog=sockets.BACKLOG, start_serving=False
        )
        if sock.family != socket.AF_UNIX:
            listener.address = sock.getsockname()[:2]
        listener.listening.set()
        log.info("listening", address=str(listener), after_failure=listener.failed)
        await listener.server.start_serving()

    def _close(self, listener: Listener) -> None:
        listener.closed = True
        self._listeners.discard(listener)
        if listener.task is not None:
            listener.task.cancel()
        if listener.server is not None:
            listener.server.close()
        listener.listening.clear()
        for connection in [each for each in self._connections if each.listener is listener]:
            connection.close()

    def opened(self, connection: _Connection) -> bool:
        """Takes a new connection, at the cost of the least useful one where there are too many; False to refuse it."""
        if connection.listener.closed:
            return False
        if len(self._connections) >= self._max_connections:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()
        self._connections[connection] = None
        return True

    def answered(self, connection: _Connection) -> None:
        """Notes that a connection has just been of use."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    def lost(self, connection: _Connection) -> None:
        """Forgets a connection."""
        self._connections.pop(connection, None)


class _Connection(asyncio.Protocol):
    """One client: bytes in, at most one request answered at a time, bytes out."""

    def __init__(self, server: Server, listener: Listener) -> None:
        self.listener = listener
        self._server = server
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._request: h11.Request | None = None
        self._unread = False
        self._lingering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        # ``pause_writing`` as soon as the kernel takes no more: at most one answer waits here.
        self._transport.set_write_buffer_limits(0)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._server.idle_seconds, self.abort)
        if not sockets.may_ask(self._transport.get_extra_info("socket")) or not self._server.opened(self):
            self.abort()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._timer.cancel()
        self._server.lost(self)

    def close(self) -> None:
        """Ends the connection once what has been written is sent; the timer ends it if the client does not read."""
        self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._lingering:
            self._http.receive_data(data)
            self._advance()

    def eof_received(self) -> bool:
        if self._lingering:
            return False
        # Only half of the connection ends here: requests that came before are still answered.
        self._http.receive_data(b"")
        self._advance()
        return not self._lingering

    def pause_writing(self) -> None:
        self._unread = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._unread = False
        self._advance()

    def _restart_timer(self, seconds: float) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort)

    def _advance(self) -> None:
        """Answers one request, if there is a whole one and the client reads its answers."""
        if self._unread or self._lingering or self._transport.is_closing():
            return
        try:
            event = self._http.next_event()
            while isinstance(event, h11.Request | h11.Data):
                if isinstance(event, h11.Request):
                    self._request = event
                event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
            self._send(Response(status, body=f"{HTTPStatus(status).phrase}\n".encode()), last=True)
            self._linger()
            return
        if isinstance(event, h11.EndOfMessage):
            self._answer()
        elif isinstance(event, h11.ConnectionClosed):
            self.close()
        elif self._request is not None:
            # A body that is still under way: not worth waiting for.
            self._send(self._respond(self._request), last=True)
            self._linger()
        else:
            self._transport.resume_reading()

    def _answer(self) -> None:
        assert self._request is not None  # noqa: S101 - h11 ends a message only after it began
        self._send(self._respond(self._request))
        self._request = None
        if self._http.our_state is not h11.DONE:
            self.close()
            return
        self._http.start_next_cycle()
        self._restart_timer(self._server.idle_seconds)
        self._server.answered(self)
        queued, ended = self._http.trailing_data
        if queued or ended:
            # Others take their turn before the next one, and no more is read until the queue is empty.
            self._transport.pause_reading()
            self._loop.call_soon(self._advance)
        elif not self._unread:
            self._transport.resume_reading()

    def _respond(self, request: h11.Request) -> Response:
        method = request.method.decode("latin-1")
        if method not in ("GET", "HEAD"):
            return Response(405, body=b"Method Not Allowed\n", headers=(("Allow", "GET, HEAD"),))
        path, _, query = request.target.decode("latin-1").partition("?")
        handler = self.listener.routes.get(path) or self.listener.routes.get(ANY_PATH)
        if handler is None:
            return Response(404, body=b"404 page not found\n")
        try:
            return handler(Request(method, path, query, _host(request)))
        except Exception:
            log.exception("a request failed", address=str(self.listener), path=path)
            return Response(500, body=b"Internal Server Error\n")

    def _send(self, response: Response, *, last: bool = False) -> None:
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [
            ("Content-Type", response.content_type),
            ("X-Content-Type-Options", "nosniff"),
            ("Date", email.utils.formatdate(usegmt=True)),
            ("Content-Length", str(len(response.body))),
            *response.headers,
        ]
        if last:
            headers.append(("Connection", "close"))
        head = h11.Response(
            status_code=response.status, headers=headers, reason=HTTPStatus(response.status).phrase.encode()
        )
        parts = [self._http.send(head)]
        if self._request is None or self._request.method != b"HEAD":
            parts.append(self._http.send(h11.Data(data=response.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._transport.write(b"".join(part for part in parts if part))

    def _linger(self) -> None:
        """Ends our half and drops what still comes: closing with unread input would lose the answer (RFC 9112, 9.6)."""
        self._lingering = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._restart_timer(LINGER_SECONDS)


def _host(request: h11.Request) -> str:
    """The Host header, of which h11 lets there be one at most; "" where there is none (HTTP/1.0)."""
    return next((value.decode("latin-1") for name, value in request.headers if name == b"host"), "")
