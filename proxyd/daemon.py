"""The composition root: builds the real adapters, starts the threads and ends them. Nothing else does either."""

from __future__ import annotations

import functools
import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator

import structlog

from proxyd import __version__
from proxyd.cluster import cluster
from proxyd.config import Config, as_mapping
from proxyd.config.host_settings import localhost_settings
from proxyd.config.watch import ConfigWatch
from proxyd.ending import Ending
from proxyd.kernel import host
from proxyd.kernel.addresses import KernelHost, own_addresses
from proxyd.kernel.conntrack import Conntrack
from proxyd.kernel.host_settings import apply_settings
from proxyd.kernel.lock import lock_namespace
from proxyd.kernel.nft.counters import NetlinkCounters
from proxyd.kernel.surroundings import Surroundings, read_surroundings, read_tracking
from proxyd.kube import events
from proxyd.kube.store import Store
from proxyd.model import Family, Finding, Reason, ServiceKey
from proxyd.modes import Parts, build_mode
from proxyd.serve import app, http
from proxyd.serve.advice import advise
from proxyd.serve.collectors import WatchState
from proxyd.serve.draining import PATH as DRAIN_PATH
from proxyd.serve.draining import DrainReport
from proxyd.serve.explaining import PATH as EXPLAIN_PATH
from proxyd.serve.explaining import Explainer
from proxyd.serve.health import Moment, is_ready
from proxyd.serve.history import PATH as HISTORY_PATH
from proxyd.serve.history import HistoryRoute
from proxyd.serve.http import Handler
from proxyd.serve.localhost import MAX_CONNECTIONS, LocalhostRelay
from proxyd.serve.metrics import Metrics
from proxyd.serve.objects import PATH as OBJECTS_PATH
from proxyd.serve.objects import RunningObjects
from proxyd.serve.page.routes import PageSources, page_routes
from proxyd.serve.report import SOCKET, Report, build_report
from proxyd.serve.service_health import ServiceHealth
from proxyd.serve.tracking import TrackingCollector
from proxyd.serve.traffic import TrafficCollector
from proxyd.startup import announce, check_host, identity, mismatches, policy_of
from proxyd.sync.cleaner import FlowCleaner
from proxyd.sync.facts import NodeFacts, node_findings
from proxyd.sync.loop import SyncLoop, Timing
from proxyd.sync.meter import Meter
from proxyd.sync.status import Status
from proxyd.sync.takeover import Takeover
from proxyd.sync.traffic import ALL, TOP

log = structlog.get_logger("proxyd")

# A thread that has bytes to read waits at most this long for one that computes (seconds; Python's default is 0.005).
SWITCH_INTERVAL = 0.001
# Seconds in which everything must have ended after SIGTERM: what has not by then goes with the process.
STOP_WITHIN = 4.0
# Seconds for which connections to node ports on localhost may go on after SIGTERM.
DRAIN = 3.0
# Exit status that asks for a start with the configuration as it is now; not 0, after which some supervisors do not start.
START_AGAIN = 3


