"""The two-map layout: names of all objects of one generation, its sets and maps, and the chains that balance.

Everything but the base chains, the lasting sets and the named counters belongs to a *generation* (``g1/endpoints``): a
full sync loads a new generation beside the old one and then points the base chains at it. docs/nftables.md shows a whole
listing.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from proxyd.model import PROTOCOLS, Family
from proxyd.nft.objects import Chain, Container, DnatMap, Field, Goto, Key, KeyType, Random, Rule, SetMark

TABLE = "proxyd"
TABLE_COMMENT = "rules of proxyd, layout 1"
AFFINITY = "affinity"
# The kernel keeps room for pins by need; when there is none left, clients are served without a pin.
AFFINITY_SIZE = 1 << 20
# Both ends (address and port) of the TCP connections that were translated here lately, for a day after the last one began.
TRANSLATED = "translated"
TRANSLATED_SIZE = 1 << 16
TRANSLATED_SECONDS = 86400
# Sets that outlive generations, with what the kernel put into them.
LASTING = frozenset({AFFINITY, TRANSLATED})
# Named counters, which outlive generations too. The name is the one under which kube-proxy counts the same.
INVALID_DROPPED = "ct_state_invalid_dropped_pkts"
# Packets to node ports on the loopback address that were refused, by protocol; TCP is served there.
LOCALHOST_REJECTED = {each: f"localhost-nodeport-rejected-{each}" for each in ("sctp", "udp")}
COUNTERS = (INVALID_DROPPED, *LOCALHOST_REJECTED.values())
# Indexes of a frontend's second endpoint list (externalTrafficPolicy Local: the endpoints on this node).
LOCAL_BASE = 1 << 16

# Node ports that nobody serves on the loopback address, and the chain that refuses them; kube-proxy's names.
LOCALHOST_REFUSED = "localhost-nodeport-reject-ports"
LOCALHOST_REFUSE = "localhost-nodeport-reject"

ADDRESS_KEY: Key = (Field.DADDR, Field.L4PROTO, Field.DPORT)
NODE_PORT_KEY: Key = (Field.L4PROTO, Field.DPORT)

_A, _P, _N = KeyType.ADDRESS, KeyType.PROTOCOL, KeyType.NUMBER
_PORT = KeyType.PORT
_FRONTEND = (_A, _P, _PORT)
_NODE_PORT = (_P, _PORT)
_BACKEND = (_A, _PORT)

_GENERATION = re.compile(r"g(\d+)/")


def generation_of(name: str) -> int | None:
    """The generation that an object's name says it belongs to, None for objects that outlive generations."""
    found = _GENERATION.match(name)
    return int(found[1]) if found else None


def refuses(name: str) -> bool:
    """Whether the map of this name, in whatever generation, has frontends with nobody behind them."""
    return _in_any(name) in ("no-endpoints", "no-endpoint-nodeports")


def restricts(name: str) -> bool:
    """Whether the set of this name, in whatever generation, has the frontends that have source ranges."""
    return _in_any(name) == "firewall-ips"


def permits(name: str) -> bool:
    """Whether the set of this name, in whatever generation, has the source ranges of frontends."""
    return _in_any(name) == "firewall-sources"


def _in_any(name: str) -> str:
    return _GENERATION.sub("", name, count=1)


def declared(name: str) -> Container | None:
    """How the set or map of this name is declared, in whatever generation; None where the layout has none such."""
    found = _GENERATION.match(name)
    return _declared().get(name[found.end() :] if found else name)


@lru_cache(maxsize=1)
def _declared() -> dict[str, Container]:
    layout = Layout(Family.IPV4, 0, 0)
    return {each.name.removeprefix(layout.name("")): each for each in layout.containers()}


class Layout(msgspec.Struct, frozen=True):
    """The names of one generation in one family, and what its chains are made by.

    ``mark`` is the bit that asks for masquerading; ``drop_invalid`` as in ``NodeSettings``.
    """

    family: Family
    generation: int
    mark: int
    drop_invalid: bool = True

    def name(self, base: str) -> str:
        """The name of an object of this generation."""
        return f"g{self.generation}/{base}"

    def containers(self) -> tuple[Container, ...]:
        """All sets and maps, the lasting ones included."""
        return (
            Container(AFFINITY, (_A, _N), timeout=True, size=AFFINITY_SIZE),
            Container(TRANSLATED, _BACKEND, timeout=True, size=TRANSLATED_SIZE),
            Container(self.name("cluster-ips"), (_A,)),
            Container(self.name("nodeport-ips"), (_A,)),
            Container(self.name("hairpin"), (_A, _A, _P, _PORT)),
            Container(self.name("service-ips"), _FRONTEND, (), counter=True),
            Container(self.name("service-nodeports"), _NODE_PORT, (), counter=True),
            Container(self.name("external-cluster"), _FRONTEND, ()),
            Container(self.name("external-local-only"), _FRONTEND, ()),
            Container(self.name("nodeport-cluster"), _NODE_PORT, ()),
            Container(self.name("nodeport-local-only"), _NODE_PORT, ()),
            Container(self.name("no-endpoints"), _FRONTEND, ()),
            Container(self.name("no-endpoint-nodeports"), _NODE_PORT, ()),
            Container(self.name(LOCALHOST_REFUSED), _NODE_PORT, ()),
            *(
                Container(self.endpoints(protocol, node_port=node_port), key, _BACKEND, counter=True, protocol=protocol)
                for node_port, key in ((False, (_A, _PORT, _N)), (True, (_PORT, _N)))
                for protocol in sorted(PROTOCOLS)
            ),
            Container(self.name("firewall-ips"), _FRONTEND),
            Container(self.name("firewall-sources"), (*_FRONTEND, _A), interval=True),
        )

    def endpoints(self, protocol: str, *, node_port: bool) -> str:
        """The name of the map that holds the endpoints of all frontends, or all node ports, of a protocol."""
        return self.name(f"{'nodeport-' if node_port else ''}endpoints-{protocol}")

    def balancer(self, protocol: str, count: int, *, node_port: bool, local: bool = False) -> Chain:
        """The chain that gives each of ``count`` endpoints of a frontend the same chance; all Services share it."""
        return _balancer(self, protocol, count, node_port, local)

    def masquerading(self, chain: Chain) -> Chain:
        """The chain that asks for masquerading and then goes on in ``chain``."""
        return _masquerading(self, chain.name)


@lru_cache(maxsize=4096)
def _balancer(layout: Layout, protocol: str, count: int, node_port: bool, local: bool) -> Chain:
    name = f"{'local-' if local else ''}{'np' if node_port else 'lb'}-{protocol}-{count}"
    base = LOCAL_BASE if local else 0

    def look_up(index: Random) -> Rule:
        key: Key = (Field.DPORT, index) if node_port else (Field.DADDR, Field.DPORT, index)
        return (DnatMap(protocol, key, layout.endpoints(protocol, node_port=node_port)),)

    # A packet that is on its way while the list becomes shorter may have been sent here and find its endpoint gone;
    # the first place of a list is never empty.
    rest = (look_up(Random(1, base)),) if count > 1 else ()
    return Chain(layout.name(name), (look_up(Random(count, base)), *rest))


@lru_cache(maxsize=4096)
def _masquerading(layout: Layout, name: str) -> Chain:
    base = name.removeprefix(layout.name(""))
    return Chain(layout.name(f"external-{base}"), ((SetMark(layout.mark), Goto(name)),))
