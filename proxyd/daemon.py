"""The composition root: builds the real adapters, starts the threads and ends them. Nothing else does either."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import structlog

from proxyd import __version__
from proxyd.config import Config
from proxyd.desired.settings import NodePolicy, needs_local_addresses, node_settings
from proxyd.kernel import host
from proxyd.kernel.conntrack import Conntrack
from proxyd.kernel.libnftables import LibNftables
from proxyd.kernel.lock import lock_namespace
from proxyd.kernel.notifications import Notifications
from proxyd.kube.store import Store
from proxyd.model import Family, Finding, Node, NodeSettings, Reason
from proxyd.serve import app, http
from proxyd.serve.health import is_ready
from proxyd.serve.metrics import Metrics, WatchState
from proxyd.serve.service_health import ServiceHealth
from proxyd.sync.cleaner import FlowCleaner
from proxyd.sync.loop import SyncLoop, Timing
from proxyd.sync.reconcile import Reconciler

log = structlog.get_logger("proxyd")

# A thread that has bytes to read waits at most this long for one that computes (seconds; Python's default is 0.005).
SWITCH_INTERVAL = 0.001
# Seconds after which the host's addresses are read again, where rules depend on them.
ADDRESSES_AGE = 30.0
# Seconds in which everything must have ended after SIGTERM.
STOP_WITHIN = 4.0


class Source(Protocol):
    """What fills the store: reflectors of an API server, or a folder of manifests."""

    def start(self) -> None:
        """Begins to fill the store, in threads of its own."""

    def stop(self) -> object:
        """Ends, promptly."""


class NodeFacts:
    """Node settings of each family from configuration, Node and the host's addresses."""

    def __init__(self, policy: NodePolicy) -> None:
        self._policy = policy
        self._addresses: tuple[tuple[Family, str], ...] = ()
        self._read_at: float | None = None

    def settings(self, family: Family, node: Node | None) -> NodeSettings:
        """The settings right now."""
        if needs_local_addresses(self._policy, node):
            now = time.monotonic()
            if self._read_at is None or now - self._read_at > ADDRESSES_AGE:
                self._addresses, self._read_at = host.local_addresses(), now
        return node_settings(family, self._policy, node, self._addresses)


def policy_of(config: Config) -> NodePolicy:
    """The part of the configuration that decisions need."""
    return NodePolicy(
        node_name=config.hostname_override or host.hostname(),
        detect_local_mode=config.detect_local_mode,
        cluster_cidrs=config.cluster_cidrs,
        bridge_interface=config.bridge_interface,
        interface_name_prefix=config.interface_name_prefix,
        node_port_addresses=config.node_port_addresses,
        bind_address=config.bind_address,
        masquerade_all=config.masquerade_all,
        masquerade_mark=config.masquerade_mark,
    )


def sources(config: Config, store: Store, node_name: str) -> tuple[list[Source], Mapping[str, Watched]]:
    """What fills the store, and which of it are watches. Raises the errors of kube.client and kube.manifests."""
    if config.manifests is not None:
        from proxyd.kube.manifests import ManifestSource  # noqa: PLC0415  (needs watchfiles, the API source does not)

        return [ManifestSource(config.manifests, store, node_name)], {}
    # The kubernetes package costs more memory than all objects; manifests do without.
    from proxyd.kube.client import connect  # noqa: PLC0415
    from proxyd.kube.reflector import Reflector  # noqa: PLC0415
    from proxyd.kube.resources import ENDPOINT_SLICES, SERVICES, own_node  # noqa: PLC0415

    client = connect(config.kubeconfig, config.master)
    nodes = Reflector(client, own_node(node_name), store.nodes)
    services = Reflector(client, SERVICES, store.services)
    slices = Reflector(client, ENDPOINT_SLICES, store.slices)
    return [nodes, services, slices], {"nodes": nodes, "services": services, "endpointslices": slices}


class Watched(Protocol):
    """Something with a watch that metrics tell about."""

    @property
    def state(self) -> WatchState:
        """How the watch is right now."""


