"""The configuration file as data: KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, whole, with its defaults.

Attribute names are the file's in snake case; ``encode_name`` of msgspec is the file's own spelling. Durations are
seconds. Source: k8s.io/kube-proxy/config/v1alpha1/types.go and pkg/proxy/apis/config/v1alpha1/defaults.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from proxyd.errors import UserError

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

# Tags that tell the reader how the file spells a value whose Python type does not.
Seconds = Annotated[float, "a Go duration"]
SecondsOrNanoseconds = Annotated[float, "a Go duration, or a whole number of nanoseconds"]
Quantity = Annotated[str, "a Kubernetes quantity"]

_S = TypeVar("_S", bound=msgspec.Struct)


class Problem(NamedTuple):
    """One thing that is wrong and where: a field path (``conntrack.min``), a flag, or "" for the file as a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(UserError):
    """The configuration cannot be used. ``problems`` lists all that is wrong with it; ``str()`` has one a line."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class _Block(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all blocks."""


class ClientConnection(_Block, frozen=True):
    """How the API server is reached."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 5.0
    burst: int = 10


class Conntrack(_Block, frozen=True):
    """Sizes and timeouts of the connection tracker; 0 leaves the kernel's value alone."""

    max_per_core: int = 32768
    min: int = 131072
    tcp_established_timeout: Seconds = 86400.0
    tcp_close_wait_timeout: Seconds = 3600.0
    tcp_be_liberal: bool = False
    udp_timeout: Seconds = 0.0
    udp_stream_timeout: Seconds = 0.0


class DetectLocal(_Block, frozen=True):
    """Names that the interface modes of detectLocalMode need."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class NFTables(_Block, frozen=True):
    """Settings of nftables mode."""

    masquerade_bit: int = 14
    masquerade_all: bool = False
    sync_period: Seconds = 30.0
    min_sync_period: Seconds = 1.0


class IPTables(NFTables, frozen=True):
    """Settings of iptables mode: those of nftables mode and node ports on 127.0.0.1."""

    localhost_node_ports: bool = True


class IPVS(_Block, frozen=True):
    """Settings of ipvs mode, which proxyd does not have: read so that a file with them is not refused."""

    sync_period: Seconds = 30.0
    min_sync_period: Seconds = 0.0
    scheduler: str = ""
    exclude_cidrs: tuple[str, ...] = msgspec.field(default=(), name="excludeCIDRs")
    strict_arp: bool = msgspec.field(default=False, name="strictARP")
    tcp_timeout: Seconds = 0.0
    tcp_fin_timeout: Seconds = 0.0
    udp_timeout: Seconds = 0.0


class Winkernel(_Block, frozen=True):
    """Settings for Windows, where proxyd does not run: read so that a file with them is not refused."""

    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = msgspec.field(default=False, name="enableDSR")
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class VModule(_Block, frozen=True):
    """A verbosity for some source files of kube-proxy."""

    file_pattern: str = ""
    verbosity: int = 0


class LoggingFormatOptions(_Block, frozen=True):
    """Output options of one log format."""

    split_stream: bool = False
    info_buffer_size: Quantity = "0"


class LoggingOptions(_Block, frozen=True):
    """Output options of both log formats."""

    text: LoggingFormatOptions = LoggingFormatOptions()
    json: LoggingFormatOptions = LoggingFormatOptions()


class Logging(_Block, frozen=True):
    """Log output (k8s.io/component-base/logs/api/v1).

    ``format`` "" is proxyd's own default, where kube-proxy has text: text on a terminal and JSON otherwise.
    """

    format: str = ""
    flush_frequency: SecondsOrNanoseconds = 5.0
    verbosity: int = 0
    vmodule: tuple[VModule, ...] = ()
    options: LoggingOptions = LoggingOptions()


class Document(_Block, frozen=True):
    """A whole KubeProxyConfiguration.

    The two bind addresses are None where the default applies, since that one depends on ``bind_address``; "" disables.
    """

    feature_gates: dict[str, bool] = msgspec.field(default_factory=dict)
    client_connection: ClientConnection = ClientConnection()
    logging: Logging = Logging()
    hostname_override: str = ""
    bind_address: str = "0.0.0.0"  # noqa: S104 - kube-proxy's default; nothing is bound to it
    healthz_bind_address: str | None = None
    metrics_bind_address: str | None = None
    bind_address_hard_fail: bool = False
    enable_profiling: bool = False
    show_hidden_metrics_for_version: str = ""
    mode: str = ""
    iptables: IPTables = IPTables()
    ipvs: IPVS = IPVS()
    nftables: NFTables = NFTables()
    winkernel: Winkernel = Winkernel()
    detect_local_mode: str = ""
    detect_local: DetectLocal = DetectLocal()
    cluster_cidr: str = msgspec.field(default="", name="clusterCIDR")
    node_port_addresses: tuple[str, ...] = ()
    oom_score_adj: int = -999
    conntrack: Conntrack = Conntrack()
    config_sync_period: Seconds = 900.0
    port_range: str = ""
    windows_run_as_service: bool = False


# In Go these are plain values, not pointers: the defaulting code cannot tell zero from absent, and kubeadm writes out
# every one of them as "" or 0s. A zero in the file must therefore mean the default. A flag can still say zero.
ZERO_MEANS_DEFAULT = frozenset(
    {
        "bindAddress",
        "healthzBindAddress",
        "metricsBindAddress",
        "configSyncPeriod",
        "iptables.syncPeriod",
        "iptables.minSyncPeriod",
        "nftables.syncPeriod",
        "nftables.minSyncPeriod",
        "ipvs.syncPeriod",
        "clientConnection.contentType",
        "clientConnection.qps",
        "clientConnection.burst",
        "logging.flushFrequency",
    }
)


def put(block: _S, path: str, value: object) -> _S:
    """Gives a copy of a block in which the field at a path (as the file spells it, ``iptables.syncPeriod``) has a value.

    Raises KeyError for a path that the schema does not have: paths are code, not user input.
    """
    head, _, rest = path.partition(".")
    name = {field.encode_name: field.name for field in msgspec.structs.fields(block)}[head]
    return msgspec.structs.replace(block, **{name: put(getattr(block, name), rest, value) if rest else value})


def leaves(block: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walks (field path, value) of everything in a block that is not a block itself, in the order of the schema."""
    for field in msgspec.structs.fields(block):
        path, value = prefix + field.encode_name, getattr(block, field.name)
        if isinstance(value, msgspec.Struct):
            yield from leaves(value, path + ".")
        else:
            yield path, value
