"""The list of Services on the status page: searched among all, worked out only for those that are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest

import msgspec

from proxyd.desired.admission import admit
from proxyd.desired.forwarding import endpoints_of
from proxyd.errors import UserError
from proxyd.kube.store import Store
from proxyd.model import CamelStruct, EndpointSlice, Finding, NodeSettings, Reason, Service, ServiceKey
from proxyd.sync.status import Status

ROWS = 50
MOST_ROWS = 200
# A list ends early where it would look at more endpoints than these: others wait for this thread.
MOST_ENDPOINTS = 20_000
LONGEST_SEARCH = 200

# What is worst for the Service's clients comes first.
SEVERITY = (
    Reason.KERNEL_REFUSED,
    Reason.INTERNAL_ERROR,
    Reason.UNREADABLE_OBJECT,
    Reason.NODE_NOT_FOUND,
    Reason.POD_RANGE_UNKNOWN,
    Reason.FAMILY_MISMATCH,
    Reason.CONFIGURATION_REFUSED,
    Reason.FRONTEND_CONFLICT,
    Reason.INVALID_ADDRESS,
    Reason.INVALID_PORT,
    Reason.DUPLICATE_PORT,
    Reason.INVALID_SOURCE_RANGE,
    Reason.INVALID_AFFINITY,
    Reason.INVALID_ENDPOINT,
)
_RANK = {reason: rank for rank, reason in enumerate(SEVERITY)}


class Port(CamelStruct, frozen=True):
    """A port of a Service, as the API gave it; ``node_port`` is 0 where there is none."""

    name: str
    protocol: str
    port: int
    node_port: int


class Row(CamelStruct, frozen=True):
    """One Service. ``used``, ``ready`` and ``endpoints`` count addresses: those in use on this node, those that are ready,
    all. ``finding`` is the worst reason ("": none) of ``findings``.
    """

    namespace: str
    name: str
    type: str
    cluster_ips: tuple[str, ...]
    other_ips: tuple[str, ...]
    ports: tuple[Port, ...]
    used: int
    ready: int
    endpoints: int
    finding: str
    findings: int


class Listing(CamelStruct, frozen=True):
    """One page of a list in order of namespace and name: how many Services there are, how many match, and the rows.

    ``next`` is what to ask for with ``after`` to go on; "" at the end.
    """

    total: int
    matching: int
    rows: tuple[Row, ...]
    next: str


class Wanted(msgspec.Struct, frozen=True):
    """What of the list: all words of ``search`` in name, namespace or an address, or a port; after this Service."""

    search: str = ""
    after: ServiceKey | None = None
    limit: int = ROWS
    only_findings: bool = False


def wanted(given: Mapping[str, str]) -> Wanted:
    """Reads the parameters of a query. Raises ``UserError``."""
    limit = given.get("limit", str(ROWS))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MOST_ROWS):
        raise UserError(f"limit: must be 1..{MOST_ROWS}, got {limit!r}")
    search = given.get("search", "")
    if len(search) > LONGEST_SEARCH:
        raise UserError(f"search: at most {LONGEST_SEARCH} characters")
    after = given.get("after", "")
    namespace, _, name = after.partition("/")
    return Wanted(search, ServiceKey(namespace, name) if after else None, int(limit), given.get("only") == "findings")


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """The worst ones first, else in order of what they are about."""
    return sorted(findings, key=lambda each: (_RANK.get(each.reason, len(_RANK)), each.object, each.message))


def list_services(store: Store, status: Status, asked: Wanted) -> Listing:
    """Looks at all Services once, and works out those that are shown."""
    services = store.all_services()
    found = _found_about(status.findings)
    words = asked.search.lower().split()
    candidates = [each for each in services if str(each.key) in found] if asked.only_findings else services
    matching = [each for each in candidates if all(map(_text(each).__contains__, words))] if words else candidates
    rest = [each for each in matching if asked.after is None or each.key > asked.after]
    shown = nsmallest(asked.limit, rest, key=lambda each: each.key)
    settings = [each.settings for each in status.families if each.settings is not None]
    rows = tuple(_rows(store, shown, settings, found))
    complete = len(rows) == len(rest)
    return Listing(len(services), len(matching), rows, "" if complete else f"{rows[-1].namespace}/{rows[-1].name}")


def _found_about(findings: Iterable[Finding]) -> Mapping[str, list[Finding]]:
    found: defaultdict[str, list[Finding]] = defaultdict(list)
    for each in findings:
        if each.kind == "Service":
            found[each.object].append(each)
    return dict(found)


def _text(service: Service) -> str:
    """What is searched in."""
    numbers = (f":{port.port} :{port.node_port} {port.name}" for port in service.ports)
    addresses = (*service.cluster_ips, *service.external_ips, *service.ingress_ips)
    return " ".join((str(service.key), *addresses, *numbers)).lower()


def _rows(
    store: Store, services: Sequence[Service], settings: Sequence[NodeSettings], found: Mapping[str, list[Finding]]
) -> Iterator[Row]:
    looked_at = 0
    for service in services:
        _, slices = store.service(service.key)
        looked_at += sum(len(piece.endpoints) for piece in slices) * max(1, len(service.ports))
        yield _row(service, slices, settings, by_severity(found.get(str(service.key), ())))
        if looked_at > MOST_ENDPOINTS:
            return


def _row(
    service: Service, slices: Sequence[EndpointSlice], settings: Sequence[NodeSettings], findings: Sequence[Finding]
) -> Row:
    used, ready = _counts(service, slices, settings)
    return Row(
        namespace=service.key.namespace,
        name=service.key.name,
        type=_type(service),
        cluster_ips=service.cluster_ips,
        other_ips=(*service.ingress_ips, *service.external_ips),
        ports=tuple(Port(port.name, port.protocol, port.port, port.node_port) for port in service.ports),
        used=len(used),
        ready=len(ready),
        endpoints=len({each.address for piece in slices for each in piece.endpoints}),
        finding=findings[0].reason if findings else "",
        findings=len(findings),
    )


def _type(service: Service) -> str:
    """What it can be reached by, in the words of spec.type (which is not kept)."""
    if service.ingress_ips:
        return "LoadBalancer"
    return "NodePort" if any(port.node_port for port in service.ports) else "ClusterIP"


def _counts(
    service: Service, slices: Sequence[EndpointSlice], settings: Sequence[NodeSettings]
) -> tuple[set[str], set[str]]:
    """The addresses in use on this node, and those of ready endpoints."""
    used: set[str] = set()
    families = admit(service).families
    for each in settings:
        admitted = families.get(each.family)
        for port in admitted.ports if admitted else ():
            _, choice = endpoints_of(service, port, admitted, slices, each)  # type: ignore[arg-type] # there are ports
            used.update(backend.address for backend in (*choice.cluster, *choice.local))
    return used, {each.address for piece in slices for each in piece.endpoints if each.ready}
