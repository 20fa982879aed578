"""Objects and events as the stub API server has them and sends them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

Key = tuple[str, str]


class Request(NamedTuple):
    """One request as it came. ``kind`` is list, page (a list with ``continue``), watchlist, watch, post or patch."""

    kind: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


class Change(NamedTuple):
    version: int
    old: dict[str, Any] | None
    new: dict[str, Any] | None
    raw: bytes  # of the new object, or of the last one with the version of its deletion; of a bookmark


def service(name: str, ip: str, namespace: str = "default", **spec: object) -> dict[str, Any]:
    """A v1 Service with one port; ``spec`` adds to or replaces fields of its spec."""
    ports = [{"name": "http", "protocol": "TCP", "port": 80}]
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ports": ports, **spec},
    }


def endpoint_slice(name: str, of: str, addresses: Iterable[str], namespace: str = "default") -> dict[str, Any]:
    """A discovery.k8s.io/v1 EndpointSlice of a Service, all endpoints ready."""
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses],
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def key_of(obj: dict[str, Any]) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def selected(request: Request, obj: dict[str, Any] | None) -> bool:
    """The few selectors that proxyd uses: ``!label``, ``metadata.name=``, ``spec.clusterIP!=None``."""
    if not obj:
        return obj is not None
    label, field = request.params.get("labelSelector", ""), request.params.get("fieldSelector", "")
    if label and label.removeprefix("!") in (obj["metadata"].get("labels") or {}):
        return False
    if field.startswith("metadata.name="):
        return bool(obj["metadata"]["name"] == field.partition("=")[2])
    return not field or obj.get("spec", {}).get("clusterIP") != "None"


def event_line(request: Request, change: Change) -> bytes:
    """The event of a change as this watch sees it: leaving its selection is a deletion."""
    if change.old is None and change.new is None:
        return b'{"type":"BOOKMARK","object":%b}\n' % change.raw
    old, new = selected(request, change.old), selected(request, change.new)
    kind = {(False, True): b"ADDED", (True, True): b"MODIFIED", (True, False): b"DELETED"}.get((old, new))
    return b'{"type":"%b","object":%b}\n' % (kind, change.raw) if kind else b""


def first_after(log: list[Change], version: int) -> int:
    at = len(log)
    while at and log[at - 1].version > version:
        at -= 1
    return at


def added_line(raw: bytes) -> bytes:
    return b'{"type":"ADDED","object":%b}\n' % raw


def initial_end(version: int) -> bytes:
    meta = {"resourceVersion": str(version), "annotations": {"k8s.io/initial-events-end": "true"}}
    return b'{"type":"BOOKMARK","object":%b}\n' % json.dumps({"metadata": meta}).encode()


def error_line(code: int, reason: str) -> bytes:
    body = {"kind": "Status", "code": code, "reason": reason, "message": "on demand"}
    return b'{"type":"ERROR","object":%b}\n' % json.dumps(body).encode()


def deep_service(name: str, ip: str, levels: int) -> str:
    """The JSON of a Service with so many levels in its managed fields, which is more than Python's own writer takes."""
    known = service(name, ip)
    known["metadata"] |= {"resourceVersion": "1000", "managedFields": [{"fieldsV1": "DEEP"}]}
    return json.dumps(known).replace('"DEEP"', '{"f:a":' * levels + "{}" + "}" * levels)
