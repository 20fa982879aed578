"""The composition root: builds the real adapters, starts the threads and ends them. Nothing else does either."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Protocol

import structlog

from proxyd import __version__
from proxyd.config import Config
from proxyd.desired.settings import NodePolicy, needs_local_addresses, node_settings
from proxyd.kernel import host
from proxyd.kernel.conntrack import Conntrack
from proxyd.kernel.counters import NetlinkCounters
from proxyd.kernel.lock import lock_namespace
from proxyd.kernel.surroundings import read_surroundings
from proxyd.kube.store import Store
from proxyd.model import Family, Finding, Node, NodeSettings, Reason
from proxyd.modes import Parts, build_mode
from proxyd.serve import app, http
from proxyd.serve.advice import advise
from proxyd.serve.health import Moment, is_ready
from proxyd.serve.localhost import MAX_CONNECTIONS, LocalhostRelay
from proxyd.serve.metrics import Metrics, WatchState
from proxyd.serve.report import SOCKET, Report, build_report
from proxyd.serve.service_health import ServiceHealth
from proxyd.serve.traffic import TrafficCollector
from proxyd.startup import announce, identity, policy_of
from proxyd.sync.cleaner import FlowCleaner
from proxyd.sync.loop import SyncLoop, Timing
from proxyd.sync.meter import Meter
from proxyd.sync.status import Status
from proxyd.sync.takeover import Takeover
from proxyd.sync.traffic import ALL, TOP

log = structlog.get_logger("proxyd")

# A thread that has bytes to read waits at most this long for one that computes (seconds; Python's default is 0.005).
SWITCH_INTERVAL = 0.001
# Seconds after which the host's addresses are read again, where rules depend on them.
ADDRESSES_AGE = 30.0
# Seconds in which everything must have ended after SIGTERM.
STOP_WITHIN = 4.0
# Seconds for which connections to node ports on localhost may go on after SIGTERM.
DRAIN = 3.0


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

    def read(self) -> None:
        """Reads the host's addresses."""
        self._addresses, self._read_at = host.local_addresses(), time.monotonic()

    def settings(self, family: Family, node: Node | None) -> NodeSettings:
        """The settings right now."""
        stale = self._read_at is None or time.monotonic() - self._read_at > ADDRESSES_AGE
        if stale and needs_local_addresses(self._policy, node):
            self.read()
        return node_settings(family, self._policy, node, self._addresses)


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
    daemon = Daemon(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.end(0))
    daemon.start()
    # What is imported and built by now stays; the collector need not look at it again.
    gc.freeze()
    return daemon.wait()


