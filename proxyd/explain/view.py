"""What an answer depends on, and the frontends that it concerns: worked out on demand, by the functions that rules are
made by, for the few Services that name an address or port in question."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from proxyd.addresses import canonical, contains
from proxyd.desired.admission import Admitted, admit
from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding
from proxyd.desired.services import Desired, Lookup
from proxyd.model import Family, Finding, NodeSettings, Reason, Service, ServiceKey

_LOOPBACK = ("127.0.0.0/8", "::1/128")


class View(NamedTuple):
    """One family of one node, as it stands.

    ``services`` are all Services, ``lookup`` gives one with its slices, always the same. ``addresses`` are the host's,
    loopback need not be among them. ``findings`` are those that stand, ``quarantined`` what the kernel refused in this
    family. ``localhost``: in iptables mode, node ports answer on 127.0.0.0/8. ``notes`` belong to every answer.
    """

    mode: str
    settings: NodeSettings
    services: Sequence[Service]
    lookup: Lookup
    addresses: frozenset[str]
    findings: tuple[Finding, ...] = ()
    quarantined: Collection[ServiceKey] = ()
    localhost: bool = False
    notes: tuple[str, ...] = ()

    @property
    def on_loopback(self) -> bool:
        """Whether rules take node ports on the loopback address."""
        return self.localhost and self.mode == "iptables" and self.settings.family is Family.IPV4

    def is_here(self, address: str) -> bool:
        """Whether packets to this address end on the node, so that packets from it begin there."""
        return address in self.addresses or is_loopback(address)


class Packet(NamedTuple):
    """The first packet of a connection; addresses are canonical. ``interface`` is where it comes in ("": not known)."""

    source: str
    destination: str
    protocol: str
    port: int
    interface: str = ""


class Worked(NamedTuple):
    """One Service as it was worked out. ``unwritten`` says why the kernel does not have it so ("": it does)."""

    service: Service
    admitted: Admitted | None
    forwarding: Forwarding | None
    findings: tuple[Finding, ...]
    unwritten: str = ""


class Entry(NamedTuple):
    """A frontend that there are rules for, with its port and Service."""

    worked: Worked
    forwarding: Forwarding
    port: PortForwarding
    frontend: Frontend


class Concerned(msgspec.Struct, frozen=True):
    """The Services that name certain addresses or node ports, and their frontends.

    ``cluster_ips`` has whose each cluster IP is that rules know.
    """

    services: Mapping[ServiceKey, Worked] = MappingProxyType({})
    frontends: Mapping[FrontendKey, Entry] = MappingProxyType({})
    cluster_ips: Mapping[str, ServiceKey] = MappingProxyType({})

    def at(self, address: str, protocol: str, port: int) -> Entry | None:
        """The frontend with this address of its own."""
        return self.frontends.get(FrontendKey(address, protocol, port))

    def node_port(self, protocol: str, port: int) -> Entry | None:
        """The frontend with this node port, wherever node ports are taken."""
        return self.frontends.get(FrontendKey("", protocol, port))


def concerned(
    view: View,
    addresses: Collection[str],
    ports: Collection[tuple[str, int]] = (),
    also: Collection[ServiceKey] = (),
) -> Concerned:
    """Works out the Services that name one of these addresses, or one of these node ports (protocol and number).

    Looks at all Services once, and works out only those (and ``also`` these). So every conflict about such a place is seen.
    """
    keys = dict.fromkeys((*also, *(each.key for each in view.services if _names(each, addresses, ports))))
    desired = Desired(view.settings.family, view.lookup)
    desired.concerned(keys)
    unwritten = _unwritten(view)
    services = {key: made for key in keys if (made := _worked(view, desired, key, unwritten.get(key, ""))) is not None}
    written = [each for each in services.values() if each.forwarding is not None and not each.unwritten]
    return Concerned(
        services,
        {entry.frontend.key: entry for each in written for entry in _entries(each)},
        {each.forwarding.cluster_ip: each.service.key for each in written if each.forwarding and each.forwarding.ports},
    )


def _worked(view: View, desired: Desired, key: ServiceKey, unwritten: str) -> Worked | None:
    service, _ = view.lookup(key)
    if service is None:
        return None
    admitted = admit(service).families.get(view.settings.family)
    try:
        forwarding, findings = desired.forwarding(key, view.settings)
    except Exception as error:  # noqa: BLE001 - a fault of ours, which the sync thread has met and logged
        return Worked(service, admitted, None, (), unwritten or repr(error))
    return Worked(service, admitted, forwarding, findings, unwritten)


def _entries(worked: Worked) -> Iterator[Entry]:
    if worked.forwarding is not None:
        for port in worked.forwarding.ports:
            for frontend in port.frontends:
                yield Entry(worked, worked.forwarding, port, frontend)


def _names(service: Service, addresses: Collection[str], ports: Collection[tuple[str, int]]) -> bool:
    listed = (*service.cluster_ips, *service.external_ips, *service.ingress_ips)
    return any(address_of(text) in addresses for text in listed) or any(
        (port.protocol, port.node_port) in ports for port in service.ports if port.node_port
    )


def address_of(text: str) -> str:
    """An address of a Service as frontends have it, "" where it is none."""
    found = canonical(text)
    return found[1] if found else ""


def is_loopback(address: str) -> bool:
    """Whether an address means the host itself, whatever its addresses are."""
    return any(contains(each, address) for each in _LOOPBACK)


def _unwritten(view: View) -> dict[ServiceKey, str]:
    """Services that the kernel does not have as they are worked out, with the reason."""
    found = dict.fromkeys(view.quarantined, "the kernel refused it")
    for each in view.findings:
        key = ServiceKey(*each.object.partition("/")[::2])
        if each.kind == "Service" and each.reason is Reason.INTERNAL_ERROR:
            found[key] = f"{each.reason}: {each.message} (what is there of it may be older)"
        elif each.kind == "Service" and each.reason is Reason.KERNEL_REFUSED and key in found:
            found[key] = f"{each.reason}: {each.message}"
    return found


KINDS = {
    Kind.CLUSTER_IP: "cluster IP",
    Kind.NODE_PORT: "node port",
    Kind.LOAD_BALANCER: "load balancer address",
    Kind.EXTERNAL_IP: "external IP",
}
