"""Views of a node in memory, for questions about it."""

from __future__ import annotations

from typing import Any

from proxyd.explain.view import Packet, View
from tests.ipt_world import IptWorld
from tests.world import HOST, World


def view_of(world: World | IptWorld, **fields: Any) -> View:
    """The view of a node in memory: what a running proxyd would answer from."""
    objects = tuple(world.store.services.objects.values())
    mode = "iptables" if isinstance(world, IptWorld) else "nftables"
    defaults: dict[str, Any] = {
        "findings": tuple(each for found in world.reconciler.findings.values() for each in found),
        "quarantined": world.reconciler.quarantined,
        "localhost": isinstance(world, IptWorld) and world.style.localhost_node_ports,
    }
    return View(mode, world.settings, objects, world.store.service, HOST.addresses, **{**defaults, **fields})


def packet(source: str, destination: str, port: int = 80, protocol: str = "tcp", interface: str = "") -> Packet:
    return Packet(source, destination, protocol, port, interface)
