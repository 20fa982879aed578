"""Which chains and jumps of iptables are kube-proxy's: by name, and never the kubelet's or anybody else's.

The names are those of kube-proxy's pkg/proxy/iptables (proxier.go, cleanup.go). KUBE-FIREWALL, KUBE-KUBELET-CANARY,
KUBE-IPTABLES-HINT and KUBE-MARK-DROP are the kubelet's and not among them.
"""

from __future__ import annotations

import re

# The table of kube-proxy's nftables mode, in families ip and ip6.
NFT_TABLE = "kube-proxy"
# The chains of it that translate destinations; they go before the rest does.
NFT_TRANSLATING = ("nat-prerouting", "nat-output")

MARK_MASQ = "KUBE-MARK-MASQ"
# An empty chain of table nat, which says that proxyd was the last to write these chains: kube-proxy deletes chains of
# Services that it does not know, so it is gone as soon as kube-proxy has the same chains, and only then.
OWN_MARK = "KUBE-SVC-PROXYDWROTETHESE"
_CANARY = "KUBE-PROXY-CANARY"
_DISPATCH = {
    "nat": frozenset({"KUBE-SERVICES", "KUBE-POSTROUTING"}),
    "filter": frozenset(
        {"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL"}
    ),
    "mangle": frozenset[str](),
}
_FIXED = {
    "nat": _DISPATCH["nat"] | {"KUBE-NODEPORTS", MARK_MASQ, _CANARY},
    "filter": _DISPATCH["filter"] | {_CANARY},
    "mangle": frozenset({_CANARY}),
}
TABLES = tuple(_FIXED)
# The letters are those of base32.
_OF_SERVICE = re.compile(r"KUBE-(?:SVC|SVL|SEP|FW|EXT)-[A-Z2-7]{16}")
BUILT_IN = frozenset({"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"})
_TRANSLATING = frozenset({("nat", "PREROUTING"), ("nat", "OUTPUT")})


def is_own_chain(table: str, chain: str) -> bool:
    """Whether a chain is kube-proxy's."""
    return chain in _FIXED.get(table, ()) or (table == "nat" and _OF_SERVICE.fullmatch(chain) is not None)


def is_own_jump(table: str, chain: str, target: str) -> bool:
    """Whether a rule of a built-in chain that leads to ``target`` is one of kube-proxy's jumps."""
    return chain in BUILT_IN and target in _DISPATCH.get(table, ())


def translates(table: str, chain: str) -> bool:
    """Whether jumps from this built-in chain lead to the translation of destinations."""
    return (table, chain) in _TRANSLATING
