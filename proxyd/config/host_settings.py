"""Which settings of the kernel and of our own process a configuration asks for, and which of them need a write.

Source: cmd/kube-proxy/app/conntrack.go and server_linux.go (getConntrackMax, setupConntrack), pkg/proxy/iptables
(route_localnet), k8s.io/kube-proxy/config/v1alpha1 (KubeProxyConntrackConfiguration).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from proxyd.addresses import contains
from proxyd.config.effective import Config

_NETFILTER = "proc/sys/net/netfilter/"
CONNTRACK_MAX = _NETFILTER + "nf_conntrack_max"
HASH_SIZE = "sys/module/nf_conntrack/parameters/hashsize"
TCP_BE_LIBERAL = _NETFILTER + "nf_conntrack_tcp_be_liberal"
OOM_SCORE_ADJ = "proc/self/oom_score_adj"
ROUTE_LOCALNET = "proc/sys/net/ipv4/conf/all/route_localnet"
# Flows for each bucket of the tracker's hash table, as the kernel itself sizes it.
_FLOWS_PER_BUCKET = 4


class Setting(NamedTuple):
    """One setting: the field that asks for it, its file below the root directory, the number that it should be.

    ``at_least``: a higher value stays as it is.
    """

    field: str
    path: str
    value: int
    at_least: bool = False

    @property
    def name(self) -> str:
        """The last part of the path, which is unique and what people know it by."""
        return self.path.rsplit("/", 1)[1]

    def is_met(self, current: int) -> bool:
        """Whether this value of it needs no write."""
        return current >= self.value if self.at_least else current == self.value


class Change(NamedTuple):
    """A setting that needs a write, and its value now; None where there is no such file (yet)."""

    setting: Setting
    current: int | None


def node_settings(config: Config, cores: int) -> tuple[Setting, ...]:
    """What the configuration asks of the node's kernel, in the order in which it is to be written.

    ``cores`` are those of the machine, not of our share of it. A limit of the tracker that is higher already is left
    alone (kube-proxy lowers it): somebody raised it, and too low a limit drops packets, where too high a one costs memory
    only when it is used. Timeouts are what the configuration says, up or down, as with kube-proxy.
    """
    conntrack = config.conntrack
    found = []
    if conntrack.max_per_core > 0:
        limit = max(conntrack.max_per_core * cores, conntrack.min)
        field = "conntrack.min" if limit == conntrack.min else "conntrack.maxPerCore"
        found.append(Setting(field, CONNTRACK_MAX, limit, at_least=True))
        found.append(Setting(field, HASH_SIZE, limit // _FLOWS_PER_BUCKET, at_least=True))
    if conntrack.tcp_be_liberal:
        found.append(Setting("conntrack.tcpBeLiberal", TCP_BE_LIBERAL, 1))
    for field, name, seconds in (
        ("tcpEstablishedTimeout", "tcp_timeout_established", conntrack.tcp_established_timeout),
        ("tcpCloseWaitTimeout", "tcp_timeout_close_wait", conntrack.tcp_close_wait_timeout),
        ("udpTimeout", "udp_timeout", conntrack.udp_timeout),
        ("udpStreamTimeout", "udp_timeout_stream", conntrack.udp_stream_timeout),
    ):
        if seconds > 0:
            # Whole seconds, but never 0: that would end every flow at once.
            found.append(Setting(f"conntrack.{field}", f"{_NETFILTER}nf_conntrack_{name}", max(1, int(seconds))))
    return tuple(found)


def process_settings(config: Config) -> tuple[Setting, ...]:
    """What the configuration asks for our own process: how willingly the kernel ends it when memory is short."""
    return (Setting("oomScoreAdj", OOM_SCORE_ADJ, config.oom_score_adj),)


def localhost_settings(config: Config, localhost_node_ports: bool) -> tuple[Setting, ...]:
    """Routing to 127.0.0.0/8, which node ports on 127.0.0.1 need: in iptables mode only, and only where they are served.

    ``localhost_node_ports`` is iptables.localhostNodePorts. Without it the kernel drops such packets, which protects
    everything that listens on loopback from neighbours; so it is never set without need.
    """
    ranges = [each for each in config.node_port_addresses if "/" in each and "." in each]
    keywords = {each for each in config.node_port_addresses if "/" not in each}
    everywhere = not (ranges or keywords)
    on_loopback = everywhere or keywords & {"localhost", "all"} or any(contains(each, "127.0.0.1") for each in ranges)
    if config.mode != "iptables" or not localhost_node_ports or not on_loopback:
        return ()
    return (Setting("iptables.localhostNodePorts", ROUTE_LOCALNET, 1),)


def changes(wanted: Iterable[Setting], current: Mapping[str, int | None]) -> tuple[Change, ...]:
    """Those that need a write. ``current`` has the value of each path, None or nothing where there is no such file."""
    found = ((setting, current.get(setting.path)) for setting in wanted)
    return tuple(Change(setting, now) for setting, now in found if now is None or not setting.is_met(now))
