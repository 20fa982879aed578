"""Which addresses of the host count, and in which order: the host's state as the kernel tells it, made plain."""

from __future__ import annotations

from proxyd.addresses import canonical, is_usable_frontend
from proxyd.model import Family, HostAddress, HostState


def local_addresses(host: HostState) -> tuple[tuple[Family, str], ...]:
    """The addresses of the host that can take node ports, each once, the best stand-in for a Node's address first.

    Left out: loopback, IPv6 link-local (several hosts of a link can have the same, and it says nothing without an
    interface), tentative ones and those of interfaces that are down: nobody is answered there. The interface of the
    default route comes first, and on it what is of global scope and will stay; else the kernel's order counts.
    """

    def rank(each: HostAddress) -> tuple[bool, bool, bool]:
        return (
            each.interface != host.default_interfaces.get(each.family),
            each.scope != "global",
            not each.preferred,
        )

    return tuple(dict.fromkeys((a.family, a.address) for a in sorted(filter(_counts, host.addresses), key=rank)))


def _counts(each: HostAddress) -> bool:
    # IPv4 addresses of link scope are routed like any other; only IPv6 ties the scope to the address.
    is_link_local = each.family is Family.IPV6 and each.scope == "link"
    return (
        each.usable
        and each.scope != "host"
        and not is_link_local
        and canonical(each.address) is not None
        and is_usable_frontend(each.family, each.address)
    )
