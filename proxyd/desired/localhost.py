"""Node ports on the loopback address (127.0.0.1, ::1) in nftables mode: which are relayed, and which are refused.

No rule can do this without opening loopback to neighbours (route_localnet), and in IPv6 none can at all. So TCP is relayed
by this process, and everything else refused by a rule. Source: kube-proxy 1.37, KubeProxyNFTablesLocalhostNodePorts.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from proxyd.desired.conflicts import Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding, Route
from proxyd.model import ServiceKey


class LocalhostPort(msgspec.Struct, frozen=True, gc=False):
    """A TCP port to listen on, and the endpoints to relay its connections to (at least one).

    ``affinity_seconds``: for how long after a connection the next one goes to the same endpoint; 0 without affinity.
    """

    service: ServiceKey
    port: int
    backends: tuple[Backend, ...]
    affinity_seconds: int = 0


def relayed(forwarding: Forwarding) -> tuple[LocalhostPort, ...]:
    """The node ports of a Service to listen on: the cluster list, or with externalTrafficPolicy Local this node's.

    One without endpoints is left out, so that nobody listens and the kernel refuses the connection.
    """
    return tuple(
        LocalhostPort(forwarding.key, frontend.key.port, backends, port.affinity_seconds)
        for port, frontend in _node_ports(forwarding)
        if port.protocol == "tcp" and (backends := _backends(port, frontend))
    )


def refused(forwarding: Forwarding) -> tuple[tuple[Frontend, str], ...]:
    """The node ports of a Service that are refused on the loopback address, each with the name of its ServicePort."""
    return tuple((frontend, port.name) for port, frontend in _node_ports(forwarding) if port.protocol != "tcp")


def _node_ports(forwarding: Forwarding) -> Iterator[tuple[PortForwarding, Frontend]]:
    if forwarding.localhost:
        for port in forwarding.ports:
            for frontend in port.frontends:
                if frontend.kind is Kind.NODE_PORT:
                    yield port, frontend


def _backends(port: PortForwarding, frontend: Frontend) -> tuple[Backend, ...]:
    if frontend.route is Route.EXTERNAL:
        return port.cluster
    return port.local if frontend.route is Route.EXTERNAL_LOCAL else ()
