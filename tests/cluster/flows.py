"""Senders and a daemon for tests about flows that the kernel remembers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from proxyd.desired.endpoints import Backend
from proxyd.model import Family
from tests.cluster.cases import EXTERNAL, FRONTENDS, LOAD_BALANCER, VIP, Target
from tests.cluster.modes import Mode
from tests.cluster.namespaces import inside
from tests.fakes.flows import Flow
from tests.netns import list_flows
from tests.program import Proxyd, until, write
from tests.topology import ADDRESSES, NODE, V4, Topology

NODE_PORT = 30053
METRICS_PORT = 10249
SILENCE = 0.3
# Keeps the connection tracker at work while there are no rules of ours.
KEEP_TRACKING = "table inet keep { chain c { type filter hook prerouting priority 0; ct state invalid counter; }; }"
TCP = {"name": "web", "port": 80, "protocol": "TCP"}


def target(frontend: str, family: Family) -> Target:
    if frontend == "node port":
        return Target(NODE[family], NODE_PORT)
    addresses = {"cluster ip": VIP, "load balancer": LOAD_BALANCER, "external ip": EXTERNAL}
    return Target(addresses[frontend][family], 53)


def every_frontend(family: Family) -> list[tuple[Target, int]]:
    """Each with a source port for it."""
    return [(target(frontend, family), 5353 + number) for number, frontend in enumerate(FRONTENDS)]


def service(**spec: Any) -> dict[str, Any]:
    """A Service with UDP on every kind of frontend, and TCP beside it."""
    defaults = {
        "type": "NodePort",
        "clusterIPs": list(VIP.values()),
        "clusterIP": VIP[V4],
        "externalIPs": list(EXTERNAL.values()),
        "ports": [{"name": "dns", "port": 53, "protocol": "UDP", "nodePort": NODE_PORT}, TCP],
    }
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "dns"},
        "spec": {**defaults, **spec},
        "status": {"loadBalancer": {"ingress": [{"ip": address} for address in LOAD_BALANCER.values()]}},
    }


def slices(**pods: dict[str, bool]) -> list[dict[str, Any]]:
    """Slices of both families with these pods and their conditions."""
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"dns-{family}".lower(), "labels": {"kubernetes.io/service-name": "dns"}},
            "addressType": family,
            "ports": [{"name": "dns", "port": 8053, "protocol": "UDP"}, {"name": "web", "port": 8080}],
            "endpoints": [
                {"addresses": [ADDRESSES[pod][family]], "conditions": conditions, "nodeName": "node1"}
                for pod, conditions in pods.items()
            ],
        }
        for family in Family
    ]


class Bench:
    """A daemon that is told in one step what there is, and senders of datagrams."""

    def __init__(self, world: Topology, path: Path, mode: Mode) -> None:
        self.world, self.folder, self.log, self.mode = world, path / "manifests", path / "log", mode
        self.folder.mkdir()
        self.proxyd: Proxyd | None = None

    def start(self, *flags: str) -> None:
        """Starts the daemon, and waits until it has looked at the flows of what there is."""
        self.proxyd = Proxyd(self.world, self.folder, self.log, flags=(*self.mode.flags, *flags))
        if any(self.folder.iterdir()):
            until(lambda: all(self.cleanings(family) for family in Family), "flows looked at")

    def stop(self) -> None:
        if self.proxyd is not None:
            self.proxyd.close()
            self.proxyd = None

    def put(self, *objects: dict[str, Any]) -> None:
        """What there is now."""
        write(self.folder, "dns.yaml", "\n---\n".join(map(json.dumps, objects)))

    def send(self, to: Target, port: int, who: str = "client1") -> str:
        """One datagram from this source port; gives who answers, or what happens instead."""
        [answer] = self.world.ask(who, *to, "udp", source_port=port, timeout=SILENCE)
        return answer.by

    def until_answered(self, to: Target, port: int, by: set[str], who: str = "client1") -> None:
        """Sends until the answer is one of these; a flow that is not deleted lives on by that, as in life."""
        until(lambda: self.send(to, port, who) in by, f"{by} answers {to}")

    def flows(self, family: Family) -> set[Flow]:
        return inside(self.world.node, lambda: list_flows(family))

    def metric(self, name: str, family: Family) -> float:
        assert self.proxyd is not None
        _, text = self.proxyd.get("/metrics", METRICS_PORT)
        found = re.search(rf'^{name}{{ip_family="{family}"}} (\S+)$', text, re.MULTILINE)
        assert found, text
        return float(found[1])

    def cleanings(self, family: Family) -> float:
        return self.metric("kubeproxy_conntrack_reconciler_sync_duration_seconds_count", family)

    def put_and_wait(self, family: Family, *objects: dict[str, Any]) -> None:
        """What there is now; waits until the flows of a change have been looked at."""
        before = self.cleanings(family)
        self.put(*objects)
        until(lambda: self.cleanings(family) > before, "flows looked at")


READY: dict[str, bool] = {"ready": True}
TERMINATING = {"ready": False, "serving": True, "terminating": True}
DEAD = {"ready": False, "serving": False}


def pod(name: str, family: Family) -> Backend:
    return Backend(ADDRESSES[name][family], 8053)
