"""What a Document may say, and its addresses in a form that the rest can use. Needs no node.

Source: pkg/proxy/apis/config/validation/validation.go (the rules) and cmd/kube-proxy/app/server.go (the advice).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from proxyd.addresses import canonical, canonical_range, is_loopback
from proxyd.config.schema import Document, IPTables, NFTables, Problem
from proxyd.config.values import show
from proxyd.model import Family

MODES = ("iptables", "nftables")
# kube-proxy's default is iptables; whoever writes no mode (kubeadm's file has "") gets what is quick in large clusters.
DEFAULT_MODE = "nftables"
LOCAL_MODES = ("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix")
DEFAULT_LOCAL_MODE = "ClusterCIDR"
NODE_PORT_KEYWORDS = ("primary", "localhost", "all")
LOGGING_FORMATS = ("", "text", "json")
HEALTHZ_PORT = 10256
METRICS_PORT = 10249
# Of the status page, which kube-proxy does not have. Free of what is usual on nodes (kubelet, controllers, ingress-nginx).
PAGE_PORT = 10253
PAGE_FLAG = "--page-bind-address"
_NO_HOST_PORT = "must be IP:port with a port of 1..65535, or an IP, got {}"
# Has TCP connections to endpoints that are in no slice any more reset, instead of left to time out.
RESET_GONE_TCP = "ResetGoneTCP"
# Shows the connections of all Services and endpoints in the metrics, instead of those of the busiest Services.
ALL_SERVICE_METRICS = "AllServiceMetrics"
# kube-proxy's gate for node ports on the loopback address. Here nodePortAddresses alone decides; false switches it off.
LOCALHOST_NODE_PORTS = "KubeProxyNFTablesLocalhostNodePorts"
# Gates that proxyd knows. kube-proxy's own say nothing about proxyd, so an unknown one is not an error.
FEATURE_GATES = frozenset({RESET_GONE_TCP, ALL_SERVICE_METRICS, LOCALHOST_NODE_PORTS})

# What Linux allows (dev_valid_name) less what would need quoting in a rule: such names go into rule text.
_INTERFACE = re.compile(r"[A-Za-z0-9_.@-]{1,15}")


def active_mode(document: Document) -> str:
    """Gives the mode that a document leads to; the default one where it names a mode that cannot be."""
    return document.mode if document.mode in MODES else DEFAULT_MODE


def active_block(document: Document) -> NFTables | IPTables:
    """Gives the settings of the active mode."""
    return document.iptables if active_mode(document) == "iptables" else document.nftables


def node_port_defaults(document: Document) -> tuple[str, ...]:
    """Gives the nodePortAddresses of a document that names none: they depend on the mode. Empty: every local address."""
    return ("primary",) if active_mode(document) == "nftables" else ()


def default_hosts(document: Document) -> tuple[str, str]:
    """Gives the hosts of the health and the metrics server where none is named, as addresses of the file's spelling."""
    found = canonical(document.bind_address)
    return ("[::]", "[::1]") if found and found[0] is Family.IPV6 else ("0.0.0.0", "127.0.0.1")  # noqa: S104


def validate(document: Document) -> tuple[Problem, ...]:
    """Gives all problems of a document; none: it can be used."""
    return (
        *_mode(document),
        *_periods(document),
        *_limits(document),
        *_names(document),
        *_bind_addresses(document),
        *_node_port_addresses(document),
        *_local(document),
    )


def advise(document: Document) -> tuple[str, ...]:
    """Gives what is legal and still likely to surprise, of a document without problems."""
    return (*_unknown_gates(document), *_node_port_advice(document))


