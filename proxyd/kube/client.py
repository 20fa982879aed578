"""Requests to the API server, by urllib3, with credentials and TLS from the official ``kubernetes`` package.

Of that package ``ApiClient`` is used for its connection pool, beside what ``kube/kubeconfig.py`` uses, and only once
``connect`` is called: its models, watch and informer cost several times the memory of all our objects.
"""

from __future__ import annotations

import ssl
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec
import structlog
import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    DependencyWarning,
    HTTPError,
    NewConnectionError,
    ReadTimeoutError,
    SSLError,
)

from proxyd import __version__
from proxyd.kube import nesting
from proxyd.kube.kubeconfig import ClientError, Settings, one_line, read_settings, stamps, without_password
from proxyd.kube.tls import tls_context

CONNECT_SECONDS = 10.0
# An answer begins long before this, also to a watch; what may be silent for longer is only the stream behind the headers.
HEADER_SECONDS = 30.0
RECHECK_SECONDS = 60.0
CHUNK = 64 * 1024
WRITE_SECONDS = 15.0
MERGE_PATCH = "application/merge-patch+json"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

log = structlog.get_logger()


class ApiError(Exception):
    """The API server answered with an error. ``retry_after`` is in seconds, 0 where the server named none."""

    def __init__(self, status: int, reason: str, retry_after: float = 0.0, message: str = "") -> None:
        super().__init__(f"{status} {reason}" + (f": {message}" if message else ""))
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


