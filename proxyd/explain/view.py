"""What an answer depends on, and the frontends that it concerns: worked out on demand, by the functions that rules are
made by, for the few Services that name an address or port in question."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from proxyd.addresses import canonical, is_loopback
from proxyd.desired.admission import Admitted, admit
from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.forwarding import Forwarding, Frontend, PortForwarding
from proxyd.desired.services import Desired, Lookup
from proxyd.model import Family, Finding, NodeSettings, Reason, Service, ServiceKey


class Index:
    """All Services, and who names an address or a node port; looked through once, when it is first asked."""

    def __init__(self, services: Iterable[Service]) -> None:
        self.all = services
        self._by_address: dict[str, list[ServiceKey]] | None = None
        self._by_node_port: dict[tuple[str, int], list[ServiceKey]] = {}

    def naming(self, addresses: Iterable[str], ports: Iterable[tuple[str, int]]) -> list[ServiceKey]:
        """The Services that name one of these addresses, or one of these node ports (protocol and number)."""
        if self._by_address is None:
            self._by_address = self._look()
        found = [self._by_address.get(each, ()) for each in addresses]
        found += [self._by_node_port.get(each, ()) for each in ports]
        return [key for keys in found for key in keys]

    def _look(self) -> dict[str, list[ServiceKey]]:
        found: dict[str, list[ServiceKey]] = {}
        for service in self.all:
            for text in (*service.cluster_ips, *service.external_ips, *service.ingress_ips):
                found.setdefault(address_of(text), []).append(service.key)
            for port in service.ports:
                if port.node_port:
                    self._by_node_port.setdefault((port.protocol, port.node_port), []).append(service.key)
        return found


class View(NamedTuple):
    """One family of one node, as it stands.

    ``services`` has all Services, ``lookup`` gives one with its slices, always the same. ``addresses`` are the host's,
    loopback need not be among them. ``findings`` are those that stand, ``quarantined`` what the kernel refused in this
    family. ``localhost``: in iptables mode, node ports answer on 127.0.0.0/8. ``notes`` belong to every answer.
    """

    mode: str
    settings: NodeSettings
    services: Index
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

    Looks at all Services once, and works out only those (and ``also`` these). Every conflict of theirs is seen, about other
    places too: what they lose elsewhere has no rules.
    """
    keys = dict.fromkeys((*also, *view.services.naming(addresses, ports)))
    desired = Desired(view.settings.family, view.lookup)
    desired.concerned({**keys, **dict.fromkeys(_rivals(view, keys))})
    unwritten = _unwritten(view)
    services = {key: made for key in keys if (made := _worked(view, desired, key, unwritten.get(key, ""))) is not None}
    written = [each for each in services.values() if each.forwarding is not None and not each.unwritten]
    return Concerned(
        services,
        {entry.frontend.key: entry for each in written for entry in _entries(each)},
        {each.forwarding.cluster_ip: each.service.key for each in written if each.forwarding and each.forwarding.ports},
    )


def _rivals(view: View, keys: Iterable[ServiceKey]) -> list[ServiceKey]:
    """The Services that name an address or node port of one of these."""
    services = [service for service in (view.lookup(key)[0] for key in keys) if service is not None]
    return view.services.naming(
        {address_of(text) for each in services for text in (*each.cluster_ips, *each.external_ips, *each.ingress_ips)},
        {(port.protocol, port.node_port) for each in services for port in each.ports if port.node_port},
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


def address_of(text: str) -> str:
    """An address of a Service as frontends have it, "" where it is none."""
    found = canonical(text)
    return found[1] if found else ""


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
