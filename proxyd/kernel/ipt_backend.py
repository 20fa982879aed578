"""Which backend of iptables to write to: the one that everybody else on this node uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxyd.kernel.iptables import Backend, Iptables, IptablesRefusedError, IptablesTools, IptablesUnavailableError
from proxyd.model import Family

# Chains that the kubelet makes, so that others know which backend the node uses (KEP-3178).
HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
_HINT_LINES = tuple(f":{hint} " for hint in HINTS)


class Choice(NamedTuple):
    """A backend, and why it."""

    backend: Backend
    why: str


class _Found(NamedTuple):
    hinted: bool
    rules: int


def choose_backend(
    families: Sequence[Family],
    plain: Backend | None,
    tools: Callable[[Family, Backend], Iptables] = IptablesTools,
) -> Choice:
    """Chooses as the wrapper scripts of upstream's images do: the kubelet's hint, else where there are more rules.

    Without rules anywhere: ``plain``, the backend of the host's own ``iptables``, else nft. Source:
    kubernetes-sigs/iptables-wrappers.
    """
    nft = _look([tools(family, Backend.NFT) for family in families])
    if nft.hinted:
        return Choice(Backend.NFT, "the kubelet's rules are there")
    legacy = _look([tools(family, Backend.LEGACY) for family in families])
    if legacy.hinted:
        return Choice(Backend.LEGACY, "the kubelet's rules are there")
    if legacy.rules != nft.rules:
        backend = Backend.LEGACY if legacy.rules > nft.rules else Backend.NFT
        return Choice(backend, f"{max(legacy.rules, nft.rules)} of {legacy.rules + nft.rules} rules are there")
    if plain is not None:
        return Choice(plain, "no rules yet; the host's own iptables is of it")
    return Choice(Backend.NFT, "no rules yet")


def _look(all_tools: Sequence[Iptables]) -> _Found:
    hinted, rules = False, 0
    for tools in all_tools:
        try:
            for table in tools.tables():
                for line in tools.save(table):
                    hinted = hinted or line.startswith(_HINT_LINES)
                    rules += line.startswith("-")
        except (IptablesUnavailableError, IptablesRefusedError):
            continue
    return _Found(hinted, rules)
