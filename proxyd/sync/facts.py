"""What rules depend on beside Services, kept as it comes: configuration, the Node object, the host's addresses."""

from __future__ import annotations

from collections.abc import Callable

from proxyd.desired.host import local_addresses
from proxyd.desired.settings import NodePolicy, node_settings, relevant_addresses
from proxyd.model import Family, HostState, Node, NodeSettings

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
