"""Manifests for a daemon under test, and clients that connect to what they describe."""

from __future__ import annotations

import re
import threading
from collections import Counter
from typing import Any, Self

import yaml

from tests.program import Proxyd, until
from tests.topology import ADDRESSES, V4, Topology

METRICS_PORT = 10249
VIP = "10.96.0.10"


def objects(
    name: str = "web", ip: str = VIP, pods: tuple[str, ...] = ("pod1", "pod3"), **spec: Any
) -> list[dict[str, Any]]:
    """A Service and its EndpointSlice."""
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"clusterIP": ip, "ports": [{"name": "http", "port": 80}], **spec},
        },
        endpoint_slice(name, *pods),
    ]


def endpoint_slice(of: str, *pods: str, name: str = "", port: int = 8080, **conditions: bool) -> dict[str, Any]:
    """An EndpointSlice of a Service; pod1 and pod2 are on the node."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name or f"{of}-1", "labels": {"kubernetes.io/service-name": of}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": port}],
        "endpoints": [
            {
                "addresses": [ADDRESSES[pod][V4]],
                "conditions": conditions,
                "nodeName": "node1" if pod in ("pod1", "pod2") else "node2",
            }
            for pod in pods
        ],
    }


def text(*documents: dict[str, Any]) -> str:
    """Objects as YAML."""
    return yaml.safe_dump_all(documents, explicit_start=True)


def manifest(*args: Any, **spec: Any) -> str:
    """``objects`` as YAML."""
    return text(*objects(*args, **spec))


def answers(world: Topology, who: str = "client1", ip: str = VIP, count: int = 20, port: int = 80) -> set[str]:
    """Who answers connections."""
    return {answer.by for answer in world.ask(who, ip, port, count=count)}


def metric(proxyd: Proxyd, name: str, family: str = "IPv4") -> float:
    """The value of a metric of one family, over all other labels."""
    _, page = proxyd.get("/metrics", METRICS_PORT)
    found = re.findall(rf'^{name}{{[^}}]*ip_family="{family}"[^}}]*}} (\S+)$', page, re.MULTILINE)
    assert found, page
    return sum(map(float, found))


class Connecting:
    """Connects all the time, from a thread, while the test does something else."""

    def __init__(self, world: Topology, *to: tuple[str, int]) -> None:
        """Connects to all of ``to`` in turn."""
        self.counts: Counter[str] = Counter()
        self._world = world
        self._to = to or ((VIP, 80),)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.more()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def more(self, count: int = 50) -> None:
        """Waits for some more connections."""
        wanted = self.counts.total() + count
        until(lambda: self.counts.total() >= wanted, "connections")

    def _run(self) -> None:
        while not self._done.is_set():
            for ip, port in self._to:
                self.counts.update(answer.by for answer in self._world.ask("client2", ip, port, count=10))


def listing(world: Topology, family: str = "ip") -> str:
    """The rules of proxyd as nft lists them, without what packets have put into sets: that outlives its Service."""
    text = world.node.run("nft", "list", "table", family, "proxyd").stdout
    return re.sub(r"\tset (translated|affinity) \{.*?\n\t\}\n", "", text, flags=re.DOTALL)
