"""Manifests, with no more in them than the tests are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Manifest = dict[str, Any]
SERVICE_NAME = "kubernetes.io/service-name"


def service(name: str, namespace: str = "default", **spec: Any) -> Manifest:
    """A Service of one port, 80, without a selector unless told otherwise."""
    spec.setdefault("ports", [{"name": "http", "port": 80, "targetPort": 8080}])
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def endpoint_slice(
    service_name: str,
    addresses: Sequence[str],
    namespace: str = "default",
    *,
    port: int = 8080,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """The only slice of a Service, with ready endpoints on node1."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service_name}-1",
            "namespace": namespace,
            "labels": {SERVICE_NAME: service_name},
            "annotations": dict(annotations or {}),
        },
        "addressType": "IPv6" if addresses and ":" in addresses[0] else "IPv4",
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [address], "conditions": {"ready": True}, "nodeName": "node1"} for address in addresses
        ],
    }


def node(name: str) -> Manifest:
    """A Node."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}


def pod(name: str, labels: Mapping[str, str], node_name: str) -> Manifest:
    """A Pod that some scheduler has already placed."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": dict(labels)},
        "spec": {"nodeName": node_name, "containers": [{"name": "web", "image": "web"}]},
    }


def running(addresses: Sequence[str], *, ready: bool = True) -> Manifest:
    """The patch by which a kubelet reports that a Pod runs, for its status."""
    return {
        "status": {
            "phase": "Running",
            "podIP": addresses[0],
            "podIPs": [{"ip": address} for address in addresses],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
    }