class Daemon:
    """All parts of one proxyd, built and joined; nothing runs before ``start``."""

    def __init__(self, config: Config) -> None:
        policy = policy_of(config)
        self._config = config
        self._lock = lock_namespace()
        self._families = host.supported_families()
        self._store = store = Store()
        self._sources, self._watches = sources(config, store, policy.node_name)
        self._ended = threading.Event()
        # Set when every family has had its first pass, and at the end: what can wait begins then.
        self._settled = threading.Event()
        self._exit_status = 0
        self._loop: SyncLoop
        self._metrics = Metrics(self._families, __version__, self._status, store, self._watch_states, config.mode)
        facts = NodeFacts(policy)
        if config.manifests is not None:
            # There may be no Node to say them; the first pass, which everything waits for, should not have to look.
            facts.read()
        progress = Progress()
        expected = policy.node_name if config.manifests is None else ""
        self._flows = flows = FlowCleaner(Conntrack(), self._metrics)
        self._meter = Meter(NetlinkCounters(), self._families, ALL if config.all_service_metrics else TOP)
        self._metrics.add(TrafficCollector(lambda: self._meter.traffic))
        stopping = self._ended.is_set
        mode = build_mode(config, policy, self._families, Parts(store.service, stopping, progress.note, flows.give))
        self._loop = SyncLoop(
            store,
            mode.rules,
            facts.settings,
            self._metrics,
            Timing(config.min_sync_period, config.sync_period, share=mode.share),
            config.mode,
            lambda: node_findings(store, expected),
        )
        self._watch = mode.watch(self._loop.drifted)
        self._takeover = Takeover(mode.predecessors)
        self._loop.subscribe(self._takeover.update)
        self._server = http.Server()
        connections = min(MAX_CONNECTIONS, host.file_limit() // 4)
        self._localhost = LocalhostRelay(self._server, self._metrics.localhost, max_connections=connections)
        self._syncing = threading.Thread(target=self._loop.run, name="sync")
        self._identity = identity(config, policy, mode.nftables, self._families, mode.detected)
        announce(self._identity, config)

    def start(self) -> None:
        """Starts everything. Raises ``UserError`` where a source cannot be read at all."""
        self._server.start()
        self._listen()
        self._watch.start()
        if self._config.mode == "nftables":
            # The rules of iptables mode count nothing that can be read cheaply.
            self._meter.start()
        for source in self._sources:
            source.start()
        self._syncing.start()
        self._flows.start()
        self._takeover.start()

    def end(self, status: int) -> None:
        """Asks for the end; the highest status asked for becomes the exit status. For signal handlers and any thread."""
        self._exit_status = max(self._exit_status, status)
        self._ended.set()
        self._settled.set()

    def wait(self) -> int:
        """Waits until the end is asked for, ends everything and gives the exit status. All rules stay."""
        self._settled.wait()
        if not self._ended.is_set():
            self._look_around()
        self._ended.wait()
        log.info("stopping; all rules stay")
        drained_at = time.monotonic() + DRAIN
        self._localhost.close()
        self._loop.stop()
        self._syncing.join(STOP_WITHIN)
        for source in self._sources:
            source.stop()
        self._watch.stop()
        self._flows.stop()
        self._meter.stop()
        self._localhost.drain(max(0.0, drained_at - time.monotonic()))
        self._takeover.stop()
        self._server.stop()
        return self._exit_status

    def _status(self) -> Status:
        return self._loop.status

    def _watch_states(self) -> dict[str, WatchState]:
        return {name: each.state for name, each in self._watches.items()}

    def _waiting_since(self) -> float | None:
        """Since when a change that could be written has waited for the sync thread (monotonic seconds)."""
        return self._store.pending()[1] if self._store.complete else None

    def _is_ready(self) -> bool:
        return is_ready(self._status(), time.monotonic(), self._config.sync_period)

    def _listen(self) -> None:
        config = self._config
        give_up = self._cannot_listen if config.bind_address_hard_fail else None
        if config.metrics_address is not None:
            routes = app.metrics_routes(self._metrics, config.mode, {"mode": config.mode})
            self._server.add_listener(*config.metrics_address, routes, give_up)
        if config.healthz_address is not None:
            routes = app.health_routes(
                self._metrics, self._status, self._waiting_since, config.sync_period, self._watch_states
            )
            self._server.add_listener(*config.healthz_address, routes, give_up)
        self._server.add_local_listener(SOCKET, app.local_routes(self._report))
        self._loop.subscribe(self._localhost.update)
        self._loop.subscribe(ServiceHealth(self._server, self._is_ready).update)
        self._loop.subscribe(self._passed)

    def _report(self, now: Moment) -> Report:
        watches, waiting = self._watch_states(), self._waiting_since()
        return build_report(
            self._identity, self._status(), watches, read_surroundings(), now, self._config.sync_period, waiting
        )

    def _passed(self, status: Status) -> None:
        if all(each.last_pass for each in status.families):
            self._settled.set()

    def _look_around(self) -> None:
        """Says what may interfere with Service traffic on this node, once the rules are there: it may take a while."""
        for line in advise(read_surroundings(), self._families):
            log.warning("found on this node", what=line)

    def _cannot_listen(self, problem: str) -> None:
        log.error("cannot listen, and bindAddressHardFail is set", problem=problem)
        self.end(1)


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
