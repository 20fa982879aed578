"""What lies between a proxy and the API server: TLS ends here and begins anew, and on the way requests are counted,
refused, delayed, and streams are ended, broken or frozen.

It listens in the namespace of the proxy and asks in that of the API server, each request on a connection of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.controlplane.namespaces import connect, listen
from tests.topology import Host

HOP = ("Connection", "Transfer-Encoding", "Content-Length")
# Not the one of the API server: both may be in one namespace.
NEAR_PORT = 7443
END_OF_CHUNKS = b"0\r\n\r\n"


class Asked(NamedTuple):
    """A request that came: when (monotonic seconds), for what, and the status answered (0: none)."""

    at: float
    resource: str
    query: dict[str, str]
    status: int

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"


class Stream:
    """An open watch, on its way to the proxy. Safe for several threads."""

    def __init__(self, resource: str, near: socket.socket, far: socket.socket) -> None:
        self.resource = resource
        self.opened = time.monotonic()
        self._near = near
        self._far = far
        self._changed = threading.Condition()
        self._frozen = False
        self._over = False

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        with self._changed:
            return self._over

    def pass_on(self, line: bytes) -> bool:
        """Sends a line, once nothing is frozen any more; tells whether the stream goes on."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or not self._frozen)
            if not self._over:
                self._near.sendall(chunk(line))
            return not self._over

    def say(self, line: bytes) -> None:
        """Sends a line that the server never sent."""
        with self._changed:
            self._near.sendall(chunk(line))

    def freeze(self) -> None:
        """From now on nothing comes any more, and nothing tells so."""
        with self._changed:
            self._frozen = True

    def end(self, farewell: bytes = END_OF_CHUNKS) -> None:
        """Ends it, with these bytes: well-mannered unless told otherwise."""
        with self._changed:
            if self._over:
                return
            self._over = True
            with contextlib.suppress(OSError):
                self._near.sendall(farewell)
            if farewell != END_OF_CHUNKS:
                _shut(self._near)
            _shut(self._far)
            self._changed.notify_all()

    def break_off(self) -> None:
        """Ends it in the middle of an event."""
        self.end(chunk(b'{"type":"MODIFIED","object":{"metadata":{"na'))


