"""Builders of the values that tests begin with: everything has a sensible default, tests name only what they are about."""

from __future__ import annotations

from typing import Any

from proxyd.desired.settings import NodePolicy, node_settings
from proxyd.kube.decode import Decoded
from proxyd.kube.store import Store
from proxyd.model import (
    Endpoint,
    EndpointSlice,
    Family,
    LocalDetector,
    Node,
    NodeSettings,
    Service,
    ServiceKey,
    ServicePort,
    SlicePort,
)

NODE = "node1"
POD_CIDR = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/48"}
NODE_IP = {Family.IPV4: "192.0.2.11", Family.IPV6: "2001:db8:2::11"}


def key(name: str = "web", namespace: str = "default") -> ServiceKey:
    return ServiceKey(namespace, name)


def port(number: int = 80, name: str = "http", protocol: str = "tcp", node_port: int = 0) -> ServicePort:
    return ServicePort(name, protocol, number, node_port)


def service(name: str = "web", *, ip: str = "10.96.0.1", namespace: str = "default", **fields: Any) -> Service:
    """A Service with one port 80 named http and one cluster IP, unless told otherwise."""
    fields.setdefault("ports", (port(),))
    fields.setdefault("cluster_ips", (ip,))
    fields.setdefault("created", "2026-01-01T00:00:00Z")
    return Service(ServiceKey(namespace, name), **fields)


def endpoint(address: str = "10.244.1.2", node: str | None = NODE, **fields: Any) -> Endpoint:
    return Endpoint(address, node=node, **fields)


SERVING_TERMINATING = {"ready": False, "serving": True, "terminating": True}
NOT_SERVING = {"ready": False, "serving": False}


def endpoint_slice(
    service_name: str = "web",
    *endpoints: Endpoint | str,
    name: str = "",
    namespace: str = "default",
    family: Family = Family.IPV4,
    ports: tuple[SlicePort, ...] = (SlicePort("http", "tcp", 8080),),
    **fields: Any,
) -> EndpointSlice:
    """A slice; an endpoint given as text is a ready one of that address on this node."""
    built = tuple(endpoint(each) if isinstance(each, str) else each for each in endpoints)
    owner = ServiceKey(namespace, service_name)
    return EndpointSlice(namespace, name or f"{service_name}-1", owner, family, built, ports, **fields)


def node(name: str = NODE, **fields: Any) -> Node:
    fields.setdefault("addresses", tuple(NODE_IP.values()))
    fields.setdefault("zone", "za")
    return Node(name, **fields)


def settings(family: Family = Family.IPV4, **fields: Any) -> NodeSettings:
    """Settings of node1 in zone za, with the cluster's pod range as detector and node ports on the node's address."""
    defaults: dict[str, Any] = {
        "node_name": NODE,
        "zone": "za",
        "node_ip": NODE_IP[family],
        "node_port_addresses": (NODE_IP[family],),
        "local": LocalDetector(cidr=POD_CIDR[family]),
    }
    return NodeSettings(family, **{**defaults, **fields})


def by_prefix(prefix: str) -> LocalDetector:
    """The detector of a configuration that tells pods by this prefix of interfaces."""
    policy = NodePolicy(NODE, detect_local_mode="InterfaceNamePrefix", interface_name_prefix=prefix)
    local = node_settings(Family.IPV4, policy, None, ()).local
    assert local is not None
    return local


def decoded(value: Service | EndpointSlice | Node) -> Decoded[Any]:
    match value:
        case Service():
            return Decoded(tuple(value.key), "1", value)
        case EndpointSlice():
            return Decoded((value.namespace, value.name), "1", value)
        case _:
            return Decoded(("", value.name), "1", value)


def store(*objects: Service | EndpointSlice | Node) -> Store:
    """A store that has been listed completely and holds these objects."""
    built = Store()
    for intake, kind in ((built.services, Service), (built.slices, EndpointSlice), (built.nodes, Node)):
        intake.replace([decoded(each) for each in objects if isinstance(each, kind)])
    return built
