"""The scenes of the demo: manifests, who connects to what, and which answers are right."""

from __future__ import annotations

from typing import NamedTuple

from tests.topology import NODE, POD_GATEWAY, PODS, V4

NODE_NAMES = {"node": "node1", "other": "node2"}
OURS = {*NODE.values(), *POD_GATEWAY.values()}
CHANGES = 15
BAR = 24

NODE_YAML = """\
apiVersion: v1
kind: Node
metadata: {name: node1}
status:
  addresses:
  - {type: InternalIP, address: 192.0.2.11}
  - {type: InternalIP, address: "2001:db8:2::11"}
"""


class Ask(NamedTuple):
    """Connections of one host to one address, and what should come of them.

    ``by`` are the endpoints that answer, all of them evenly unless ``pinned``; or what happens instead of an answer.
    ``source`` tells what they see: the client's "own" address, or one of the "node".
    """

    who: str
    ip: str
    port: int
    by: tuple[str, ...]
    source: str = ""
    protocol: str = "tcp"
    times: int = 200
    pinned: bool = False
    timeout: float = 5.0


class Scene(NamedTuple):
    """One Service: its manifest, and who asks it what."""

    title: str
    file: str
    manifest: str
    asks: tuple[Ask, ...]


def slice_yaml(service: str, port: str, pods: tuple[str, ...], family: str = "IPv4") -> str:
    """The EndpointSlice of a Service, as the control plane would write it."""
    lines = [
        "---",
        "apiVersion: discovery.k8s.io/v1",
        "kind: EndpointSlice",
        f"metadata: {{name: {service}-{family.lower()}, labels: {{kubernetes.io/service-name: {service}}}}}",
        f"addressType: {family}",
        f"ports: [{port}]",
        "endpoints:" if pods else "endpoints: []",
    ]
    for pod in pods:
        address = PODS[pod].addresses[V4] if family == "IPv4" else PODS[pod].addresses[_V6]
        lines.append(f'- {{addresses: ["{address}"], nodeName: {NODE_NAMES[PODS[pod].router]}}}')
    return "\n".join(lines) + "\n"


_V6 = next(family for family in NODE if family is not V4)
HTTP = "{name: http, port: 8080}"

SHOP = """\
apiVersion: v1
kind: Service
metadata: {name: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}]
"""

SCENES = (
    Scene(
        "ClusterIP, three endpoints: each has the same chance; pods keep their source address",
        "10-shop.yaml",
        SHOP + slice_yaml("shop", HTTP, ("pod1", "pod3", "pod4")),
        (
            Ask("pod2", "10.96.0.10", 80, ("pod1", "pod3", "pod4"), "own", times=600),
            Ask("node", "10.96.0.10", 80, ("pod1", "pod3", "pod4"), "node"),
            Ask("client1", "10.96.0.10", 80, ("pod1", "pod3", "pod4"), "node"),
            Ask("pod2", "10.96.0.10", 443, ("refused",), times=1),
        ),
    ),
    Scene(
        "NodePort: from everywhere, through the node's address",
        "20-files.yaml",
        """\
apiVersion: v1
kind: Service
metadata: {name: files}
spec:
  type: NodePort
  clusterIP: 10.96.0.20
  ports: [{name: http, port: 80, nodePort: 30080}]
"""
        + slice_yaml("files", HTTP, ("pod1", "pod3")),
        (
            Ask("client1", "192.0.2.11", 30080, ("pod1", "pod3"), "node"),
            Ask("pod2", "192.0.2.11", 30080, ("pod1", "pod3"), "node"),
            Ask("node", "192.0.2.11", 30080, ("pod1", "pod3"), "node"),
        ),
    ),
    Scene(
        "LoadBalancer, externalTrafficPolicy Local, only 198.51.100.7 and the pods let in",
        "30-web.yaml",
        """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.30
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [198.51.100.7/32, 10.244.0.0/16]
  ports: [{name: http, port: 80}]
status:
  loadBalancer: {ingress: [{ip: 203.0.113.10}]}
"""
        + slice_yaml("web", HTTP, ("pod1", "pod3")),
        (
            Ask("client1", "203.0.113.10", 80, ("pod1",), "own"),
            Ask("pod2", "203.0.113.10", 80, ("pod1", "pod3"), "own"),
            Ask("client2", "203.0.113.10", 80, ("timeout",), times=1, timeout=0.5),
        ),
    ),
    Scene(
        "sessionAffinity ClientIP: each client stays with one endpoint",
        "40-cart.yaml",
        """\
apiVersion: v1
kind: Service
metadata: {name: cart}
spec:
  clusterIP: 10.96.0.40
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}
  ports: [{name: http, port: 80}]
"""
        + slice_yaml("cart", HTTP, ("pod1", "pod3", "pod4")),
        (
            Ask("pod2", "10.96.0.40", 80, ("pod1", "pod3", "pod4"), "own", pinned=True),
            Ask("client2", "10.96.0.40", 80, ("pod1", "pod3", "pod4"), "node", pinned=True),
        ),
    ),
    Scene(
        "No endpoints: refused at once, nobody waits",
        "50-empty.yaml",
        """\
apiVersion: v1
kind: Service
metadata: {name: empty}
spec:
  type: NodePort
  clusterIP: 10.96.0.50
  ports: [{name: http, port: 80, nodePort: 30050}]
"""
        + slice_yaml("empty", HTTP, ()),
        (
            Ask("pod2", "10.96.0.50", 80, ("refused",), times=20),
            Ask("node", "10.96.0.50", 80, ("refused",), times=20),
            Ask("client1", "192.0.2.11", 30050, ("refused",), times=20),
        ),
    ),
    Scene(
        "Dual stack",
        "60-both.yaml",
        """\
apiVersion: v1
kind: Service
metadata: {name: both}
spec:
  ipFamilyPolicy: RequireDualStack
  clusterIPs: [10.96.0.60, "fd00:10:96::60"]
  ports: [{name: http, port: 80}]
"""
        + slice_yaml("both", HTTP, ("pod1", "pod3"))
        + slice_yaml("both", HTTP, ("pod1", "pod3"), "IPv6"),
        (
            Ask("pod2", "10.96.0.60", 80, ("pod1", "pod3"), "own"),
            Ask("pod2", "fd00:10:96::60", 80, ("pod1", "pod3"), "own"),
            Ask("client1", "fd00:10:96::60", 80, ("pod1", "pod3"), "node"),
        ),
    ),
    Scene(
        "UDP",
        "70-dns.yaml",
        """\
apiVersion: v1
kind: Service
metadata: {name: dns}
spec:
  clusterIP: 10.96.0.70
  ports: [{name: dns, port: 53, protocol: UDP}]
"""
        + slice_yaml("dns", "{name: dns, port: 8053, protocol: UDP}", ("pod1", "pod3", "pod4")),
        (
            Ask("pod2", "10.96.0.70", 53, ("pod1", "pod3", "pod4"), "own", "udp"),
            Ask("node", "10.96.0.70", 53, ("pod1", "pod3", "pod4"), "node", "udp"),
        ),
    ),
)

BAD = """\
apiVersion: v1
kind: Service
metadata: {name: bad}
spec:
  clusterIP: 10.96.0.999
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: thief}
spec:
  clusterIP: 10.96.0.80
  externalIPs: [10.96.0.10]
  ports: [{name: http, port: 80}, {name: worse, port: 80000}]
"""
