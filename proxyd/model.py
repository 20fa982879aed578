"""The values that walk the line: a Service, an EndpointSlice, the own Node, and what there is to say about them.

Frozen and slim (a node holds tens of thousands of endpoints); no I/O and no behaviour beyond naming.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec


class CamelStruct(msgspec.Struct, frozen=True, rename="camel"):
    """What programs are told as JSON: its fields have names in camel case there, as in Kubernetes."""


class Family(StrEnum):
    """An address family; the value is the ``ip_family`` label of the metrics (kube-proxy's)."""

    IPV4 = "IPv4"
    IPV6 = "IPv6"


FAMILIES = (Family.IPV4, Family.IPV6)

# Lower-case, as both nftables and iptables spell it; the API's spelling ends at the decoder.
PROTOCOLS = frozenset({"tcp", "udp", "sctp"})


class ServiceKey(NamedTuple):
    """Namespace and name of a Service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Reason(StrEnum):
    """Why a Finding exists: a closed list, used as a metric label and documented for operators."""

    UNREADABLE_OBJECT = "unreadable-object"
    INVALID_PORT = "invalid-port"
    INVALID_ADDRESS = "invalid-address"
    INVALID_SOURCE_RANGE = "invalid-source-range"
    INVALID_AFFINITY = "invalid-affinity"
    INVALID_ENDPOINT = "invalid-endpoint"
    DUPLICATE_PORT = "duplicate-port"
    FRONTEND_CONFLICT = "frontend-conflict"
    KERNEL_REFUSED = "kernel-refused"
    INTERNAL_ERROR = "internal-error"
    NODE_NOT_FOUND = "node-not-found"
    POD_RANGE_UNKNOWN = "pod-range-unknown"
    FAMILY_MISMATCH = "family-mismatch"
    CONFIGURATION_REFUSED = "configuration-refused"


class Cause(StrEnum):
    """What makes rules change: a closed list, used as a metric label."""

    SERVICE = "service"
    ENDPOINTS = "endpoints"
    NODE = "node"
    DRIFT = "drift"


class Origin(StrEnum):
    """Where a change comes from: a kind of object, this host, its configuration, others' edits, or proxyd itself."""

    SERVICE = "Service"
    ENDPOINTS = "EndpointSlice"
    NODE = "Node"
    HOST = "HostAddresses"
    CONFIGURATION = "Configuration"
    EDIT = "ForeignEdit"
    COMPARISON = "Comparison"
    RETRY = "Retry"
    START = "Start"


class Action(StrEnum):
    """What became of an object; ``NONE`` where there is no object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"
    UNREADABLE = "unreadable"
    NONE = ""


class Event(msgspec.Struct, frozen=True, gc=False):
    """Something that asked for a pass. ``object`` is its namespace and name, or in words what it is about."""

    origin: Origin
    object: str = ""
    action: Action = Action.NONE


class Finding(msgspec.Struct, frozen=True, gc=False):
    """Something a user should know about one object: returned as data, read by log, metrics, Events and explain."""

    kind: str
    object: str
    reason: Reason
    message: str


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    """One address of an EndpointSlice (discovery.k8s.io/v1 Endpoint), its address canonical."""

    address: str
    ready: bool = True
    serving: bool = True
    terminating: bool = False
    node: str | None = None
    zone_hints: tuple[str, ...] = ()
    node_hints: tuple[str, ...] = ()


class SlicePort(msgspec.Struct, frozen=True, gc=False):
    """A port of an EndpointSlice: its *name* and protocol tie it to the Service's port, not its number."""

    name: str
    protocol: str
    port: int


class EndpointSlice(msgspec.Struct, frozen=True, gc=False):
    """What proxyd keeps of an EndpointSlice; ``refused`` names addresses and ports in it that cannot be used.

    ``trigger`` is the change trigger time in Unix seconds, None if unknown.
    """

    namespace: str
    name: str
    service: ServiceKey
    family: Family
    endpoints: tuple[Endpoint, ...] = ()
    ports: tuple[SlicePort, ...] = ()
    refused: tuple[str, ...] = ()
    trigger: float | None = None


class ServicePort(msgspec.Struct, frozen=True, gc=False):
    """A port of a Service as the API gave it (numbers not yet checked)."""

    name: str
    protocol: str
    port: int
    node_port: int = 0


class Service(msgspec.Struct, frozen=True, gc=False):
    """What proxyd keeps of a Service: its addresses as the API spelled them; admission canonicalises and judges them.

    ``created`` is the creationTimestamp as the API wrote it (RFC 3339, sorts as text; "" where there is none).
    ``uid`` is what Events refer to.
    ``affinity_seconds`` is 0 without ClientIP affinity. ``ingress_ips`` leaves out ipMode Proxy and host names.
    """

    key: ServiceKey
    ports: tuple[ServicePort, ...] = ()
    cluster_ips: tuple[str, ...] = ()
    external_ips: tuple[str, ...] = ()
    ingress_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    affinity_seconds: int = 0
    internal_local: bool = False
    external_local: bool = False
    health_check_node_port: int = 0
    created: str = ""
    uid: str = ""


# Set by the cluster autoscaler on a node that is about to go.
TO_BE_DELETED_TAINT = "ToBeDeletedByClusterAutoscaler"


class Node(msgspec.Struct, frozen=True, gc=False):
    """What proxyd keeps of its own Node: addresses (InternalIP first), zone, pod ranges, and whether it is leaving."""

    name: str
    addresses: tuple[str, ...] = ()
    zone: str = ""
    pod_cidrs: tuple[str, ...] = ()
    deleting: bool = False
    to_be_deleted_taint: bool = False


class HostAddress(NamedTuple):
    """One address of the host (canonical) on one of its interfaces (an index).

    ``scope`` is global, site, link or host. Not ``usable``: its interface is down, or it may belong to somebody else
    (duplicate address detection). Not ``preferred``: answered like any other, but deprecated, temporary (IPv6 privacy) or
    secondary (a second IPv4 address of a network), so that it may go at any time.
    """

    family: Family
    address: str
    interface: int
    scope: str = "global"
    preferred: bool = True
    usable: bool = True


class HostState(NamedTuple):
    """The addresses of the host, and the interface that leads to the outside, for each family that has one."""

    addresses: tuple[HostAddress, ...] = ()
    default_interfaces: Mapping[Family, int] = MappingProxyType({})


class LocalDetector(msgspec.Struct, frozen=True, gc=False):
    """How one family tells packets of this node's pods (KEP-2450 and its successors): by source range or by interface.

    Exactly one field is set. ``interface`` may end in ``*`` (a prefix).
    """

    cidr: str = ""
    interface: str = ""


class NodeSettings(msgspec.Struct, frozen=True, gc=False):
    """Everything about the node that rules of one family depend on, beside Services.

    ``node_port_addresses`` is None where node ports answer on every local address. ``local`` is None without a detector.
    ``drop_invalid``: TCP segments of Services that conntrack finds invalid are dropped; it never changes while running.
    ``reset_gone_tcp``: TCP connections to endpoints that are in no slice any more are cut. ``localhost_node_ports``: node
    ports are served on the loopback address too.
    """

    family: Family
    node_name: str
    zone: str = ""
    node_ip: str = ""
    node_port_addresses: tuple[str, ...] | None = None
    local: LocalDetector | None = None
    masquerade_all: bool = False
    masquerade_mark: int = 0x4000
    reset_gone_tcp: bool = False
    drop_invalid: bool = True
    localhost_node_ports: bool = False
