"""Names of chains, exactly kube-proxy's: operators and their tools know them (pkg/proxy/iptables/proxier.go)."""

from __future__ import annotations

from hashlib import sha256

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import PortForwarding

SERVICES, NODE_PORTS, POSTROUTING, MARK_MASQ = "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-MARK-MASQ"
EXTERNAL_SERVICES, FORWARD = "KUBE-EXTERNAL-SERVICES", "KUBE-FORWARD"
PROXY_FIREWALL, FIREWALL, CANARY = "KUBE-PROXY-FIREWALL", "KUBE-FIREWALL", "KUBE-PROXY-CANARY"

SERVICE, LOCAL, EXTERNAL, SOURCES, ENDPOINT = "KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"
# What chains of a ServicePort begin with; whatever does is ours.
PREFIXES = (SERVICE, LOCAL, EXTERNAL, SOURCES, ENDPOINT)
_BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = tuple(first + second for first in _BASE32 for second in _BASE32)
_SHIFTS = tuple(range(70, -1, -10))


def chain_name(prefix: str, port: PortForwarding) -> str:
    """The chain of a ServicePort with this prefix."""
    return prefix + _hash(port.name + port.protocol)


def endpoint_chain(port: PortForwarding, backend: str) -> str:
    """The chain of one endpoint of a ServicePort. ``backend`` is its ``backend_text``."""
    return ENDPOINT + _hash(port.name + port.protocol + backend)


def backend_text(backend: Backend) -> str:
    """An endpoint as ``address:port``, an IPv6 address in brackets."""
    address = f"[{backend.address}]" if ":" in backend.address else backend.address
    return f"{address}:{backend.port}"


def _hash(text: str) -> str:
    # Two letters of base32 at a time: the library's own takes three times as long, and there is one for each endpoint.
    number = int.from_bytes(sha256(text.encode()).digest()[:10], "big")
    return "".join([_PAIRS[number >> shift & 0x3FF] for shift in _SHIFTS])
