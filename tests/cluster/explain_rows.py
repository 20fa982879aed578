"""Every verdict and reason of explain as a row: a Service, a packet, what is said of it and who answers."""

from __future__ import annotations

from typing import Any, NamedTuple

from proxyd.desired.endpoints import LeftOut
from proxyd.explain.answer import Source, Verdict
from proxyd.model import Family, Reason
from tests.cluster.modes import Mode
from tests.topology import ADDRESSES, NODE, POD_GATEWAY, PODS, V4, V6

Addresses = dict[Family, str]
Document = dict[str, Any]

NFT, IPT = (Mode.NFTABLES,), (Mode.NFT, Mode.LEGACY)
LOOPBACK = {V4: "127.0.0.1", V6: "::1"}
# The flags of the daemons that rows are served by, beside those of every daemon.
BASE, ALL, BLIND = "base", "masquerade all", "no detector"
CLIENTS = {V4: "198.51.100.0/24", V6: "2001:db8:51::/64"}
NOBODYS = ["192.0.2.0/24", "2001:db8:2::/64"]
# A Service without endpoints whose cluster IP others have for an endpoint.
DEAD = {V4: "10.96.0.99", V6: "fd00:10:96::99"}


class End(NamedTuple):
    """An endpoint in a slice; ``slice`` tells slices of one Service apart."""

    address: Addresses
    node: str = "node2"
    conditions: dict[str, bool] = {}  # noqa: RUF012 - never changed
    hints: dict[str, Any] = {}  # noqa: RUF012
    slice: str = "1"
    port: int = 8080
    port_name: str = "http"


def at(pod: str, **fields: Any) -> End:
    """A pod as an endpoint, or the node itself."""
    own = pod == "node" or PODS[pod].router == "node"
    return End(ADDRESSES[pod], "node1" if own else "node2", **fields)


class Row(NamedTuple):
    """A question and its answer.

    ``met``: who answers connections, or what comes instead. ``ends`` has the endpoints that can be chosen, ``out`` those
    that are left out. ``says`` is a part of the reason or a note, ``reason`` a Finding that must be told. ``spec`` are
    fields of the Service beside its addresses; ``named`` what is said of it by its name.
    """

    title: str
    place: str
    to: str | Addresses
    verdict: Verdict
    met: set[str]
    endpoints: tuple[End, ...] = ()
    ends: dict[str, Source] = {}  # noqa: RUF012
    out: dict[str, LeftOut] = {}  # noqa: RUF012
    says: str = ""
    reason: Reason | None = None
    spec: dict[str, Any] = {}  # noqa: RUF012
    port: int = 80
    protocol: str = "tcp"
    external: Addresses = {}  # noqa: RUF012
    on: str = BASE
    modes: tuple[Mode, ...] = (*Mode,)
    families: tuple[Family, ...] = (*Family,)
    named: str = ""


HERE, AWAY = at("pod1"), at("pod3")
BOTH = (HERE, AWAY)
LOCAL, INSIDE = {"externalTrafficPolicy": "Local"}, {"internalTrafficPolicy": "Local"}
NOT_READY = {"ready": False, "serving": False}
GONE = {"ready": False, "serving": False, "terminating": True}
LEAVING = {"ready": False, "serving": True, "terminating": True}


def zone(name: str) -> dict[str, Any]:
    return {"hints": {"forZones": [{"name": name}]}}


def of_node(name: str) -> dict[str, Any]:
    return {"hints": {"forNodes": [{"name": name}]}}


def port_of(number: int, name: str = "again") -> dict[str, Any]:
    return {"name": name, "port": number}


