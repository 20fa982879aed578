"""Where the API server is and how one gets in: a kubeconfig or a pod's service account, read by the official package.

Of that package only ``Configuration`` and the loaders are used, and only once they are needed: what it imports beside them
costs more memory than all our objects.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from proxyd.errors import UserError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


class ClientError(UserError):
    """The way to the API server is not (or wrongly) configured; the text is one line for the user."""


class Settings(NamedTuple):
    """A configuration of the kubernetes package, the address that wins over its own, and the files it came from."""

    configuration: Any
    host: str
    files: tuple[str, ...]


def read_settings(kubeconfig: str, master: str, service_account: str) -> Settings:
    """Reads what a kubeconfig says, or the pod's environment if both are ""; ``master`` wins over the server's address.

    Raises ``ClientError``.
    """
    from kubernetes.client import Configuration  # noqa: PLC0415 - costly, and not needed for a folder of manifests

    configuration = Configuration(host="")
    configuration.socket_options = _socket_options()
    configuration.connection_pool_maxsize = 4  # one watch per kind of object and one for Events
    files: tuple[str, ...] = ()
    if kubeconfig:
        files = _load_kubeconfig(configuration, kubeconfig)
    elif not master:
        files = _load_in_cluster(configuration, service_account)
    host = master or configuration.host or ""
    if not host:
        raise ClientError(f"kubeconfig {kubeconfig}: the current context's cluster has no server")
    if "://" not in host:
        host = f"https://{host}" if configuration.ssl_ca_cert or configuration.cert_file else f"http://{host}"
    origin = "--master" if master else f"kubeconfig {kubeconfig}" if kubeconfig else "service account"
    _check_url(host, origin)
    host = host.rstrip("/")
    certificates = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    _check_certificates(*certificates, origin=f"kubeconfig {kubeconfig}" if kubeconfig else origin)
    # Assigned last: the choice of a proxy from the environment depends on it.
    configuration.host = host
    if configuration.proxy:
        proxy = str(configuration.proxy)
        configuration.proxy = proxy if "://" in proxy else f"http://{proxy}"  # as Go reads HTTPS_PROXY
    return Settings(configuration, host, (*files, *(name for name in certificates if name)))


def _load_kubeconfig(configuration: Any, path: str) -> tuple[str, ...]:
    """Fills ``configuration`` from a kubeconfig file; gives the files that hold its credentials."""
    import yaml  # noqa: PLC0415
    from kubernetes.config import ConfigException, load_kube_config  # noqa: PLC0415

    path = os.path.expanduser(path)
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file) or {}
        users = content.get("users") or ()
        _check_user(content)
        load_kube_config(config_file=path, client_configuration=configuration, persist_config=False)
        folder = os.path.dirname(os.path.abspath(path))
        tokens = (user["user"]["tokenFile"] for user in users if "tokenFile" in (user.get("user") or {}))
        return (path, *(os.path.join(folder, token) for token in tokens))
    except OSError as error:
        raise ClientError(f"kubeconfig {error.filename or path}: {error.strerror or error}") from error
    except (ConfigException, yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise ClientError(f"kubeconfig {path} is invalid: {one_line(error)}") from error


def _load_in_cluster(configuration: Any, folder: str) -> tuple[str, ...]:
    """Fills ``configuration`` from the pod's environment and service account; gives the token's file."""
    from kubernetes.config import ConfigException  # noqa: PLC0415
    from kubernetes.config.incluster_config import InClusterConfigLoader  # noqa: PLC0415

    token = os.path.join(folder, "token")
    # Without the package's own refreshing: it would look once a minute, but not after a 401.
    loader = InClusterConfigLoader(token, os.path.join(folder, "ca.crt"), try_refresh_token=False)
    try:
        loader.load_and_set(configuration)
    except (ConfigException, OSError, ValueError) as error:
        raise ClientError(f"no kubeconfig and no master given, and not in a pod: {one_line(error)}") from error
    return (token,)


def _check_user(content: Any) -> None:
    """Finds a user that is not there, whom the package takes for nobody. Raises ValueError."""
    current = next((each for each in content.get("contexts") or () if each["name"] == content["current-context"]), None)
    name = (current["context"] or {}).get("user") if current else None
    if name and name not in [user["name"] for user in content.get("users") or ()]:
        raise ValueError(f"the current context's user {name!r} is not there")


def _check_url(host: str, origin: str) -> None:
    """Finds an address that no connection can be made to. Raises ClientError."""
    try:
        parts = urlsplit(host)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, or half a bracket
        usable = False
    if not usable:
        raise ClientError(f"{origin}: the API server's address {host!r} is not a URL such as https://192.0.2.1:6443")


def _check_certificates(ca: str | None, cert: str | None, key: str | None, *, origin: str) -> None:
    """Finds what TLS would refuse only later, at each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    name = ca
    try:
        if ca:
            context.load_verify_locations(cafile=ca)
        if cert:
            name = cert
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise ClientError(f"{origin}: certificate {name}: {one_line(error)}") from error


def stamps(files: tuple[str, ...]) -> tuple[object, ...]:
    """What tells that a file was written or replaced. Links are followed: mounted secrets are renewed by turning one."""
    found: list[object] = []
    for name in files:
        try:
            stat = os.stat(name)
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


def _socket_options() -> list[tuple[int, int, int]]:
    """TCP keepalive as client-go has it (30 s idle, 9 probes, 15 s apart): a half-open watch ends within 3 minutes."""
    return [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
    ]


def without_password(url: str) -> str:
    """A URL for a message, whatever may be wrong with it."""
    scheme = _SCHEME.match(url)
    start = scheme[0] if scheme else ""
    return start + url[len(start) :].rpartition("@")[2]


def one_line(error: Exception) -> str:
    """What an error says, for a message of one line."""
    return " ".join(str(error).split()) or type(error).__name__