class Weather:
    """Fair until told otherwise; what it is told holds from then on. A context manager: all is closed after it."""

    def __init__(
        self,
        near: Host,
        far: tuple[Host, int],
        server: ssl.SSLContext,
        client: ssl.SSLContext,
        streaming_lists: bool = True,
    ) -> None:
        """Listens on the loopback of ``near``, the proxy's namespace; ``far`` is where the API server listens.

        Without ``streaming_lists`` it answers as API servers do that have none.
        """
        self.url = f"https://127.0.0.1:{NEAR_PORT}"
        self._near = near
        self._far, self._far_port = far
        self._server_context, self._client_context = server, client
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._streams: set[Stream] = set()
        self._asked: list[Asked] = []
        self.refused_certificates = 0
        self._refusal: tuple[int, dict[str, str]] | None = None
        self._delay, self._delayed = 0.0, ""
        self._rewrite: Callable[[bytes], bytes] = _as_it_is
        self._streaming_lists = streaming_lists
        self._hurry = threading.Event()
        self.let_in()

    def __enter__(self) -> Weather:
        return self

    def __exit__(self, *_: object) -> None:
        self._hurry.set()
        self.shut_out()

    # -- what can be told ----------------------------------------------------------------------------------------------

    def let_in(self) -> None:
        """Takes connections."""
        self._listener = listener = listen(self._near, NEAR_PORT)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def shut_out(self) -> None:
        """Ends everything that is open and refuses every connection (RST), as a machine without the server does."""
        with self._lock:
            listener, self._listener = self._listener, None
            connections = tuple(self._connections)
        if listener is not None:
            _shut(listener)
            listener.close()
        for stream in self.streams():
            stream.end(b"")
        for connection in connections:
            _shut(connection)

    def present(self, server: ssl.SSLContext) -> None:
        """Shows another certificate, and has everybody look at it: open connections end."""
        self._server_context = server
        self.shut_out()
        self.let_in()

    def refuse(self, status: int, **headers: str) -> None:
        """Answers every request so, with headers such as Retry_After; 0 lets requests pass again."""
        self._refusal = (status, {name.replace("_", "-"): value for name, value in headers.items()}) if status else None

    def delay(self, seconds: float, parameter: str = "") -> None:
        """Holds every answer back for so long, or only those to requests with this parameter."""
        self._delay, self._delayed = seconds, parameter

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Passes every header value and every line of a body through ``change``."""
        self._rewrite = change

    # -- what can be seen ----------------------------------------------------------------------------------------------

    def asked(self, resource: str = "") -> list[Asked]:
        """The requests so far, for all resources or for one."""
        with self._lock:
            return [each for each in self._asked if resource in ("", each.resource)]

    def streams(self, resource: str = "") -> list[Stream]:
        """The watches that are open now."""
        with self._lock:
            return [each for each in self._streams if resource in ("", each.resource) and not each.over]

    # -- how it works --------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            plain.settimeout(30)
            secured = self._server_context.wrap_socket(plain, server_side=True)
            secured.settimeout(None)
        except OSError:  # also what TLS complains about
            self.refused_certificates += 1
            plain.close()
            return
        secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._connections.add(secured)
        try:
            with secured, contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                _Handler(secured, ("", 0), self)  # type: ignore[arg-type]
        finally:
            with self._lock:
                self._connections.discard(secured)

    def answer(self, handler: _Handler) -> None:
        """Answers one request."""
        parts = urlsplit(handler.path)
        resource = parts.path.rsplit("/", 1)[-1]
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        asked = Asked(time.monotonic(), resource, query, 0)
        if self._delay and (not self._delayed or self._delayed in query):
            self._hurry.wait(self._delay)
        refusal = self._refusal
        if "sendInitialEvents" in query and not self._streaming_lists:
            refusal = (422, {})
        if refusal is not None:
            status, headers = refusal
            self._note(asked, status)
            handler.send(status, headers, _status_body(status))
            return
        try:
            connection = self._ask(handler)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException):
            self._note(asked, 0)
            raise
        with contextlib.closing(connection):
            self._note(asked, response.status)
            headers = {name: self._rewritten(value) for name, value in response.getheaders() if name not in HOP}
            if asked.watch and response.status == 200:
                handler.begin(headers)
                self._follow(Stream(resource, handler.connection, connection.sock), response)
            else:
                handler.send(response.status, headers, self._rewrite(response.read()))

    def _note(self, asked: Asked, status: int) -> None:
        with self._lock:
            self._asked.append(asked._replace(status=status))

    def _ask(self, handler: _Handler) -> http.client.HTTPConnection:
        """Asks the API server the same."""
        connection = http.client.HTTPConnection("127.0.0.1")
        raw = connect(self._far, self._far_port, 30)
        raw.settimeout(None)
        connection.sock = self._client_context.wrap_socket(raw, server_hostname="127.0.0.1")
        connection.putrequest(handler.command, handler.path, skip_accept_encoding=True)
        for name in ("Authorization", "Accept", "User-Agent", "Content-Type", "Content-Length"):
            if value := handler.headers.get(name):
                connection.putheader(name, value)
        connection.endheaders(handler.body())
        return connection

    def _rewritten(self, text: str) -> str:
        return self._rewrite(text.encode("latin-1")).decode("latin-1")

    def _follow(self, stream: Stream, response: http.client.HTTPResponse) -> None:
        with self._lock:
            self._streams.add(stream)
        try:
            while line := response.readline():
                if not stream.pass_on(self._rewrite(line)):
                    return
            stream.end()
        except (OSError, ValueError, http.client.HTTPException):
            stream.end(b"")  # as it broke off there, it breaks off here
            raise
        finally:
            with self._lock:
                self._streams.discard(stream)


class _Handler(BaseHTTPRequestHandler):
    """The server's side of one connection."""

    protocol_version = "HTTP/1.1"
    server: Weather  # type: ignore[assignment]  # no server of that package: it is only asked to answer

    def do_GET(self) -> None:
        try:
            self.server.answer(self)
        except BaseException:
            self.close_connection = True
            raise

    do_POST = do_PATCH = do_GET  # noqa: N815 - what that package calls them

    def body(self) -> bytes | None:
        """What came with the request."""
        length = int(self.headers.get("Content-Length") or 0)
        return self.rfile.read(length) if length else None

    def send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Sends a whole answer."""
        self._head(status, {**headers, "Content-Length": str(len(body))})
        self.wfile.write(body)

    def begin(self, headers: Mapping[str, str]) -> None:
        """Sends the head of an answer that comes in chunks."""
        self._head(200, {**headers, "Transfer-Encoding": "chunked"})

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name is given
        """Says nothing."""


def _as_it_is(data: bytes) -> bytes:
    return data


def chunk(data: bytes) -> bytes:
    """Data as a chunk of HTTP/1.1."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def _status_body(status: int) -> bytes:
    phrase = http.client.responses[status]
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": status,
        "reason": phrase.replace(" ", ""),
    }
    return json.dumps(body).encode()


def _shut(sock: socket.socket) -> None:
    """Ends both directions, without TLS having a say; whoever waits on it wakes up."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
