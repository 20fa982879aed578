"""JSON of the API to the model, and nothing but the fields that proxyd needs (msgspec skips the rest unread).

One object that cannot be read is a refusal with a reason, never an error of the stream it came in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

import msgspec

from proxyd.addresses import canonical, is_usable_endpoint
from proxyd.kube import nesting
from proxyd.model import (
    TO_BE_DELETED_TAINT,
    Endpoint,
    EndpointSlice,
    Family,
    Node,
    Service,
    ServiceKey,
    ServicePort,
    SlicePort,
)

SERVICE_NAME_LABEL = "kubernetes.io/service-name"
PROXY_NAME_LABEL = "service.kubernetes.io/service-proxy-name"
HEADLESS_LABEL = "service.kubernetes.io/headless"
TRIGGER_TIME_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"
ZONE_LABEL = "topology.kubernetes.io/zone"

ObjectKey = tuple[str, str]
T = TypeVar("T")


class Decoded(NamedTuple, Generic[T]):
    """One decoded object. ``value`` None: not for this proxy, or, with ``refused``, why it could not be read."""

    key: ObjectKey
    resource_version: str
    value: T | None
    refused: str = ""


class _Struct(msgspec.Struct, gc=False, rename="camel"):
    """Base of the wire types: camel case, unknown fields skipped. Every field may be null or absent in JSON."""


class _Meta(_Struct):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Port(_Struct):
    name: str | None = None
    protocol: str | None = None
    port: int | None = None
    node_port: int | None = None


class _ClientIP(_Struct):
    timeout_seconds: int | None = None


class _AffinityConfig(_Struct):
    client_ip: _ClientIP | None = msgspec.field(default=None, name="clientIP")


class _ServiceSpec(_Struct):
    type: str | None = None
    ports: list[_Port] | None = None
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    cluster_ips: list[str] | None = msgspec.field(default=None, name="clusterIPs")
    external_ips: list[str] | None = msgspec.field(default=None, name="externalIPs")
    load_balancer_source_ranges: list[str] | None = None
    session_affinity: str | None = None
    session_affinity_config: _AffinityConfig | None = None
    external_traffic_policy: str | None = None
    internal_traffic_policy: str | None = None
    health_check_node_port: int | None = None


class _Ingress(_Struct):
    ip: str | None = None
    ip_mode: str | None = None


class _LoadBalancer(_Struct):
    ingress: list[_Ingress] | None = None


class _ServiceStatus(_Struct):
    load_balancer: _LoadBalancer | None = None


class _Service(_Struct):
    metadata: _Meta
    spec: _ServiceSpec | None = None
    status: _ServiceStatus | None = None


class _Conditions(_Struct):
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Named(_Struct):
    name: str | None = None


class _Hints(_Struct):
    for_zones: list[_Named] | None = None
    for_nodes: list[_Named] | None = None


class _Endpoint(_Struct):
    addresses: list[str] | None = None
    conditions: _Conditions | None = None
    node_name: str | None = None
    hints: _Hints | None = None


class _EndpointSlice(_Struct):
    metadata: _Meta
    address_type: str | None = None
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _Address(_Struct):
    type: str | None = None
    address: str | None = None


class _NodeStatus(_Struct):
    addresses: list[_Address] | None = None


class _Taint(_Struct):
    key: str | None = None


class _NodeSpec(_Struct):
    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")
    taints: list[_Taint] | None = None


class _Node(_Struct):
    metadata: _Meta
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _Identity(_Struct):
    name: str | None = None
    namespace: str | None = None
    resource_version: str | None = None


class _OnlyIdentity(_Struct):
    """Who an object is and nothing else: labels, say, may be what is wrong with it."""

    metadata: _Identity


_SERVICE = msgspec.json.Decoder(_Service)
_SLICE = msgspec.json.Decoder(_EndpointSlice)
_NODE = msgspec.json.Decoder(_Node)
_IDENTITY = msgspec.json.Decoder(_OnlyIdentity)


def _decoded(
    raw: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T], convert: Callable[[T, ObjectKey], object]
) -> Decoded[object]:
    """Decodes one object; on a wrong type falls back to its metadata, so that the stream can go on behind it.

    Raises ``msgspec.MsgspecError`` where not even name and version can be read.
    """
    try:
        wire = nesting.decode(decoder, raw)
    except msgspec.ValidationError as error:
        identity = nesting.decode(_IDENTITY, raw).metadata
        key = (identity.namespace or "", identity.name or "")
        return Decoded(key, identity.resource_version or "", None, str(error))
    meta = wire.metadata  # type: ignore[attr-defined]
    key = (meta.namespace or "", meta.name or "")
    if not key[1]:
        return Decoded(key, meta.resource_version or "", None, "no metadata.name")
    return Decoded(key, meta.resource_version or "", convert(wire, key))


def decode_service(raw: bytes | msgspec.Raw) -> Decoded[Service]:
    """Decodes a v1 Service. ``value`` is None for headless, ExternalName and other proxies' Services (KEP-2447)."""
    return _decoded(raw, _SERVICE, _service)  # type: ignore[return-value]


def decode_endpoint_slice(raw: bytes | msgspec.Raw) -> Decoded[EndpointSlice]:
    """Decodes a discovery.k8s.io/v1 EndpointSlice. ``value`` is None for FQDN, headless and unowned slices."""
    return _decoded(raw, _SLICE, _endpoint_slice)  # type: ignore[return-value]