def host_port(text: str, default_port: int) -> tuple[str, int] | None:
    """Gives (canonical address, port) of ``IP:port``, ``[IPv6]:port`` or a bare IP (default port), or None.

    Source: pkg/proxy/util/utils.go, AppendPortIfNeeded, and validateHostPort of the validation.
    """
    bare = canonical(text)
    if bare is not None:
        return bare[1], default_port
    found = re.fullmatch(r"(?:\[(?P<v6>[^\]]*)\]|(?P<v4>[^:]*)):(?P<port>[0-9]{1,5})", text.strip())
    address = canonical(found["v6"] or found["v4"] or "") if found else None
    if found is None or address is None or not 1 <= int(found["port"]) <= 65535:
        return None
    return address[1], int(found["port"])


def page_address(given: str | None, document: Document) -> tuple[str, int] | None:
    """Gives where the status page is (None: nowhere) by its flag, of which None means the default: a loopback address.

    Raises ValueError.
    """
    if given is None:
        return host_port(f"{default_hosts(document)[1]}:{PAGE_PORT}", PAGE_PORT)
    if not given.strip():
        return None
    found = host_port(given, PAGE_PORT)
    if found is None:
        raise ValueError(_NO_HOST_PORT.format(show(given)))
    return found


def page_advice(address: tuple[str, int] | None) -> Iterator[str]:
    """Gives a warning where others than this node can read the status page."""
    if address and not is_loopback(address[0]):
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        yield f"{PAGE_FLAG}: whoever reaches {host}:{address[1]} can read the status page: it asks for no password"


def cluster_cidrs(text: str) -> dict[Family, str]:
    """Gives the range of each family in a clusterCIDR (``10.0.0.0/8`` or ``10.0.0.0/8,fd00::/48`` or ""), canonical.

    Raises ValueError where it is anything but none, one, or one of each family.
    """
    ranges: dict[Family, str] = {}
    for part in text.split(",") if text.strip() else ():
        found = canonical_range(part)
        if found is None:
            raise ValueError(f"{show(part.strip())} is not a CIDR such as 10.244.0.0/16")
        if found[0] in ranges:
            raise ValueError(f"may have one CIDR of each family, got two of {found[0]}: {show(text)}")
        ranges[found[0]] = found[1]
    return ranges


def node_port_address(text: str) -> str | None:
    """Gives a keyword as it is and a CIDR in canonical form; None for anything else."""
    if text in NODE_PORT_KEYWORDS:
        return text
    found = canonical_range(text)
    return found[1] if found else None


def _mode(document: Document) -> Iterator[Problem]:
    if document.mode == "ipvs":
        yield Problem("mode", "ipvs is not supported by proxyd; use nftables or iptables")
    elif document.mode not in ("", *MODES):
        yield Problem("mode", f"must be nftables or iptables, got {show(document.mode)}")
    # kube-proxy checks the iptables bit in every mode, the nftables bit only where it counts.
    if not 0 <= document.iptables.masquerade_bit <= 31:
        yield Problem("iptables.masqueradeBit", f"must be 0..31, got {document.iptables.masquerade_bit}")
    if active_mode(document) == "nftables" and not 0 <= document.nftables.masquerade_bit <= 31:
        yield Problem("nftables.masqueradeBit", f"must be 0..31, got {document.nftables.masquerade_bit}")


def _periods(document: Document) -> Iterator[Problem]:
    mode, block = active_mode(document), active_block(document)
    longest, least = block.sync_period, block.min_sync_period
    if longest <= 0:
        yield Problem(f"{mode}.syncPeriod", f"must be > 0, got {longest:g}s")
    if least < 0:
        yield Problem(f"{mode}.minSyncPeriod", f"must be >= 0, got {least:g}s")
    elif least > longest > 0:
        yield Problem(f"{mode}.minSyncPeriod", f"must be <= syncPeriod ({longest:g}s), got {least:g}s")
    if document.config_sync_period <= 0:
        yield Problem("configSyncPeriod", f"must be > 0, got {document.config_sync_period:g}s")


