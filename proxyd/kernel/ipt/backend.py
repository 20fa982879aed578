"""Which backend of iptables to write to: the one that everybody else on this node uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from proxyd.ipt.names import CANARY
from proxyd.kernel.ipt.iptables import Backend, Iptables, IptablesRefusedError, IptablesTools, IptablesUnavailableError
from proxyd.model import Family

# Chains of table mangle that the kubelet makes, so that others know which backend the node uses (KEP-3178).
HINTS = ("KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY")
_MANGLE = "mangle"


class Choice(NamedTuple):
    """A backend, and why it."""

    backend: Backend
    why: str


def choose_backend(
    families: Sequence[Family],
    plain: Backend | None,
    tools: Callable[[Family, Backend], Iptables] = IptablesTools,
) -> Choice:
    """Chooses as the wrapper scripts of upstream's images do: the kubelet's hint, else where there are more rules.

    Before rules are counted, the canary that kube-proxy and proxyd leave counts as a hint too. Without rules anywhere:
    ``plain``, the backend of the host's own ``iptables``, else nft. Source: kubernetes-sigs/iptables-wrappers.
    """
    both = {backend: [tools(family, backend) for family in families] for backend in (Backend.NFT, Backend.LEGACY)}
    for hints, whose in ((HINTS, "the kubelet's"), ((CANARY,), "a service proxy's")):
        for backend, each in both.items():
            if _has(each, hints):
                return Choice(backend, f"{whose} rules are there")
    rules = {backend: sum(line.startswith("-") for line in _lines(each)) for backend, each in both.items()}
    if rules[Backend.LEGACY] != rules[Backend.NFT]:
        most = max(rules, key=lambda each: rules[each])
        return Choice(most, f"{rules[most]} of {sum(rules.values())} rules are there")
    if plain is not None:
        return Choice(plain, "no rules yet; the host's own iptables is of it")
    return Choice(Backend.NFT, "no rules yet")


def _has(all_tools: Sequence[Iptables], chains: Sequence[str]) -> bool:
    names = tuple(f":{chain} " for chain in chains)
    return any(line.startswith(names) for line in _lines(all_tools, _MANGLE))


def _lines(all_tools: Sequence[Iptables], only: str = "") -> Iterator[str]:
    """The lines of tables that are there already: the legacy tool would make the others."""
    for tools in all_tools:
        try:
            for table in tools.tables():
                if only in ("", table):
                    yield from tools.save(table)
        except (IptablesUnavailableError, IptablesRefusedError):
            continue