def decode_node(raw: bytes | msgspec.Raw) -> Decoded[Node]:
    """Decodes a v1 Node."""
    return _decoded(raw, _NODE, _node)  # type: ignore[return-value]


def _service(wire: _Service, key: ObjectKey) -> Service | None:
    spec = wire.spec or _ServiceSpec()
    cluster_ips = tuple(ip for ip in (spec.cluster_ips or [spec.cluster_ip or ""]) if ip and ip != "None")
    if not cluster_ips or spec.type == "ExternalName" or PROXY_NAME_LABEL in (wire.metadata.labels or {}):
        return None
    return Service(
        key=ServiceKey(*key),
        ports=tuple(
            ServicePort(p.name or "", (p.protocol or "TCP").lower(), p.port or 0, p.node_port or 0)
            for p in spec.ports or ()
        ),
        cluster_ips=cluster_ips,
        external_ips=tuple(spec.external_ips or ()),
        ingress_ips=_ingress_ips(wire.status),
        source_ranges=tuple(spec.load_balancer_source_ranges or ()),
        affinity_seconds=_affinity_seconds(spec),
        internal_local=spec.internal_traffic_policy == "Local",
        external_local=spec.external_traffic_policy == "Local",
        health_check_node_port=spec.health_check_node_port or 0 if spec.type == "LoadBalancer" else 0,
        created=wire.metadata.creation_timestamp or "",
        uid=wire.metadata.uid or "",
    )


def _ingress_ips(status: _ServiceStatus | None) -> tuple[str, ...]:
    """Load balancer addresses to capture: ipMode VIP or unset (KEP-1860)."""
    ingress = status.load_balancer.ingress if status and status.load_balancer else None
    return tuple(entry.ip for entry in ingress or () if entry.ip and entry.ip_mode in (None, "", "VIP"))


def _affinity_seconds(spec: _ServiceSpec) -> int:
    if spec.session_affinity != "ClientIP":
        return 0
    client_ip = spec.session_affinity_config.client_ip if spec.session_affinity_config else None
    return (client_ip.timeout_seconds if client_ip else None) or 10800


_ADDRESS_TYPES = {"IPv4": Family.IPV4, "IPv6": Family.IPV6}


def _endpoint_slice(wire: _EndpointSlice, key: ObjectKey) -> EndpointSlice | None:
    labels = wire.metadata.labels or {}
    family = _ADDRESS_TYPES.get(wire.address_type or "")
    service = labels.get(SERVICE_NAME_LABEL)
    if family is None or not service or HEADLESS_LABEL in labels or PROXY_NAME_LABEL in labels:
        return None
    refused: list[str] = []
    endpoints = tuple(
        endpoint for entry in wire.endpoints or () if (endpoint := _endpoint(entry, family, refused)) is not None
    )
    ports = tuple(port for entry in wire.ports or () if (port := _slice_port(entry, refused)) is not None)
    trigger = (wire.metadata.annotations or {}).get(TRIGGER_TIME_ANNOTATION)
    return EndpointSlice(
        key[0], key[1], ServiceKey(key[0], service), family, endpoints, ports, tuple(refused), _unix_time(trigger)
    )


def _slice_port(entry: _Port, refused: list[str]) -> SlicePort | None:
    """A missing name means the unnamed port; a missing number means "all ports", which a proxy cannot serve."""
    if not entry.port:
        return None
    if not 1 <= entry.port <= 65535:
        refused.append(f"port {entry.port}")
        return None
    return SlicePort(entry.name or "", (entry.protocol or "TCP").lower(), entry.port)


_READY = _Conditions()
# One string object for each node or zone name, however often the cluster repeats it; gone with its last user.
_shared = sys.intern


def _names(hints: list[_Named] | None) -> tuple[str, ...]:
    return tuple(_shared(hint.name) for hint in hints or () if hint.name)


def _endpoint(entry: _Endpoint, family: Family, refused: list[str]) -> Endpoint | None:
    """The first address of an endpoint counts (the API says so); one that cannot be used is named in ``refused``."""
    if not entry.addresses:
        return None
    address = canonical(entry.addresses[0])
    if address is None or address[0] is not family or not is_usable_endpoint(*address):
        refused.append(entry.addresses[0])
        return None
    conditions = entry.conditions or _READY
    hints = entry.hints
    return Endpoint(
        address[1],
        conditions.ready is not False,
        conditions.serving is not False,
        conditions.terminating is True,
        _shared(entry.node_name) if entry.node_name else None,
        _names(hints.for_zones) if hints else (),
        _names(hints.for_nodes) if hints else (),
    )


def _unix_time(text: str | None) -> float | None:
    """Reads an RFC 3339 time in UTC with up to nine digits of fraction; None where it is not one."""
    if not text or not text.endswith("Z"):
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _node(wire: _Node, key: ObjectKey) -> Node:
    spec, listed = wire.spec or _NodeSpec(), (wire.status.addresses if wire.status else None) or []
    in_order = [a for kind in ("InternalIP", "ExternalIP") for a in listed if a.type == kind]
    addresses = (found[1] for a in in_order if (found := canonical(a.address or "")))
    return Node(
        name=key[1],
        addresses=tuple(dict.fromkeys(addresses)),
        zone=(wire.metadata.labels or {}).get(ZONE_LABEL, ""),
        pod_cidrs=tuple(spec.pod_cidrs or ([spec.pod_cidr] if spec.pod_cidr else [])),
        deleting=wire.metadata.deletion_timestamp is not None,
        to_be_deleted_taint=any(t.key == TO_BE_DELETED_TAINT for t in spec.taints or ()),
    )
