"""Services of every kind that shapes rules: types, policies, addresses, endpoints in all conditions, both families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.controlplane import objects
from tests.controlplane.api import Api
from tests.controlplane.objects import Manifest

HERE, THERE = "node1", "node2"
ZONE, OTHER_ZONE = "zone-a", "zone-b"
HTTP = {"name": "http", "port": 80, "targetPort": 8080}
DNS = {"name": "dns", "port": 53, "targetPort": 8053, "protocol": "UDP"}
TWICE = "203.0.113.97"
EXTERNAL_IPS = ["203.0.113.50", "2001:db8:113::50"]
Conditions = Mapping[str, bool]
READY: Conditions = {"ready": True}
ENDING: Conditions = {"ready": False, "serving": True, "terminating": True}
ENDED: Conditions = {"ready": False, "serving": False, "terminating": True}
STARTING: Conditions = {"ready": False}


class Place(NamedTuple):
    """An endpoint: the last part of its address, where it is, how it is, and for whom it is meant."""

    number: int
    node: str = HERE
    conditions: Conditions = READY
    zones: Sequence[str] = ()
    nodes: Sequence[str] = ()

    def manifest(self, prefix: str) -> Manifest:
        hints: dict[str, Any] = {"forZones": [{"name": each} for each in self.zones]} if self.zones else {}
        if self.nodes:
            hints["forNodes"] = [{"name": each} for each in self.nodes]
        return {
            "addresses": [f"{prefix}{self.number}"],
            "conditions": dict(self.conditions),
            "nodeName": self.node,
            **({"hints": hints} if hints else {}),
        }


BOTH = (Place(2), Place(10), Place(11), Place(3, THERE))
ELSEWHERE = (Place(2, THERE), Place(3, THERE))
# By the name of the Service: its endpoints. What is not here has none.
PLACES: dict[str, Sequence[Place]] = {
    "plain": BOTH,
    "single": BOTH[:1],
    "unnamed": BOTH,
    "ports": BOTH,
    "many": tuple(Place(number, (HERE, THERE)[number % 2]) for number in range(1, 8)),
    "inside": BOTH,
    "inside-elsewhere": ELSEWHERE,
    "inside-ending": (Place(2, HERE, ENDING), *ELSEWHERE),
    "node-port": BOTH,
    "node-port-local": BOTH,
    "node-port-elsewhere": ELSEWHERE,
    "outside": BOTH,
    "outside-local": BOTH,
    "outside-elsewhere": ELSEWHERE,
    "balanced": BOTH,
    "balanced-ranges": BOTH,
    "balanced-own-range": BOTH,
    "balanced-merged": BOTH,
    "balanced-twice": BOTH,
    "balanced-local": BOTH,
    "balanced-elsewhere": ELSEWHERE,
    "balanced-local-inside": BOTH,
    "sticky": BOTH,
    "sticky-local": BOTH,
    "starting": (Place(2, HERE, STARTING), Place(3, THERE, STARTING)),
    "ending": (Place(2, HERE, ENDING), Place(3, THERE, ENDING), Place(4, HERE, ENDED)),
    "ending-local": (Place(2, HERE, ENDING), Place(3, THERE), Place(4, HERE, ENDED)),
    "ending-beside": (Place(2), Place(3, THERE, ENDING), Place(4, HERE, ENDING)),
    "hints": (Place(2, HERE, READY, [ZONE]), Place(3, THERE, READY, [OTHER_ZONE])),
    "hints-nodes": (
        Place(2, HERE, READY, [ZONE], [HERE]),
        Place(3, THERE, READY, [ZONE], [THERE]),
    ),
    "hints-elsewhere": tuple(Place(number, THERE, READY, [OTHER_ZONE]) for number in (2, 3)),
    "hints-local": (Place(2, HERE, READY, [OTHER_ZONE]), Place(3, THERE, READY, [ZONE])),
}


class Families(NamedTuple):
    """Which families a Service has, and the policy that asks for them."""

    policy: str
    names: Sequence[str]


DUAL, ONLY_V4, ONLY_V6 = (
    Families("RequireDualStack", ["IPv4", "IPv6"]),
    Families("SingleStack", ["IPv4"]),
    Families("SingleStack", ["IPv6"]),
)


def _made(name: str, families: Families = DUAL, **spec: Any) -> Manifest:
    return objects.service(name, ipFamilyPolicy=families.policy, ipFamilies=list(families.names), **spec)


def _balanced(name: str, families: Families = DUAL, **spec: Any) -> Manifest:
    return _made(name, families, type="LoadBalancer", **spec)


def services() -> Iterator[Manifest]:
    """All of them."""
    two = [HTTP, {**HTTP, "name": "https", "port": 443, "targetPort": 8443}, DNS, {**HTTP, "name": "else", "port": 81}]
    local = {"externalTrafficPolicy": "Local"}
    inside = {"internalTrafficPolicy": "Local"}
    sticky = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 600}}}
    outside = {"externalIPs": EXTERNAL_IPS}
    yield _made("plain")
    yield _made("single", ONLY_V4)
    yield _made("unnamed", ONLY_V6, ports=[{"port": 80, "targetPort": 8080}])
    yield _made("ports", ports=two)
    yield _made("many", ports=[DNS])
    for name in ("inside", "inside-elsewhere", "inside-none", "inside-ending"):
        yield _made(name, **inside)
    yield _made("node-port", type="NodePort", ports=[HTTP, DNS])
    for name in ("node-port-local", "node-port-elsewhere", "node-port-none"):
        yield _made(name, type="NodePort", **local)
    for number, name in enumerate(("outside", "outside-local", "outside-elsewhere", "outside-none")):
        ports = [{**HTTP, "port": 8000 + number}]
        yield _made(name, ports=ports, **outside, **(local if name not in ("outside", "outside-none") else {}))
    yield _balanced("balanced", ports=two, **sticky)
    yield _balanced(
        "balanced-ranges", loadBalancerSourceRanges=["198.51.100.0/24", "2001:db8:51::/64", "192.168.0.0/16"]
    )
    own = ["192.0.2.0/24", "2001:db8:2::/64"]
    yield _balanced("balanced-own-range", loadBalancerSourceRanges=own, ports=[HTTP, DNS], **outside, **local)
    merged = ["203.0.112.0/23", "203.0.113.0/24", *own, "192.0.2.128/25"]
    yield _balanced("balanced-merged", loadBalancerSourceRanges=merged)
    yield _balanced("balanced-twice", ONLY_V4, externalIPs=[TWICE])
    yield _balanced("balanced-ranges-none", loadBalancerSourceRanges=["198.51.100.0/24"])
    for name in ("balanced-local", "balanced-elsewhere", "balanced-none"):
        yield _balanced(name, ports=[HTTP, DNS], **local)
    yield _balanced("balanced-local-inside", **local, **inside, **sticky)
    yield _balanced("balanced-no-node-port", allocateLoadBalancerNodePorts=False)
    yield _made("sticky", **sticky)
    yield _made("sticky-local", type="NodePort", **sticky, **local)
    for name in ("none", "starting", "ending", "ending-beside", "hints", "hints-nodes", "hints-elsewhere"):
        yield _made(name)
    for name in ("ending-local", "hints-local"):
        yield _made(name, type="NodePort", **local, **inside)
    yield objects.service("headless", clusterIP="None")
    yield objects.service("alias", type="ExternalName", externalName="example.com", ports=[])


def slices(made: Sequence[Manifest]) -> Iterator[Manifest]:
    """The EndpointSlices of these Services, by family."""
    for number, service in enumerate(made, 1):
        name, spec = service["metadata"]["name"], service["spec"]
        for family in spec.get("ipFamilies", ()):
            prefix = f"10.244.{number}." if family == "IPv4" else f"fd00:10:244:{number}::"
            places = PLACES.get(name, ())
            piece = objects.endpoint_slice(name, [f"{prefix}1"])
            piece["metadata"]["name"] += f"-{family.lower()}"
            piece["ports"] = [
                {"name": each.get("name", ""), "port": each["targetPort"], "protocol": each.get("protocol", "TCP")}
                for each in spec["ports"]
            ]
            piece["endpoints"] = [each.manifest(prefix) for each in places]
            yield piece


def give_addresses(api: Api, made: Sequence[Manifest]) -> None:
    """What a cloud would do: load balancers get addresses, one of them also one that leads to no node."""
    for number, service in enumerate(made, 1):
        if service["spec"].get("type") == "LoadBalancer":
            ingress = [{"ip": f"203.0.113.{100 + number}"}]
            if "IPv6" in service["spec"]["ipFamilies"]:
                ingress.append({"ip": f"2001:db8:113::{100 + number}"})
            if service["metadata"]["name"] == "balanced":
                ingress += [{"ip": "203.0.113.99", "ipMode": "Proxy"}, {"hostname": "lb.example.com"}]
                ingress.append({"ip": "203.0.113.98"})
            if service["metadata"]["name"] == "balanced-twice":
                ingress.append({"ip": TWICE})
            path = f"/api/v1/namespaces/default/services/{service['metadata']['name']}/status"
            api.patch(path, {"status": {"loadBalancer": {"ingress": ingress}}})
