"""What shapes the rules of iptables mode beside Services and node settings: what the node offers, what was configured."""

from __future__ import annotations

import msgspec

# Objects of nfacct that count packets of some rules, where the kernel has them (kube-proxy's names).
INVALID_DROPPED = "ct_state_invalid_dropped_pkts"
LOCALHOST_ACCEPTED = "localhost_nps_accepted_pkts"


class Style(msgspec.Struct, frozen=True):
    """How rules are written.

    ``drop_invalid``: segments that the connection tracker finds invalid are dropped (not where it is liberal about
    TCP). ``localhost_node_ports``: node ports answer on 127.0.0.0/8 (IPv4). ``random_ports``: masquerading chooses
    ports at random (iptables 1.6.2 and later). ``counters``: the nfacct objects that there are. ``comments``: rules of
    endpoints say what they are for; left out in large clusters.
    """

    drop_invalid: bool = True
    localhost_node_ports: bool = True
    random_ports: bool = True
    counters: frozenset[str] = frozenset()
    comments: bool = True

    def counter(self, name: str) -> str:
        """The counter if there is one, else ""."""
        return name if name in self.counters else ""