def run(config: Config, file: str, read_again: Callable[[], Config], ending: Ending) -> int:
    """Runs the daemon until the end is asked for; gives the exit status.

    ``file`` is that of --config ("" for none) and ``read_again`` gives what it and the flags say by then. Raises the
    user errors of its parts before anything is written (see ``cli.main`` for what each becomes).
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    host.raise_file_limit()
    daemon = Daemon(config, ending)
    if file:
        daemon.follow(file, read_again)
    threading.excepthook = daemon.thread_ended
    daemon.start()
    # What is imported and built by now stays; the collector need not look at it again.
    gc.freeze()
    return daemon.wait()


class Daemon:
    """All parts of one proxyd, built and joined; nothing runs before ``start``."""

    def __init__(self, config: Config, ending: Ending) -> None:
        self._ending = ending
        self._families = host.supported_families()
        check_host(config, self._families)
        self._config = config
        self._store = store = Store()
        self._metrics = metrics = Metrics(
            self._families, __version__, self._status, store, self._watch_states, self._owed_frontends, config.mode
        )
        self._node_name = policy_of(config).node_name
        self._sources, self._watches, self._recorder = cluster(config, store, self._node_name, metrics, self._is_ended)
        self._config_watch: ConfigWatch | None = None
        self._lock = lock_namespace()
        # Before the rules: the tracker has its limits when the first flows come, and how it is set decides about rules.
        settings = apply_settings(config, more=localhost_settings(config, config.localhost_node_ports))
        self._policy = policy = policy_of(config)
        self._settled = False
        self._loop: SyncLoop
        self._host = KernelHost()
        self._facts = facts = NodeFacts(policy, self._host.read(), store.host_changed)
        expected = self._node_name if config.manifests is None else ""
        self._flows = flows = FlowCleaner(Conntrack(), metrics.flows)
        self._meter = Meter(NetlinkCounters(), self._families, ALL if config.all_service_metrics else TOP)
        metrics.add(TrackingCollector(read_tracking))
        parts = Parts(store.service, self._is_ended, self._progressed, flows.give)
        if metrics.sync.iptables is not None:
            parts = parts._replace(lock_waited=metrics.sync.iptables.lock_waited)
        mode = build_mode(config, policy, self._families, parts)
        metrics.add(mode.collector or TrafficCollector(lambda: self._meter.traffic))
        self._loop = SyncLoop(
            store,
            mode.rules,
            facts.settings,
            metrics.sync,
            Timing(config.min_sync_period, config.sync_period, share=mode.share),
            config.mode,
            lambda: self._findings(expected),
        )
        self._watch = mode.watch(self._loop.drifted)
        self._takeover = Takeover(mode.predecessors)
        self._loop.subscribe(self._takeover.update)
        self._server = http.Server()
        # Two descriptors for each connection, one for each listener, and a quarter of all for everything else.
        share = host.file_limit() // 4
        self._localhost = LocalhostRelay(
            self._server,
            self._metrics.localhost,
            max_connections=min(MAX_CONNECTIONS, share),
            max_listeners=share,
        )
        self._syncing = threading.Thread(target=self._loop.run, name="sync", daemon=True)
        self._identity = identity(config, policy, mode.nftables, self._families, settings, mode.detected)
        announce(self._identity, config, settings)

    def follow(self, file: str, read_again: Callable[[], Config]) -> None:
        """Has the configuration file followed, from ``start`` on."""

        def check(new: Config) -> None:
            check_host(new, self._families)
            cluster(new, Store(), self._node_name, self._metrics)

        end = functools.partial(self._ending.ask, START_AGAIN)
        self._config_watch = ConfigWatch(file, self._config, read_again, check, end, self._store.note)

    def start(self) -> None:
        """Starts everything. Raises ``UserError`` where a source cannot be read at all."""
        self._server.start()
        if (recorder := self._recorder) is not None:
            self._loop.subscribe(lambda status: recorder.found(status.findings))
            recorder.start()
        text = f"proxyd {__version__} starts in {self._config.mode} mode"
        self._say(events.starting(self._node_name, text, str(time.time())))
        self._listen()
        self._watch.start()
        if self._config.mode == "nftables":
            # The rules of iptables mode count nothing that can be read cheaply.
            self._meter.start()
        self._host.start(self._facts.take)
        for source in self._sources:
            source.start()
        self._syncing.start()
        self._flows.start()
        self._takeover.start()
        if self._config_watch:
            self._config_watch.start()

    def thread_ended(self, died: threading.ExceptHookArgs) -> None:
        """Ends the process when a thread dies of something unforeseen: half a proxyd looks healthy and is not."""
        name = died.thread.name if died.thread else "unknown"
        trace = died.exc_value
        log.critical("a thread has died, ending to be started anew; all rules stay", thread=name, exc_info=trace)
        self._ending.ask(1)

    def wait(self) -> int:
        """Waits until the end is asked for, ends everything and gives the exit status. All rules stay."""
        self._ending.wait()
        if not self._ending.asked:
            self._look_around()
        while not self._ending.asked:
            self._ending.wait()
        log.info("stopping; all rules stay")
        self._end_all(Deadline(STOP_WITHIN))
        return self._ending.status

    def _end_all(self, deadline: Deadline) -> None:
        """Ends every part. One that is slow takes its time from those behind it, which are asked to end all the same."""
        drain = Deadline(DRAIN)
        self._localhost.close()
        self._loop.stop()
        if self._config_watch:
            self._config_watch.stop(deadline.left(0.5))
        self._syncing.join(deadline.left())
        for source in self._sources:
            source.stop(deadline.left(0.5))
        for part in (self._watch, self._host, self._flows, self._meter):
            part.stop(deadline.left(1.0))
        self._localhost.drain(min(drain.left(), deadline.left()))
        self._takeover.stop(deadline.left(1.0))
        if self._recorder is not None:
            self._recorder.stop(deadline.left(1.0))
        self._server.stop(deadline.left(2.0))

    def _findings(self, expected: str) -> Iterator[Finding]:
        """What there is to say beside objects; called on the sync thread."""
        node = self._store.node()
        yield from node_findings(self._store, self._policy, expected)
        for each in mismatches(self._config, self._policy, self._families, node):
            yield Finding("Node", self._node_name, Reason.FAMILY_MISMATCH, each.message)
        yield from self._config_watch.findings if self._config_watch else ()

    def _say(self, notice: events.Notice) -> None:
        if self._recorder is not None:
            self._recorder.say(notice)

    def _status(self) -> Status:
        return self._loop.status

    def _progressed(self, family: Family, done: int, of: int) -> None:
        self._loop.progressed(family, done, of)

    def _watch_states(self) -> dict[str, WatchState]:
        return {name: each.state for name, each in self._watches.items()}

    def _owed_frontends(self) -> dict[Family, int]:
        return self._flows.owed()

    def _waiting_since(self) -> float | None:
        """Since when a change that could be written has waited for the sync thread (monotonic seconds)."""
        return self._store.pending()[1] if self._store.complete else None

    def _is_ready(self) -> bool:
        return is_ready(self._status(), time.monotonic(), self._config.sync_period, self._waiting_since())

    def _listen(self) -> None:
        config = self._config
        give_up = self._cannot_listen if config.bind_address_hard_fail else None
        if config.metrics_address is not None:
            routes = app.metrics_routes(self._metrics, config.mode, as_mapping(config.document))
            self._server.add_listener(*config.metrics_address, routes, give_up, self._no_metrics_address)
        if config.healthz_address is not None:
            routes = app.health_routes(
                self._metrics, self._status, self._waiting_since, config.sync_period, self._watch_states
            )
            self._server.add_listener(*config.healthz_address, routes, give_up, self._no_health_address)
        localhost = bool(localhost_settings(config, config.localhost_node_ports))
        explain = Explainer(self._store, self._status, own_addresses, localhost=localhost)
        history = HistoryRoute(self._loop.history, self._identity.started)
        answers: dict[str, Handler] = {
            EXPLAIN_PATH: explain,
            HISTORY_PATH: history,
            OBJECTS_PATH: RunningObjects(self._store, self._status, config.given),
            DRAIN_PATH: DrainReport(self._store, self._status),
        }
        self._server.add_local_listener(SOCKET, app.local_routes(self._report, answers))
        self._show_page(explain, history)
        self._loop.subscribe(self._localhost.update)
        self._loop.subscribe(ServiceHealth(self._server, self._is_ready, self._no_health_check_port).update)
        self._loop.subscribe(self._passed)

    def _show_page(self, explain: Explainer, history: HistoryRoute) -> None:
        """The status page is worth no restart: where its port is taken, that is a warning, and it is tried again."""
        if (address := self._config.page_address) is not None:
            told = PageSources(
                report=self._report_of,
                around=self._surroundings,
                store=self._store,
                status=self._status,
                explain=explain.answer,
                traffic=lambda: self._meter.traffic,
                history=history,
            )
            self._server.add_listener(*address, page_routes(told, address[0]))

    def _no_metrics_address(self, problem: str) -> None:
        self._say(events.metrics_address_taken(self._node_name, problem))

    def _no_health_address(self, problem: str) -> None:
        self._say(events.health_address_taken(self._node_name, problem))

    def _no_health_check_port(self, service: ServiceKey, problem: str) -> None:
        self._say(events.health_check_port_taken(service, self._node_name, problem))

    def _report(self, now: Moment) -> Report:
        return self._report_of(now, self._surroundings())

    def _report_of(self, now: Moment, around: Surroundings) -> Report:
        watches, waiting = self._watch_states(), self._waiting_since()
        return build_report(self._identity, self._status(), watches, around, now, self._config.sync_period, waiting)

    def _surroundings(self) -> Surroundings:
        return read_surroundings(node_ports=self._store.node_ports())

    def _is_ended(self) -> bool:
        return self._ending.asked

    def _passed(self, status: Status) -> None:
        """When every family has had its first pass, what can wait begins."""
        if not self._settled and all(each.last_pass for each in status.families):
            self._settled = True
            self._ending.wake()

    def _look_around(self) -> None:
        """Says what may interfere with Service traffic on this node, once the rules are there: it may take a while."""
        try:
            for line in advise(self._surroundings(), self._families, self._config.mode):
                log.warning("found on this node", what=line)
        except Exception:  # this thread has to be there when the end is asked for
            log.exception("fault in looking around on this node")

    def _cannot_listen(self, problem: str) -> None:
        log.error("cannot listen, and bindAddressHardFail is set", problem=problem)
        self._ending.ask(1)


class Deadline:
    """A moment that several waits have in common, so many ``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left(self, at_most: float = math.inf) -> float:
        """How long the next wait may be (seconds)."""
        return min(at_most, max(0.0, self._at - time.monotonic()))
