"""proxyd: a node proxy for Kubernetes (Services and EndpointSlices in, nftables or iptables rules out)."""

__version__ = "0.1.0"