def _limits(document: Document) -> Iterator[Problem]:
    conntrack = document.conntrack
    for path, value, unit in (
        ("conntrack.maxPerCore", conntrack.max_per_core, ""),
        ("conntrack.min", conntrack.min, ""),
        ("conntrack.tcpEstablishedTimeout", conntrack.tcp_established_timeout, "s"),
        ("conntrack.tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout, "s"),
        ("conntrack.udpTimeout", conntrack.udp_timeout, "s"),
        ("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout, "s"),
        ("clientConnection.burst", document.client_connection.burst, ""),
        ("logging.verbosity", document.logging.verbosity, ""),
    ):
        if value < 0:
            yield Problem(path, f"must be >= 0, got {value if isinstance(value, int) else format(value, 'g')}{unit}")
    if not -1000 <= document.oom_score_adj <= 1000:
        yield Problem("oomScoreAdj", f"must be -1000..1000, got {document.oom_score_adj}")


def _names(document: Document) -> Iterator[Problem]:
    if document.hostname_override and not document.hostname_override.strip():
        yield Problem("hostnameOverride", "must not be blank")
    if document.logging.format not in LOGGING_FORMATS:
        yield Problem("logging.format", f"must be text or json, got {show(document.logging.format)}")
    # proxyd is no release of Kubernetes, so which minor is the previous one cannot be told; only the form can.
    version = document.show_hidden_metrics_for_version
    if version and not re.fullmatch(r"[0-9]+\.[0-9]+", version):
        yield Problem("showHiddenMetricsForVersion", f'must be a minor version such as "1.36", got {show(version)}')


def _bind_addresses(document: Document) -> Iterator[Problem]:
    if canonical(document.bind_address) is None:
        yield Problem("bindAddress", f"must be an IP address, got {show(document.bind_address)}")
    for path, text, port in (
        ("healthzBindAddress", document.healthz_bind_address, HEALTHZ_PORT),
        ("metricsBindAddress", document.metrics_bind_address, METRICS_PORT),
    ):
        if text and host_port(text, port) is None:
            yield Problem(path, _NO_HOST_PORT.format(show(text)))


def _node_port_addresses(document: Document) -> Iterator[Problem]:
    for index, text in enumerate(document.node_port_addresses):
        if node_port_address(text) is None:
            choices = "a CIDR such as 10.0.0.0/8, nor primary, localhost or all"
            yield Problem(f"nodePortAddresses[{index}]", f"{show(text)} is not {choices}")


def _local(document: Document) -> Iterator[Problem]:
    mode, names = document.detect_local_mode or DEFAULT_LOCAL_MODE, document.detect_local
    if mode not in LOCAL_MODES:
        yield Problem("detectLocalMode", f"must be one of {', '.join(LOCAL_MODES)}, got {show(mode)}")
    elif mode == "ClusterCIDR":  # elsewhere clusterCIDR is not used, and kube-proxy does not look at it
        try:
            cluster_cidrs(document.cluster_cidr)
        except ValueError as error:
            yield Problem("clusterCIDR", str(error))
    elif mode == "BridgeInterface":
        yield from _interface("detectLocal.bridgeInterface", names.bridge_interface, mode)
    elif mode == "InterfaceNamePrefix":
        yield from _interface("detectLocal.interfaceNamePrefix", names.interface_name_prefix, mode)


def _interface(path: str, name: str, mode: str) -> Iterator[Problem]:
    if not name:
        yield Problem(path, f"must be set for detectLocalMode {mode}")
    elif not _INTERFACE.fullmatch(name):
        yield Problem(path, f"must be 1..15 characters of A-Z a-z 0-9 _ . @ -, got {show(name)}")


def _unknown_gates(document: Document) -> Iterator[str]:
    for gate in sorted(document.feature_gates):
        if gate not in FEATURE_GATES:
            yield f"featureGates.{gate}: unknown to proxyd, ignored"


def _node_port_advice(document: Document) -> Iterator[str]:
    given = document.node_port_addresses
    if not given and active_mode(document) == "iptables":
        yield 'nodePortAddresses: unset, so node ports answer on every local address; consider "primary"'
