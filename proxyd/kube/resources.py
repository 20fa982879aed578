"""The three resources that proxyd watches, and what it asks the API server to leave out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from proxyd.kube.decode import (
    HEADLESS_LABEL,
    PROXY_NAME_LABEL,
    Decoded,
    decode_endpoint_slice,
    decode_node,
    decode_service,
)
from proxyd.model import EndpointSlice, Node, Service

T = TypeVar("T")


class Resource(NamedTuple, Generic[T]):
    """What to watch: the plural name (a metric label), its path, its decoder and the server-side selection."""

    name: str
    path: str
    decode: Callable[[bytes | msgspec.Raw], Decoded[T]]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def selection(self) -> dict[str, str]:
        """Query parameters of the selection."""
        both = {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}
        return {name: selector for name, selector in both.items() if selector}


# The same selections as kube-proxy's (since 1.36 the clusterIP one too).
SERVICES: Resource[Service] = Resource(
    "services", "/api/v1/services", decode_service, f"!{PROXY_NAME_LABEL}", "spec.clusterIP!=None"
)
ENDPOINT_SLICES: Resource[EndpointSlice] = Resource(
    "endpointslices", "/apis/discovery.k8s.io/v1/endpointslices", decode_endpoint_slice, f"!{HEADLESS_LABEL}"
)


def own_node(name: str) -> Resource[Node]:
    """The one Node of that name."""
    return Resource("nodes", "/api/v1/nodes", decode_node, field_selector=f"metadata.name={name}")
