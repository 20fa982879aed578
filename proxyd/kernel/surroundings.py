"""What else is on this node that Service traffic meets: tables of others, and settings and limits of the kernel."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from proxyd.kernel.netlink import Attributes, attributes, text
from proxyd.kernel.nft import nfnetlink
from proxyd.model import ServiceKey
from proxyd.nft.layout import TABLE

_FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}
_HOOKS = {0: "prerouting", 1: "input", 2: "forward", 3: "output", 4: "postrouting"}
# Families with these hooks.
_ROUTED = (1, 2, 10)
_TRACKED = "net/netfilter/nf_conntrack_count"
_TRACKED_MOST = "net/netfilter/nf_conntrack_max"
_SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/route_localnet",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/default/rp_filter",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    _TRACKED_MOST,
    _TRACKED,
    "net/netfilter/nf_conntrack_tcp_be_liberal",
)
# Sockets, and the state of those that wait for anybody: TCP_LISTEN, and TCP_CLOSE for UDP (include/net/tcp_states.h).
_SOCKETS = (("tcp", "net/tcp", "0A"), ("tcp", "net/tcp6", "0A"), ("udp", "net/udp", "07"), ("udp", "net/udp6", "07"))
# 127.0.0.1 and ::1 as these files have them.
_LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
# Tables that iptables has with its legacy backend, one a line; readable for root only.
_LEGACY = {"iptables": "net/ip_tables_names", "ip6tables": "net/ip6_tables_names"}


class BaseChain(msgspec.Struct, frozen=True):
    """A chain of somebody else that packets enter from the kernel; ``drops``: its policy is drop."""

    table: str
    name: str
    kind: str
    hook: str
    priority: int
    drops: bool

    def __str__(self) -> str:
        return f"chain {self.name} of table {self.table}"


class Surroundings(msgspec.Struct, frozen=True):
    """What was found. Tables are named with their family ("inet firewalld"), sysctls by their path under /proc/sys.

    ``chains`` and ``sets`` count those of each foreign table; a sysctl that is not there is missing. ``legacy`` has the
    tables that the legacy backend of iptables and ip6tables has loaded. ``taken`` are node ports (protocol, number) that
    a process listens on, with the Service whose they are. ``unknown`` says what could not be read.
    """

    tables: tuple[str, ...] = ()
    chains: Mapping[str, int] = {}
    sets: Mapping[str, int] = {}
    base_chains: tuple[BaseChain, ...] = ()
    sysctls: Mapping[str, str] = {}
    legacy: Mapping[str, tuple[str, ...]] = {}
    taken: Mapping[tuple[str, int], ServiceKey] = {}
    unknown: tuple[str, ...] = ()

    def number(self, path: str) -> int | None:
        """A sysctl as a number, None where it is not there or is no number."""
        value = self.sysctls.get(path, "")
        return int(value) if value.isascii() and value.isdigit() else None


class Tracking(NamedTuple):
    """How full the table of connections of this network namespace is."""

    entries: int
    limit: int


def read_tracking(proc: Path = Path("/proc")) -> Tracking | None:
    """Looks at the table of connections; None where connections are not tracked. Two small files: for every scrape."""
    count, most = (_read(proc / "sys" / path) or "" for path in (_TRACKED, _TRACKED_MOST))
    if not (count.isdecimal() and most.isdecimal() and int(most)):
        return None
    return Tracking(int(count), int(most))


def read_surroundings(
    proc: Path = Path("/proc"), node_ports: Mapping[tuple[str, int], ServiceKey] = MappingProxyType({})
) -> Surroundings:
    """Looks around in this network namespace; never raises, what cannot be read is said in ``unknown``.

    ``node_ports`` says whose each is, by protocol and number.
    """
    taken = {port: node_ports[port] for port in sorted(_listened_on(proc) & node_ports.keys())}
    sysctls = {path: value for path in _SYSCTLS if (value := _read(proc / "sys" / path)) is not None}
    legacy = {tool: tuple(names.split()) for tool, path in _LEGACY.items() if (names := _read(proc / path))}
    try:
        tables = _foreign(nfnetlink.GET_TABLE, name=1)
        chains = _foreign(nfnetlink.GET_CHAIN, name=3)
        sets = _foreign(nfnetlink.GET_SET, name=2)
    except OSError as error:
        return Surroundings(
            sysctls=sysctls, legacy=legacy, taken=taken, unknown=(f"nftables of others: {error.strerror}",)
        )
    return Surroundings(
        tables=tuple(sorted(table for table, _, _, _ in tables)),
        chains=Counter(table for table, _, _, _ in chains),
        sets=Counter(table for table, _, _, _ in sets),
        base_chains=tuple(base for each in chains if (base := _base_chain(*each)) is not None),
        sysctls=sysctls,
        legacy=legacy,
        taken=taken,
    )


def _listened_on(proc: Path) -> set[tuple[str, int]]:
    """Protocol and port of all sockets that wait on an address other than loopback."""
    found = set()
    for protocol, path, state in _SOCKETS:
        for line in (_read(proc / path) or "").splitlines()[1:]:
            _, local, _, now, *_ = line.split()
            address, _, port = local.partition(":")
            if now == state and address not in _LOOPBACK:
                found.add((protocol, int(port, 16)))
    return found


def _foreign(message: int, name: int) -> list[tuple[str, str, int, Attributes]]:
    """Objects outside our tables: table with its family, name, family number, attributes. Attribute 1 is the table."""
    found = []
    for family, each in nfnetlink.dump(message):
        table = text(each.get(1, b""))
        if table != TABLE and family in _FAMILIES:
            where = f"{_FAMILIES[family]} {table}"
            found.append((where, text(each.get(name, b"")), family, each))
    return found


def _base_chain(table: str, name: str, family: int, chain: Attributes) -> BaseChain | None:
    if 4 not in chain or family not in _ROUTED:
        return None
    hook = attributes(chain[4])
    number, priority = struct.unpack(">I", hook[1])[0], struct.unpack(">i", hook[2])[0]
    drops = chain.get(5) == struct.pack(">I", 0)
    kind = text(chain.get(7, b""))
    return BaseChain(table, name, kind, _HOOKS.get(number, str(number)), priority, drops)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
