"""What on this node may get in the way of Service traffic, in words that say what to do: a function of what was found."""

from __future__ import annotations

from collections.abc import Iterator

from proxyd.kernel.surroundings import Surroundings
from proxyd.model import Family

# Above this share a limit is near.
NEAR = 0.75
# Chains and sets of others from which on each of our writes is noticeably slower: libnftables reads them all first.
MANY_FOREIGN = 2000
# Where our nat chains are: whoever comes first there decides (NF_IP_PRI_NAT_DST).
OUR_NAT = -100
# Priority of our filter chains: what drops later drops what we let through.
_NAT_HOOKS = ("prerouting", "output")
_FORWARDING = {Family.IPV4: "net/ipv4/ip_forward", Family.IPV6: "net/ipv6/conf/all/forwarding"}
_BRIDGES = {Family.IPV4: "net/bridge/bridge-nf-call-iptables", Family.IPV6: "net/bridge/bridge-nf-call-ip6tables"}
_WORDS = {Family.IPV4: ("ip ", "inet "), Family.IPV6: ("ip6 ", "inet ")}


def advise(found: Surroundings, families: tuple[Family, ...], mode: str = "nftables") -> tuple[str, ...]:
    """One line for each thing that may interfere; nothing where all is as it should be.

    In iptables mode, tables of iptables are our own.
    """
    foreign = mode == "nftables"
    return (
        *_forwarding(found, families),
        *_firewalls(found, families),
        *(_translators(found, families) if foreign else ()),
        *(_legacy(found) if foreign else ()),
        *(_localhost(found) if foreign else ()),
        *_reverse_paths(found),
        *_bridges(found, families),
        *_tracking(found),
        *_taken(found),
        *(_slow_writes(found) if foreign else ()),
        *(f"could not be looked at: {what}" for what in found.unknown),
    )


def conntrack_use(found: Surroundings) -> tuple[int, int] | None:
    """Tracked connections and the most that there can be, None where connections are not tracked."""
    count = found.number("net/netfilter/nf_conntrack_count")
    most = found.number("net/netfilter/nf_conntrack_max")
    return (count, most) if count is not None and most else None


def _forwarding(found: Surroundings, families: tuple[Family, ...]) -> Iterator[str]:
    for family in families:
        path = _FORWARDING[family]
        if found.sysctls.get(path) == "0":
            dotted = path.replace("/", ".")
            yield f"{family} is not forwarded, so pods on other nodes cannot be reached through here: sysctl {dotted}=1"


def _firewalls(found: Surroundings, families: tuple[Family, ...]) -> Iterator[str]:
    words = tuple(word for family in families for word in _WORDS[family])
    for chain in found.base_chains:
        if chain.hook == "forward" and chain.drops and chain.table.startswith(words):
            allow = "it has to accept 'ct status dnat' and established connections"
            yield f"{chain} drops what it does not know of forwarded traffic: {allow}"
    if any(table.endswith(" firewalld") for table in found.tables):
        yield "firewalld runs: its zones decide about forwarded and node port traffic after proxyd has let it through"


def _translators(found: Surroundings, families: tuple[Family, ...]) -> Iterator[str]:
    words = tuple(word for family in families for word in _WORDS[family])
    for chain in found.base_chains:
        nat = chain.kind == "nat" and chain.hook in _NAT_HOOKS
        if nat and chain.priority <= OUR_NAT and chain.table.startswith(words):
            yield f"{chain} ({chain.hook}) may translate destinations too: the first translation of a connection counts"


def _legacy(found: Surroundings) -> Iterator[str]:
    for tool, tables in found.legacy.items():
        yield f"{tool}-legacy has the tables {', '.join(tables)}: what is in there works too; see {tool}-legacy-save"


def _localhost(found: Surroundings) -> Iterator[str]:
    if found.sysctls.get("net/ipv4/conf/all/route_localnet") == "1":
        yield (
            "route_localnet is on, so that neighbours can reach what listens on 127.0.0.1 here: iptables mode leaves it "
            "behind, nftables mode has no use for it: sysctl net.ipv4.conf.all.route_localnet=0"
        )


def _reverse_paths(found: Surroundings) -> Iterator[str]:
    if "1" in (found.sysctls.get("net/ipv4/conf/all/rp_filter"), found.sysctls.get("net/ipv4/conf/default/rp_filter")):
        yield (
            "rp_filter is strict: packets whose way back is another interface are dropped unseen "
            "(node ports on second interfaces, asymmetric routes); 2 is loose"
        )


def _bridges(found: Surroundings, families: tuple[Family, ...]) -> Iterator[str]:
    for family in families:
        if found.sysctls.get(_BRIDGES[family]) == "0":
            dotted = _BRIDGES[family].replace("/", ".")
            yield f"{dotted} is 0: pods on one bridge get answers of Services with the wrong source, and drop them"


def _tracking(found: Surroundings) -> Iterator[str]:
    use = conntrack_use(found)
    if use and use[0] > NEAR * use[1]:
        share = 100 * use[0] // use[1]
        yield f"the connection table is {share} % full ({use[0]} of {use[1]}): when it is full, new connections are lost"


def _taken(found: Surroundings) -> Iterator[str]:
    for (protocol, port), service in found.taken.items():
        yield f"a process listens on {protocol} port {port}, a node port of {service}: whoever asks for it gets the Service"


def _slow_writes(found: Surroundings) -> Iterator[str]:
    chains, sets = sum(found.chains.values()), sum(found.sets.values())
    if chains + sets >= MANY_FOREIGN:
        yield f"other tables have {chains} chains and {sets} sets, which nftables reads before each of our writes"