def run(config: Config) -> int:
    """Runs the daemon until SIGTERM or SIGINT; gives the exit status.

    Raises the user errors of its parts before anything is written (see ``cli.main`` for what each becomes).
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    host.raise_file_limit()
    policy = policy_of(config)
    _lock = lock_namespace()
    nft = LibNftables()
    families = host.supported_families()
    store = Store()
    feeding, watches = sources(config, store, policy.node_name)
    facts = NodeFacts(policy)
    _report(config, policy, nft.version, families)
    ended = threading.Event()
    exit_codes: list[int] = []

    def end(code: int) -> None:
        exit_codes.append(code)
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end(0))

    progress = Progress()
    metrics = Metrics(
        families, __version__, lambda: loop.status, store, lambda: {name: each.state for name, each in watches.items()}
    )
    flows = FlowCleaner(Conntrack(), metrics)
    reconcilers = [Reconciler(f, nft, store.service, ended.is_set, progress.note, flows.give) for f in families]
    timing = Timing(config.min_sync_period, config.sync_period)
    expected = policy.node_name if config.manifests is None else ""
    loop = SyncLoop(
        store, reconcilers, facts.settings, metrics, timing, config.mode, lambda: node_findings(store, expected)
    )
    notifications = Notifications(lambda: nft.port, loop.drifted)
    notifications.start()
    server = _serve(config, store, metrics, loop, end)
    loop.subscribe(ServiceHealth(server, lambda: is_ready(loop.status, time.monotonic(), config.sync_period)).update)
    syncing = threading.Thread(target=loop.run, name="sync")
    for source in feeding:
        source.start()
    syncing.start()
    flows.start()
    # What is imported and built by now stays; the collector need not look at it again.
    gc.freeze()
    ended.wait()
    log.info("stopping; all rules stay")
    loop.stop()
    syncing.join(STOP_WITHIN)
    for source in feeding:
        source.stop()
    notifications.stop()
    flows.stop()
    server.stop()
    return max(exit_codes)


def node_findings(store: Store, expected: str) -> Iterable[Finding]:
    """Says so where there is no Node of our name: then nothing counts as local, which nobody would notice otherwise."""
    if expected and store.nodes.synced and store.node() is None:
        message = "no Node has this name: no endpoint counts as local, no zone is known (see --hostname-override)"
        yield Finding("Node", expected, Reason.NODE_NOT_FOUND, message)


class Progress:
    """Tells how far a long write has come, about every two seconds."""

    def __init__(self) -> None:
        self._told = 0.0

    def note(self, family: Family, done: int, of: int) -> None:
        """Takes the progress of one family; ``done`` is 0 at the beginning."""
        now = time.monotonic()
        if not done:
            self._told = now
        elif now - self._told >= 2 and done < of:
            self._told = now
            log.info("writing rules", ip_family=family, services=done, of=of)


def _serve(config: Config, store: Store, metrics: Metrics, loop: SyncLoop, end: _End) -> http.Server:
    server = http.Server()
    server.start()

    def hard_fail(problem: str) -> None:
        log.error("cannot listen, and bindAddressHardFail is set", problem=problem)
        end(1)

    give_up = hard_fail if config.bind_address_hard_fail else None
    if config.metrics_address is not None:
        routes = app.metrics_routes(metrics, config.mode, {"mode": config.mode})
        server.add_listener(*config.metrics_address, routes, give_up)
    if config.healthz_address is not None:
        waiting = lambda: store.pending()[1] if store.complete else None  # noqa: E731
        routes = app.health_routes(metrics, lambda: loop.status, waiting, config.sync_period)
        server.add_listener(*config.healthz_address, routes, give_up)
    return server


class _End(Protocol):
    def __call__(self, code: int) -> None: ...


def _report(config: Config, policy: NodePolicy, nft_version: str, families: Sequence[Family]) -> None:
    """The start-up line: what was found on this node, and what of it decides."""
    liberal = host.tcp_be_liberal()
    log.info(
        "proxyd starts",
        version=__version__,
        mode=config.mode,
        node=policy.node_name,
        source=f"manifests in {config.manifests}" if config.manifests else config.kubeconfig or "in-cluster",
        kernel=host.kernel_release(),
        nftables=nft_version,
        ip_families=",".join(families),
        nf_conntrack_tcp_be_liberal="not loaded" if liberal is None else int(liberal),
        detect_local_mode=policy.detect_local_mode,
        pod_networks=",".join(policy.cluster_cidrs.values()) or policy.bridge_interface or policy.interface_name_prefix,
        node_port_addresses=",".join(policy.node_port_addresses) or "all",
    )
    for warning in config.warnings:
        log.warning(warning)
    if config.unused:
        log.warning("configuration fields that are not acted on yet", fields=", ".join(config.unused))
