"""What rules depend on beside Services, kept as it comes: configuration, the Node object, the host's addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from proxyd.desired.host import local_addresses
from proxyd.desired.settings import NodePolicy, node_settings, relevant_addresses
from proxyd.kube.store import Store
from proxyd.model import Family, Finding, HostState, Node, NodeSettings, Reason

Addresses = tuple[tuple[Family, str], ...]


class NodeFacts:
    """Settings of each family from configuration, Node and the host's addresses."""

    def __init__(self, policy: NodePolicy, host: HostState, changed: Callable[[], None]) -> None:
        """``changed`` is called when the settings have to be worked out again because of the host."""
        self._policy = policy
        self._changed = changed
        self._addresses = self._relevant(host)
        self._made: dict[Family, tuple[Node | None, Addresses, NodeSettings]] = {}

    def take(self, host: HostState) -> None:
        """Takes the state of the host; from any one thread. Where nothing that can matter differs, nothing happens."""
        if (addresses := self._relevant(host)) != self._addresses:
            self._addresses = addresses
            self._changed()

    def settings(self, family: Family, node: Node | None) -> NodeSettings:
        """The settings right now. For the sync thread, before each pass: without a change it costs nothing."""
        addresses = self._addresses
        made = self._made.get(family)
        if made is None or made[0] != node or made[1] is not addresses:
            made = self._made[family] = (node, addresses, node_settings(family, self._policy, node, addresses))
        return made[2]

    def _relevant(self, host: HostState) -> Addresses:
        return relevant_addresses(self._policy, local_addresses(host))


def node_findings(store: Store, policy: NodePolicy, expected: str) -> Iterator[Finding]:
    """What is missing of the Node object, and would not be noticed otherwise. ``expected``: a Node must have this name."""
    node = store.node()
    if expected and store.nodes.synced and node is None:
        message = "no Node has this name: no endpoint counts as local, no zone is known (see --hostname-override)"
        yield Finding("Node", expected, Reason.NODE_NOT_FOUND, message)
    if policy.detect_local_mode == "NodeCIDR" and not (node and node.pod_cidrs):
        message = "spec.podCIDRs: none yet, and detectLocalMode NodeCIDR needs them: no packet counts as a local pod's"
        yield Finding("Node", policy.node_name, Reason.POD_RANGE_UNKNOWN, message)
