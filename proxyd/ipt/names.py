"""Names of chains, exactly kube-proxy's: operators and their tools know them (pkg/proxy/iptables/proxier.go)."""

from __future__ import annotations

import base64
import hashlib

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import PortForwarding

SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ = "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"
EXTERNAL_SERVICES, FORWARD = "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD"
PROXY_FIREWALL, FIREWALL, CANARY = "KUBE-PROXY-FIREWALL", "KUBE-FIREWALL", "KUBE-PROXY-CANARY"

SERVICE, LOCAL, EXTERNAL, SOURCES, ENDPOINT = "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"
# What chains of a ServicePort begin with; whatever does is ours.
PREFIXES = (SERVICE, LOCAL, EXTERNAL, SOURCES, ENDPOINT)


def chain_name(prefix: str, port: PortForwarding) -> str:
    """The chain of a ServicePort with this prefix."""
    return prefix + _hash(port.name + port.protocol)


def endpoint_chain(port: PortForwarding, backend: Backend) -> str:
    """The chain of one endpoint of a ServicePort."""
    return ENDPOINT + _hash(port.name + port.protocol + backend_text(backend))


def backend_text(backend: Backend) -> str:
    """An endpoint as ``address:port``, an IPv6 address in brackets."""
    address = f"[{backend.address}]" if ":" in backend.address else backend.address
    return f"{address}:{backend.port}"


def _hash(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode()[:16]
