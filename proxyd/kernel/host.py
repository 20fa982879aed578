"""Facts about this machine and its network namespace that do not change: names, families, versions, limits."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

from proxyd.model import FAMILIES, Family

TCP_BE_LIBERAL = Path("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
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


def file_limit() -> int:
    """How many open files this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def raise_file_limit() -> None:
    """Allows this process as many open files as it may have: hundreds of listeners and their clients need them."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
