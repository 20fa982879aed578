"""The modes in which tests of traffic run: which ones a test asks for, and a node that is ready for one of them.

A test that takes the fixture ``rules`` or ``mode`` runs in nftables mode, and in those that its mark names. The backends of
iptables differ in how rules are written and read; what a rule does is the same code in the kernel for nat, marks and
states. So what takes long runs in one of the two, and these take turns over the modules.
"""

from __future__ import annotations

from enum import StrEnum

import pytest

from proxyd.kernel.ipt.iptables import Backend
from tests.cluster.namespaces import inside
from tests.netns import forget_flows
from tests.program import FLAGS
from tests.topology import Topology

IPTABLES_FLAGS = ("--proxy-mode", "iptables", *FLAGS[2:])
_EMPTY = "".join(f"*{table}\nCOMMIT\n" for table in ("nat", "filter", "mangle"))


class Mode(StrEnum):
    """What writes the rules."""

    NFTABLES = "nftables"
    NFT = "iptables-nft"
    LEGACY = "iptables-legacy"

    @property
    def backend(self) -> Backend:
        """The backend of iptables."""
        return Backend.LEGACY if self is Mode.LEGACY else Backend.NFT

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of proxyd as a program."""
        return FLAGS if self is Mode.NFTABLES else IPTABLES_FLAGS


NFTABLES = pytest.mark.modes(Mode.NFTABLES)
EVERY_MODE = pytest.mark.modes(*Mode)
ALSO_NFT = pytest.mark.modes(Mode.NFTABLES, Mode.NFT)
ALSO_LEGACY = pytest.mark.modes(Mode.NFTABLES, Mode.LEGACY)
IPTABLES = pytest.mark.modes(Mode.NFT, Mode.LEGACY)


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Makes a test run in the modes that its mark names, or its module's; without one in nftables mode."""
    mark = metafunc.definition.get_closest_marker("modes")
    chosen = mark.args if mark is not None else (Mode.NFTABLES,)
    for fixture in ("rules", "mode"):
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, chosen, ids=map(str, chosen), indirect=True, scope="module")


def flush(world: Topology, *, legacy: bool = True) -> None:
    """A node without any rules, which knows of no connections. ``legacy``: in that backend too."""
    world.node.run("nft", "flush", "ruleset")
    for tool in ("iptables", "ip6tables") if legacy else ():
        world.node.run(f"{tool}-legacy-restore", stdin=_EMPTY)
    # One that was tracked without rules would be let through untranslated again.
    inside(world.node, forget_flows)


def prepare(world: Topology, mode: Mode) -> None:
    """A node without rules, whose kubelet uses the backend of the mode."""
    flush(world)
    # Node ports on 127.0.0.1 in iptables mode need it, and nobody sets it back.
    world.node.run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0")
    if mode is not Mode.NFTABLES:
        world.node.run(f"iptables-{mode.backend}", "-t", "mangle", "-N", "KUBE-KUBELET-CANARY")
