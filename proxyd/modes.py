"""What differs between the modes when everything is put together: rules, who notices foreign changes, what is found."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from prometheus_client.registry import Collector

from proxyd.config import Config
from proxyd.config.host_settings import localhost_settings
from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.desired.services import Lookup
from proxyd.desired.settings import NodePolicy
from proxyd.errors import UserError
from proxyd.ipt.style import INVALID_DROPPED, LOCALHOST_ACCEPTED, Style
from proxyd.kernel.ipt.accounting import NetlinkAccounting, usable
from proxyd.kernel.ipt.backend import Choice, choose_backend
from proxyd.kernel.ipt.iptables import Backend, IptablesTools, plain_backend
from proxyd.kernel.ipt.lock import XtablesLock
from proxyd.kernel.ipt.notices import OwnAuthor
from proxyd.kernel.ipt.rules import ToolRules
from proxyd.kernel.ipt.watch import Expected, LegacyWatch
from proxyd.kernel.nft.libnftables import LibNftables
from proxyd.kernel.nft.notifications import Notifications
from proxyd.kernel.predecessor import Predecessor, predecessors
from proxyd.model import Family
from proxyd.nft.drift import Drift
from proxyd.serve.iptables_metrics import AccountedPackets
from proxyd.serve.report import Detected
from proxyd.sync.family import FamilyRules
from proxyd.sync.ipt.reconcile import IptReconciler
from proxyd.sync.loop import CLEANUP_AFTER, SHARE
from proxyd.sync.nft.reconcile import NftReconciler

# Overrules the choice of a backend: nft or legacy.
BACKEND_VARIABLE = "PROXYD_IPTABLES_BACKEND"
# A pass takes long whatever it writes (the kernel looks at all rules), so that more rest would be felt.
_SHARE = 0.7
# From this version of iptables on, masquerading can choose ports at random.
_RANDOM_FULLY = (1, 6, 2)


class Watch(Protocol):
    """Who notices foreign changes, on a thread of its own."""

    def start(self) -> None:
        """Starts the thread."""

    def stop(self, timeout: float = 1.0) -> None:
        """Ends it."""


class Parts(NamedTuple):
    """What rules of any mode need from the rest."""

    lookup: Lookup
    stopping: Callable[[], bool]
    progress: Callable[[Family, int, int], None]
    clean_flows: Callable[[Family, Mapping[FrontendKey, Live]], None]
    lock_waited: Callable[[Family, float], None] = lambda *_: None


class Mode(NamedTuple):
    """A mode, ready to be joined with the rest. ``nftables`` is the library's version, "" where it is not used.

    ``share`` is how much of one core syncing may take under churn. ``collector`` shows what its rules have counted, None
    where the meter does.
    """

    rules: Sequence[FamilyRules]
    predecessors: Sequence[Predecessor]
    watch: Callable[[Callable[[Drift], None]], Watch]
    share: float = SHARE
    nftables: str = ""
    collector: Collector | None = None
    detected: tuple[Detected, ...] = ()


def build_mode(config: Config, policy: NodePolicy, families: Sequence[Family], parts: Parts) -> Mode:
    """Builds the mode of the configuration. Raises ``CannotWorkHereError``, ``UserError``."""
    return _iptables(config, policy, families, parts) if config.mode == "iptables" else _nftables(families, parts)


def _nftables(families: Sequence[Family], parts: Parts) -> Mode:
    nft = LibNftables()
    lookup, stopping, progress, clean_flows, _ = parts
    return Mode(
        rules=[NftReconciler(each, nft, lookup, stopping, progress, clean_flows, CLEANUP_AFTER) for each in families],
        predecessors=predecessors(families),
        watch=lambda drifted: Notifications(lambda: nft.port, drifted),
        nftables=nft.version,
    )


def _iptables(config: Config, policy: NodePolicy, families: Sequence[Family], parts: Parts) -> Mode:
    chosen = backend_choice(families)
    own, legacy = OwnAuthor(), LegacyWatch(families) if chosen.backend is Backend.LEGACY else None
    tools = {
        family: IptablesTools(
            family,
            chosen.backend,
            author=legacy.author(family) if legacy else own,
            lock=XtablesLock(partial(parts.lock_waited, family)),
        )
        for family in families
    }
    version = max(each.version() for each in tools.values())
    localhost = bool(localhost_settings(config, config.localhost_node_ports))
    accounting = NetlinkAccounting()
    counters, why_none = usable(accounting, counters_wanted(policy, localhost=localhost), tuple(tools.values()))
    style = rule_style(policy, version, counters, localhost=localhost)
    lookup, stopping, progress, clean_flows, _ = parts
    rules = {
        family: IptReconciler(family, ToolRules(each), lookup, style, stopping, progress, clean_flows)
        for family, each in tools.items()
    }

    def watch(drifted: Callable[[Drift], None]) -> Watch:
        if legacy is None:
            return own.watch(drifted)
        return legacy.watch({family: (tools[family], _expected(each)) for family, each in rules.items()}, drifted)

    return Mode(
        rules=list(rules.values()),
        predecessors=predecessors(families, chosen.backend),
        watch=watch,
        share=_SHARE,
        collector=AccountedPackets(accounting.packets, counters),
        detected=(*_found(chosen, version, localhost=localhost), _counting(why_none)),
    )


def counters_wanted(policy: NodePolicy, *, localhost: bool) -> tuple[str, ...]:
    """The counters that rules of iptables mode use where the node has them."""
    wanted = {INVALID_DROPPED: policy.drop_invalid, LOCALHOST_ACCEPTED: localhost}
    return tuple(each for each in wanted if wanted[each])


def rule_style(policy: NodePolicy, version: tuple[int, ...], counters: frozenset[str], *, localhost: bool) -> Style:
    """How rules of iptables mode are written. ``version`` is that of the tools, ``counters`` are those that there are."""
    return Style(
        drop_invalid=policy.drop_invalid,
        localhost_node_ports=localhost,
        random_ports=version >= _RANDOM_FULLY,
        counters=counters,
    )


def _expected(rules: IptReconciler) -> Expected:
    return lambda: rules.expected


def backend_choice(families: Sequence[Family]) -> Choice:
    """The backend of iptables that counts here: what the environment says, else what is found. Raises ``UserError``."""
    forced = os.environ.get(BACKEND_VARIABLE, "")
    if forced and forced not in tuple(Backend):
        raise UserError(f"{BACKEND_VARIABLE}: must be {' or '.join(Backend)}, got {forced!r}")
    return Choice(Backend(forced), BACKEND_VARIABLE) if forced else choose_backend(families, plain_backend())


def _found(chosen: Choice, version: tuple[int, ...], *, localhost: bool) -> Iterable[Detected]:
    yield Detected("iptables", ".".join(map(str, version)), "iptables --version")
    yield Detected("iptables backend", chosen.backend, chosen.why)
    yield Detected("node ports on localhost", "yes" if localhost else "no", "iptables.localhostNodePorts, IPv4")


def _counting(why_none: str) -> Detected:
    return Detected("rules count packets", "no" if why_none else "yes", why_none or "nfacct is there")