V, S, L, R = Verdict, Source, LeftOut, Reason
POD = {"pod1": S.LOCAL_POD}
ROWS = [
    # -- what becomes of the source
    Row("pod", "pod2", "vip", V.DELIVERED, {"pod1", "pod3"}, BOTH, {**POD, "pod3": S.LOCAL_POD}),
    Row("client", "client1", "vip", V.DELIVERED, {"pod1", "pod3"}, BOTH,
        dict.fromkeys(("pod1", "pod3"), S.NOT_A_LOCAL_POD)),
    Row("itself", "pod1", "vip", V.DELIVERED, {"pod1", "pod3"}, BOTH, {"pod1": S.HAIRPIN, "pod3": S.LOCAL_POD}),
    Row("external", "client1", "external", V.DELIVERED, {"pod1", "pod3"}, BOTH,
        dict.fromkeys(("pod1", "pod3"), S.EXTERNAL_CLUSTER)),
    Row("node to Local", "node", "external", V.DELIVERED, {"pod1", "pod3"}, BOTH,
        dict.fromkeys(("pod1", "pod3"), S.NODE_TRAFFIC), spec=LOCAL),
    Row("pod to Local", "pod2", "external", V.DELIVERED, {"pod3"}, (AWAY,), {"pod3": S.LOCAL_POD}, spec=LOCAL),
    Row("client to Local", "client1", "node port", V.DELIVERED, {"pod1"}, BOTH, {"pod1": S.EXTERNAL_LOCAL},
        {"pod3": L.OTHER_NODE}, spec=LOCAL),
    Row("host network", "client1", "external", V.DELIVERED, {"node"}, (at("node", port=2222),), {"node": S.ENDPOINT_HERE}),
    Row("localhost", "node", "localhost", V.DELIVERED, {"pod1", "pod3"}, BOTH, dict.fromkeys(("pod1", "pod3"), S.RELAYED),
        modes=NFT),
    Row("localhost", "node", "localhost", V.DELIVERED, {"pod1", "pod3"}, BOTH,
        dict.fromkeys(("pod1", "pod3"), S.EXTERNAL_CLUSTER), modes=IPT, families=(V4,)),
    Row("everybody's", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE,), {"pod1": S.MASQUERADE_ALL}, on=ALL),
    Row("nobody is known", "client1", "vip", V.DELIVERED, {"pod1"}, (HERE,), {"pod1": S.NO_DETECTOR}, on=BLIND),
    # -- endpoints that are left out
    Row("conditions", "pod2", "vip", V.DELIVERED, {"pod1"},
        (HERE, at("pod2", conditions=NOT_READY), at("pod3", conditions=GONE), at("pod4", conditions=LEAVING)), POD,
        {"pod2": L.NOT_READY, "pod3": L.TERMINATED, "pod4": L.TERMINATING}),
    Row("only leaving", "pod2", "vip", V.DELIVERED, {"pod1", "pod4"},
        (at("pod1", conditions=LEAVING), at("pod4", conditions=LEAVING), at("pod3", conditions=NOT_READY)),
        {**POD, "pod4": S.LOCAL_POD}, {"pod3": L.NOT_READY}),
    Row("only leaving here", "client1", "node port", V.DELIVERED, {"pod1"}, (at("pod1", conditions=LEAVING), AWAY),
        {"pod1": S.EXTERNAL_LOCAL}, {"pod3": L.OTHER_NODE}, spec=LOCAL),
    Row("inside only", "pod2", "vip", V.DELIVERED, {"pod1"}, BOTH, POD, {"pod3": L.OTHER_NODE}, spec=INSIDE),
    Row("zones", "pod2", "vip", V.DELIVERED, {"pod1"}, (at("pod1", hints=zone("za")), at("pod3", hints=zone("zb"))), POD,
        {"pod3": L.ZONE_HINT}),
    Row("nodes", "pod2", "vip", V.DELIVERED, {"pod1"},
        (at("pod1", hints=of_node("node1")), at("pod3", hints=of_node("node2"))), POD, {"pod3": L.NODE_HINT}),
    Row("twice", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE, at("pod1", conditions=NOT_READY, slice="2")), POD,
        {"pod1": L.DUPLICATE}),
    Row("other port", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE, at("pod3", slice="2", port_name="dns")), POD,
        {"pod3": L.OTHER_PORT}),
    Row("loopback", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE, End(LOOPBACK)), POD, {"localhost": L.REFUSED},
        reason=R.INVALID_ENDPOINT),
    # -- refused
    Row("none", "pod2", "vip", V.REJECTED, {"refused"}, (at("pod1", conditions=NOT_READY),), {}, {"pod1": L.NOT_READY},
        "no endpoint that could be used"),
    Row("none", "client1", "node port", V.REJECTED, {"refused"}, says="no endpoint that could be used"),
    Row("none inside", "pod2", "vip", V.DROPPED, {"timeout"}, (AWAY,), {}, {"pod3": L.OTHER_NODE}, "internalTrafficPolicy",
        spec=INSIDE),
    Row("none here", "client1", "external", V.DROPPED, {"timeout"}, (AWAY,), {}, {"pod3": L.OTHER_NODE},
        "externalTrafficPolicy", spec=LOCAL),
    Row("ranges", "client1", "balancer", V.DROPPED, {"timeout"}, (HERE,), says="loadBalancerSourceRanges",
        spec={"loadBalancerSourceRanges": NOBODYS}),
    Row("in the ranges", "client1", "balancer", V.DELIVERED, {"pod1"}, (HERE,), {"pod1": S.EXTERNAL_CLUSTER},
        spec={"loadBalancerSourceRanges": [*NOBODYS, *CLIENTS.values()]}),
    Row("other port of a cluster IP", "pod2", "vip", V.REJECTED, {"refused"}, (HERE,), says="no such port", port=81,
        modes=NFT),
    Row("dead", "pod2", "vip", V.REJECTED, {"refused"}, (End(DEAD),), {"dead": S.LOCAL_POD}, says="refused on the way"),
    Row("half dead", "pod2", "vip", V.PARTLY, {"refused", "pod1"}, (HERE, End(DEAD)), {**POD, "dead": S.LOCAL_POD}),
    # -- not served: who has the address or port answers
    Row("other port of a cluster IP", "pod2", "vip", V.UNSERVED, set(), (HERE,), says="no port 81", port=81, modes=IPT),
    Row("other port", "client1", "external", V.UNSERVED, {"pod2"}, (HERE,), says="no port 8081", port=8081,
        external=ADDRESSES["pod2"]),
    Row("other address", "client1", POD_GATEWAY, V.UNSERVED, {"node"}, (HERE,), says="node ports are taken on", port=2222,
        spec={"ports": [{"name": "http", "port": 80, "nodePort": 2222}]}),
    Row("none, from the node", "node", "external", V.UNSERVED, {"pod2"}, says="do not refuse", port=8443,
        external=ADDRESSES["pod2"], spec={"ports": [port_of(8443)]}, modes=IPT),
    Row("none, from the node", "node", "external", V.REJECTED, {"refused"}, says="no endpoint that could be used",
        port=8443, external=ADDRESSES["pod2"], spec={"ports": [port_of(8443)]}, modes=NFT),
    # -- refused fields and conflicts
    Row("port too high", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE,), POD, reason=R.INVALID_PORT,
        spec={"ports": [port_of(80, "http"), port_of(70000, "high")]}),
    Row("port twice", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE,), POD, reason=R.DUPLICATE_PORT,
        spec={"ports": [port_of(80, "http"), port_of(80)]}),
    Row("no address", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE,), POD, reason=R.INVALID_ADDRESS, external=LOOPBACK),
    Row("no ranges", "client1", "balancer", V.DROPPED, {"timeout"}, (HERE,), reason=R.INVALID_SOURCE_RANGE,
        spec={"loadBalancerSourceRanges": ["nonsense"]}),
    Row("affinity too long", "pod2", "vip", V.DELIVERED, {"pod1"}, (HERE,), POD, reason=R.INVALID_AFFINITY,
        spec={"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10**6}}}),
    Row("conflict", "pod2", "vip", V.DELIVERED, {"pod3"}, (AWAY,), {"pod3": S.LOCAL_POD}, reason=R.FRONTEND_CONFLICT,
        external=DEAD, says="is served for default/dead instead"),
    Row("unreadable", "pod2", "vip", V.UNTOUCHED, set(), (HERE,), says="no Service has the address",
        spec={"ports": "all"}, named="cannot be read", reason=R.UNREADABLE_OBJECT),
    # -- nobody's
    Row("unknown port of the node", "client1", NODE, V.UNTOUCHED, {"node"}, says="nor a node port 80/tcp"),
    Row("another pod", "pod2", ADDRESSES["pod4"], V.UNTOUCHED, {"pod4"}, says="no Service has the address", port=8080),
]  # fmt: skip

# Reasons that no Service or slice has, or none that could be written down, and where explain is seen to tell of them.
NOT_OF_SERVICES = {
    Reason.KERNEL_REFUSED: "no object makes a kernel refuse: tests/unit/test_explain.py",
    Reason.INTERNAL_ERROR: "a fault of ours: tests/unit/test_explain_service.py",
    Reason.NODE_NOT_FOUND: "about the Node",
    Reason.POD_RANGE_UNKNOWN: "about the Node: nobody counts as a pod, which the row of no detector is about",
    Reason.FAMILY_MISMATCH: "about the configuration",
    Reason.CONFIGURATION_REFUSED: "about the configuration, and what is served stays as it was",
}


class Place(NamedTuple):
    """The addresses and node port of a row's Service."""

    vip: Addresses
    external: Addresses
    balancer: Addresses
    node_port: int

    def to(self, row: Row, family: Family) -> tuple[str, int]:
        """Where the packet goes."""
        if isinstance(row.to, dict):
            return row.to[family], row.port
        if row.to in ("node port", "localhost"):
            return (NODE if row.to == "node port" else LOOPBACK)[family], self.node_port
        return {"vip": self.vip, "external": row.external or self.external, "balancer": self.balancer}[row.to][
            family
        ], row.port


def place_of(number: int) -> Place:
    """The place of the Service of the row with this number, which no other has."""
    return Place(
        {V4: f"10.96.1.{number}", V6: f"fd00:10:96::1{number:02}"},
        {V4: f"203.0.113.{100 + number}", V6: f"2001:db8:113::1{number:02}"},
        {V4: f"203.0.113.{number + 1}", V6: f"2001:db8:113::2{number:02}"},
        30100 + number,
    )


def documents(number: int, row: Row) -> list[Document]:
    """The manifests of a row."""
    place, name = place_of(number), f"row{number}"
    return [_service(name, place, row), *_slices(name, row)]


def dead() -> Document:
    """The Service without endpoints, older than all others."""
    made = _service("dead", Place(DEAD, {}, {}, 0), Row("", "", "", Verdict.REJECTED, set()))
    made["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    made["spec"]["ports"] = [{"name": "http", "port": 8080}, {"name": "web", "port": 80}]
    return made


def _service(name: str, place: Place, row: Row) -> Document:
    port = {"name": "http", "port": 80} | ({"nodePort": place.node_port} if place.node_port else {})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {
            "clusterIP": place.vip[V4],
            "clusterIPs": list(place.vip.values()),
            "externalIPs": list((row.external or place.external).values()),
            "ports": [port],
            **row.spec,
        },
        "status": {"loadBalancer": {"ingress": [{"ip": each} for each in place.balancer.values()]}},
    }


def _slices(name: str, row: Row) -> list[Document]:
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-{part}-{family.lower()}", "labels": {"kubernetes.io/service-name": name}},
            "addressType": family.value,
            "ports": [{"name": ends[0].port_name, "port": ends[0].port}],
            "endpoints": [
                {
                    "addresses": [each.address[family]],
                    "conditions": each.conditions,
                    "nodeName": each.node,
                    **each.hints,
                }
                for each in ends
            ],
        }
        for family in Family
        for part in sorted({each.slice for each in row.endpoints})
        for ends in [[each for each in row.endpoints if each.slice == part]]
    ]
