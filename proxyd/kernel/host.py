"""Facts about this machine and its network namespace: addresses, families, settings, versions."""

from __future__ import annotations

import os
import platform
import resource
import socket
from pathlib import Path

from proxyd.addresses import canonical
from proxyd.errors import CannotWorkHereError
from proxyd.model import FAMILIES, Family

TCP_BE_LIBERAL = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
ROUTE_LOCALNET = Path("/proc/sys/net/ipv4/conf/all/route_localnet")
_IPV6 = Path("/proc/net/if_inet6")


def hostname() -> str:
    """The host's name, as a Node name is made from it."""
    return platform.node().strip().lower()


def kernel_release() -> str:
    """The running kernel's release."""
    return os.uname().release


def supported_families() -> tuple[Family, ...]:
    """The families that this kernel has (IPv6 can be switched off at boot)."""
    return FAMILIES if _IPV6.exists() else (Family.IPV4,)


def tcp_be_liberal() -> bool | None:
    """Whether conntrack takes TCP segments that are out of window for valid; None where conntrack is not there."""
    try:
        return TCP_BE_LIBERAL.read_text().strip() != "0"
    except OSError:
        return None


def route_localnet() -> None:
    """Lets packets to and from 127.0.0.0/8 leave the loopback interface. Raises ``CannotWorkHereError``."""
    try:
        if ROUTE_LOCALNET.read_text().strip() != "1":
            ROUTE_LOCALNET.write_text("1")
    except OSError as error:
        raise CannotWorkHereError(
            f"iptables.localhostNodePorts needs {ROUTE_LOCALNET} to be 1, and it cannot be written "
            f"({error.strerror}): set it, or set iptables.localhostNodePorts to false"
        ) from error


def file_limit() -> int:
    """How many open files this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_file_limit() -> None:
    """Allows this process as many open files as it may have: hundreds of listeners and their clients need them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def local_addresses() -> tuple[tuple[Family, str], ...]:
    """All addresses of this namespace but loopback and link-local ones, those of the default route's interface first."""
    # Costs 25 MB, and is not needed where the Node object says everything.
    from pyroute2 import IPRoute  # noqa: PLC0415

    with IPRoute() as netlink:
        defaults = {
            attributes["RTA_OIF"]
            for route in netlink.get_routes(table=254)
            if route["dst_len"] == 0 and "RTA_OIF" in (attributes := dict(route["attrs"]))
        }
        found = []
        for address in netlink.get_addr():
            attributes = dict(address["attrs"])
            text = attributes.get("IFA_LOCAL") or attributes.get("IFA_ADDRESS")
            if address["family"] in (socket.AF_INET, socket.AF_INET6) and address["scope"] == 0 and text:
                found.append((address["index"] not in defaults, text))
    ordered = (canonical(text) for _, text in sorted(found, key=lambda each: each[0]))
    return tuple(each for each in ordered if each is not None)


def every_address(family: Family) -> tuple[str, ...]:
    """Really all addresses of one family in the namespace of this thread: whatever node ports on "all" are taken on."""
    from pyroute2 import IPRoute  # noqa: PLC0415

    found = []
    with IPRoute() as netlink:
        for address in netlink.get_addr(family=socket.AF_INET if family is Family.IPV4 else socket.AF_INET6):
            attributes = dict(address["attrs"])
            found.append(attributes.get("IFA_LOCAL") or attributes["IFA_ADDRESS"])
    return tuple(found)
