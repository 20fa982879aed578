"""Calls to the API server in the words of its REST interface, and objects by their manifests."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from tests.controlplane.namespaces import connect
from tests.topology import Host

JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
TIMEOUT = 30.0

Object = Mapping[str, Any]

# Where objects of a kind are, and whether in namespaces.
KINDS = {
    "Namespace": ("namespaces", False),
    "Node": ("nodes", False),
    "Service": ("services", True),
    "Pod": ("pods", True),
    "Secret": ("secrets", True),
    "ServiceAccount": ("serviceaccounts", True),
    "ConfigMap": ("configmaps", True),
    "DaemonSet": ("daemonsets", True),
    "EndpointSlice": ("endpointslices", True),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
}


class ApiRefusedError(Exception):
    """The API server answered with an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


def path_of(manifest: Object) -> str:
    """The path of the object that a manifest describes."""
    plural, namespaced = KINDS[manifest["kind"]]
    version, metadata = manifest["apiVersion"], manifest["metadata"]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    namespace = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
    return f"{root}{namespace}/{plural}/{metadata['name']}"


class Api:
    """Somebody who talks to the API server. Each thread has a connection of its own."""

    def __init__(self, host: Host, port: int, context: ssl.SSLContext, token: str) -> None:
        self._host = host
        self._port = port
        self._context = context
        self._token = token
        self._local = threading.local()

    def call(self, method: str, path: str, body: object = None, content_type: str = JSON) -> Any:
        """Makes a call and gives what is answered, decoded. Raises ``ApiRefusedError``, ``OSError``, ``HTTPException``."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content_type}
        try:
            status, text = self._exchange(method, path, data, headers)
        except (ConnectionError, ssl.SSLError, http.client.BadStatusLine):
            # Perhaps only the connection was an old one, from before a restart of the server.
            status, text = self._exchange(method, path, data, headers)
        if status >= 400:
            raise ApiRefusedError(status, f"{method} {path}: {text.decode(errors='replace')[:500]}")
        return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()

    def _exchange(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        connection = self._connection()
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._local.connection = None
            connection.close()
            raise

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None or connection.sock is None:
            sock = self._context.wrap_socket(connect(self._host, self._port, TIMEOUT), server_hostname="127.0.0.1")
            connection = http.client.HTTPConnection("127.0.0.1", self._port)
            connection.sock = sock
            self._local.connection = connection
        return connection

    def get(self, path: str, **parameters: str) -> Any:
        """Reads an object or a list."""
        return self.call("GET", path + (f"?{urlencode(parameters)}" if parameters else ""))

    def create(self, manifest: Object) -> Any:
        """Creates an object."""
        return self.call("POST", path_of(manifest).rsplit("/", 1)[0], manifest)

    def apply(self, manifest: Object, **parameters: str) -> Any:
        """Makes an object what its manifest says, be it there or not."""
        query = urlencode({"fieldManager": "tests", "force": "true", **parameters})
        return self.call("PATCH", f"{path_of(manifest)}?{query}", manifest, APPLY)

    def apply_file(self, file: Path) -> None:
        """Applies every object of a YAML file."""
        for manifest in yaml.safe_load_all(file.read_text()):
            self.apply(manifest)

    def patch(self, path: str, patch: Object) -> Any:
        """Changes some fields of an object."""
        return self.call("PATCH", path, patch, MERGE)

    def delete(self, path: str) -> None:
        """Deletes an object, or all of a collection; none being there is fine too."""
        try:
            self.call("DELETE", path, {"gracePeriodSeconds": 0})
        except ApiRefusedError as error:
            if error.status != 404:
                raise

    def delete_all(self, manifests: Iterable[Object]) -> None:
        """Deletes the objects that these manifests describe."""
        for manifest in manifests:
            self.delete(path_of(manifest))