class TransportError(Exception):
    """No (complete) answer. ``reason`` is one of connect, tls, timeout, stream: a metric label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class _Status(msgspec.Struct):
    """The part of meta/v1 Status that an error body may carry."""

    reason: str | None = None
    message: str | None = None


_STATUS = msgspec.json.Decoder(_Status)


class Response:
    """The body of one answer, read by one thread; ``abort`` may come from another.

    ``clock_offset`` is by how many seconds the server's clock was ahead of ours, None where it did not tell the time.
    """

    def __init__(self, raw: urllib3.BaseHTTPResponse) -> None:
        self._raw = raw
        self.clock_offset = _clock_offset(raw.headers.get("Date"))

    def read1(self) -> bytes:
        """Waits for data and gives what there is (at most 64 KiB), b"" at the end of the body. Raises TransportError.

        Never a buffered reader over this: it would hold an event back until its buffer is full.
        """
        try:
            return self._raw.read1(CHUNK)
        except (HTTPError, OSError, ValueError) as error:
            raise _transport_error(error) from error

    def read(self) -> bytes:
        """Reads the rest of the body. Raises TransportError."""
        try:
            return self._raw.read()
        except (HTTPError, OSError, ValueError) as error:
            raise _transport_error(error) from error

    def set_read_timeout(self, seconds: float) -> None:
        """Bounds the wait of each later read."""
        raw: Any = self._raw
        sock = getattr(raw.connection, "sock", None)
        if sock is None:
            # Where the server said that it will close the connection, the body alone has the socket.
            body = getattr(raw._fp, "fp", None)
            sock = getattr(getattr(body, "raw", None), "_sock", None)
        if sock is not None:
            sock.settimeout(seconds)

    def abort(self) -> None:
        """Ends a read that waits in another thread: it raises TransportError or gives b""."""
        try:
            self._raw.shutdown()
        except (OSError, ValueError, RuntimeError, AttributeError):
            return  # already at its end, nobody waits any more

    def close(self) -> None:
        """Gives the connection back if the body was read to its end, else closes it."""
        self._raw.close()


class RequestObserver(Protocol):
    """Who counts requests (the metrics). Called on the thread that asks; must be quick and never raise."""

    def answered(self, method: str, host: str, status: int, seconds: float) -> None:
        """The head of an answer came after that time; ``status`` 0: none came. ``host`` has its port."""


class Client:
    """Requests to one API server. Safe for several threads; each open ``Response`` has a connection of its own."""

    def __init__(
        self,
        load: Callable[[], Settings],
        clock: Callable[[], float] = time.monotonic,
        observer: RequestObserver | None = None,
    ) -> None:
        """``load`` reads the configuration anew and raises ClientError; ``clock`` gives monotonic seconds."""
        self._load = load
        self._clock = clock
        self._observer = observer
        self._lock = threading.Lock()
        self._checked = clock()
        self._stamps: tuple[object, ...] = ()
        self._build(load())

    @property
    def host(self) -> str:
        """Base URL of the API server."""
        return self._settings.host

    def get(self, path: str, params: Mapping[str, str], *, read_timeout: float) -> Response:
        """Sends a GET and gives the answer once its headers are here; at most ``read_timeout`` s pass between reads.

        Raises ApiError for a status from 300 on, TransportError where no answer came. Never retries, follows no redirect.
        """
        target = path + (f"?{urlencode(params)}" if params else "")
        response = self._send("GET", target, min(read_timeout, HEADER_SECONDS))
        response.set_read_timeout(read_timeout)
        return response

    def post(self, path: str, body: bytes) -> None:
        """Creates an object from its JSON. Raises as ``get`` does, and never retries either."""
        self._write("POST", path, body, "application/json")

    def patch(self, path: str, body: bytes) -> None:
        """Changes an object by a JSON merge patch (RFC 7386). Raises as ``get`` does, and never retries either."""
        self._write("PATCH", path, body, MERGE_PATCH)

    def _write(self, method: str, path: str, body: bytes, content_type: str) -> None:
        response = self._send(method, path, WRITE_SECONDS, body, content_type)
        try:
            response.read()  # only then can its connection be used again
        finally:
            response.close()

    def _send(
        self, method: str, target: str, timeout: float, body: bytes | None = None, content_type: str = ""
    ) -> Response:
        """Sends a request and gives the answer once its headers are here, which may take ``timeout`` seconds."""
        pool, headers = self._ready()
        if content_type:
            headers["Content-Type"] = content_type
        limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=timeout)
        started = self._clock()
        status = 0
        try:
            raw = pool.request(
                method,
                self.host + target,
                body=body,
                headers=headers,
                timeout=limits,
                retries=False,
                redirect=False,
                preload_content=False,
            )
            status = raw.status
        except (HTTPError, OSError, ValueError) as error:
            raise _transport_error(error) from error
        finally:
            if self._observer is not None:
                self._observer.answered(method, urlsplit(self.host).netloc, status, self._clock() - started)
        if status >= 300:
            raise _api_error(raw)
        return Response(raw)

    def refresh(self) -> None:
        """Reads credentials and certificates anew, at once: for use after a 401 or a TLS error. Failing keeps the old."""
        with self._lock:
            self._reload()

    def _ready(self) -> tuple[urllib3.PoolManager, dict[str, str]]:
        with self._lock:
            if self._clock() - self._checked >= RECHECK_SECONDS:
                self._checked = self._clock()
                if stamps(self._settings.files) != self._stamps:
                    self._reload()
            headers = {"Accept": "application/json", "User-Agent": f"proxyd/{__version__}"}
            # The package's hook behind this call runs an exec plugin again once its token expires.
            token = self._settings.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
            if token and token.strip():
                headers["Authorization"] = token.strip()
            return self._pool, headers

    def _reload(self) -> None:
        try:
            self._build(self._load())
        except ClientError as error:
            # Most likely caught in the middle of a rotation; what we have may well still be good.
            log.warning("API client configuration not reloaded, keeping the old one", error=str(error))

    def _build(self, settings: Settings) -> None:
        """Takes these settings. Raises ClientError, and keeps those before then."""
        from kubernetes.client import ApiClient  # noqa: PLC0415 - costly, and not needed for a folder of manifests

        try:
            if (proxy := settings.configuration.proxy) and not urllib3.util.parse_url(proxy).host:
                raise ValueError("no host")
            with warnings.catch_warnings(action="ignore", category=DependencyWarning):  # said below
                pool: urllib3.PoolManager = ApiClient(settings.configuration).rest_client.pool_manager
        except (ImportError, ValueError, HTTPError) as error:
            # Of all that the package is given, this alone has not been looked at before.
            raise ClientError(
                f"the proxy {without_password(proxy)!r} (HTTPS_PROXY or proxy-url) cannot be used:"
                " it must be a URL such as http://192.0.2.1:3128; SOCKS is not supported"
            ) from error
        pool.connection_pool_kw["ssl_context"] = tls_context(settings.configuration)
        self._settings, self._pool = settings, pool
        self._checked = self._clock()
        self._stamps = stamps(settings.files)


def connect(
    kubeconfig: str,
    master: str,
    *,
    service_account: str = SERVICE_ACCOUNT,
    clock: Callable[[], float] = time.monotonic,
    observer: RequestObserver | None = None,
) -> Client:
    """Builds the client of the API server named by a kubeconfig file, or by the pod's environment if both are "".

    ``master`` (a URL) wins over the kubeconfig's server, as kube-proxy's --master does. Sends nothing yet. Raises
    ClientError. Credentials and certificates follow their files: looked at once a minute, and by ``Client.refresh``.
    """
    return Client(lambda: read_settings(kubeconfig, master, service_account), clock, observer)


def _api_error(raw: urllib3.BaseHTTPResponse) -> ApiError:
    """Reads what an error answer has to say (a meta/v1 Status, if the API server itself sent it) and closes it."""
    try:
        status = nesting.decode(_STATUS, raw.read(CHUNK))
    except (HTTPError, OSError, ValueError, msgspec.MsgspecError):
        status = _Status()
    raw.close()
    after = raw.headers.get("Retry-After") or ""
    reason = status.reason or raw.reason or "error"
    return ApiError(raw.status, reason, float(after) if after.isdecimal() else 0.0, status.message or "")


def _clock_offset(date: str | None) -> float | None:
    """What the Date header says, which knows whole seconds only."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time() if date else None
    except (ValueError, OverflowError):
        return None


def _transport_error(error: Exception) -> TransportError:
    if isinstance(error, ConnectTimeoutError | NewConnectionError):
        reason = "connect"
    elif isinstance(error, ReadTimeoutError | TimeoutError):
        reason = "timeout"
    elif isinstance(error, SSLError | ssl.SSLError):
        reason = "tls"
    else:
        reason = "stream"
    return TransportError(reason, one_line(error))
