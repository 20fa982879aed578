"""The node report: what runs here, what was found and why, how it stands. Built as data; ``proxyd status`` prints it."""

from __future__ import annotations

from collections.abc import Mapping

from proxyd.kernel.surroundings import Surroundings
from proxyd.model import CamelStruct, Family, Finding, NodeSettings, Reason
from proxyd.serve.advice import advise, conntrack_use
from proxyd.serve.collectors import WatchState
from proxyd.serve.health import Moment, ineligible, reasons, timestamp, unwritten
from proxyd.serve.readiness import silent_watches
from proxyd.sync.status import FamilyStatus, Status, Writing

# Name under which the running proxyd answers in its network namespace, and the path of the report there.
SOCKET = "proxyd/status"
PATH = "/report"


class Detected(CamelStruct, frozen=True):
    """Something that was found out or configured, and where it comes from."""

    name: str
    value: str
    why: str


class Identity(CamelStruct, frozen=True):
    """What does not change while the process runs. ``started`` is RFC 3339."""

    version: str
    mode: str
    node: str
    started: str
    kernel: str
    nftables: str
    detected: tuple[Detected, ...] = ()


class WritingReport(CamelStruct, frozen=True):
    """A full write that is not complete: Services written, of how many, and seconds since it began."""

    written: int
    of: int
    seconds: float


class FamilyReport(CamelStruct, frozen=True):
    """One family: what is in force, the last pass, the last failure, what waits. Seconds, or None where there is none.

    ``writing`` is there while everything is written, and after it where that failed.
    """

    family: Family
    services: int
    endpoints: int
    last_success: str
    last_pass_seconds: float | None
    last_pass_operations: int
    waiting_seconds: float | None
    last_error: str
    last_failure: str
    last_failure_at: str
    node_ip: str
    zone: str
    node_port_addresses: tuple[str, ...] | None
    local_pods: str
    writing: WritingReport | None = None


class WatchReport(CamelStruct, frozen=True):
    """One watch on the API server; ``last_event_seconds_ago`` is None before the first."""

    resource: str
    connected: bool
    last_event_seconds_ago: float | None
    lists: int
    errors: dict[str, int]


class Limit(CamelStruct, frozen=True):
    """Something that can be used up."""

    name: str
    used: int
    most: int


class Report(CamelStruct, frozen=True):
    """The whole report. ``problems`` keep the node from being ready; ``advice`` is about what may interfere."""

    identity: Identity
    ready: bool
    problems: tuple[str, ...]
    families: tuple[FamilyReport, ...]
    services_refused: int
    services_in_conflict: int
    findings: tuple[Finding, ...]
    watches: tuple[WatchReport, ...]
    limits: tuple[Limit, ...]
    foreign_tables: tuple[str, ...]
    foreign_chains: int
    foreign_sets: int
    advice: tuple[str, ...]


def build_report(
    identity: Identity,
    status: Status,
    watches: Mapping[str, WatchState],
    surroundings: Surroundings,
    now: Moment,
    sync_period: float,
    waiting_since: float | None,
) -> Report:
    """Puts everything together. ``waiting_since`` as for ``health.alive`` (monotonic seconds)."""
    problems = (
        *reasons(status, now.monotonic, sync_period, waiting_since),
        *unwritten(status),
        *ineligible(status.node),
        *silent_watches(watches, now.monotonic, sync_period),
    )
    use = conntrack_use(surroundings)
    return Report(
        identity=identity,
        ready=not problems,
        problems=problems,
        families=tuple(_family(each, now) for each in status.families),
        services_refused=_services(status, but=Reason.FRONTEND_CONFLICT),
        services_in_conflict=_services(status, only=Reason.FRONTEND_CONFLICT),
        findings=status.findings,
        watches=tuple(_watch(name, each, now) for name, each in watches.items()),
        limits=(Limit("tracked connections", *use),) if use else (),
        foreign_tables=surroundings.tables,
        foreign_chains=sum(surroundings.chains.values()),
        foreign_sets=sum(surroundings.sets.values()),
        advice=advise(surroundings, tuple(each.family for each in status.families), identity.mode),
    )


def _services(status: Status, only: Reason | None = None, but: Reason | None = None) -> int:
    """How many Services have a Finding of the reason ``only``, or of any reason ``but`` that one."""
    return len(
        {
            each.object
            for each in status.findings
            if each.kind == "Service" and only in (None, each.reason) and each.reason is not but
        }
    )


def _family(family: FamilyStatus, now: Moment) -> FamilyReport:
    settings = family.settings or NodeSettings(family.family, "", node_port_addresses=())
    last = family.last_pass
    return FamilyReport(
        family=family.family,
        services=family.services,
        endpoints=family.endpoints,
        last_success=timestamp(family.last_success_time) if family.last_success_time else "",
        last_pass_seconds=round(last.seconds, 4) if last else None,
        last_pass_operations=last.operations if last else 0,
        waiting_seconds=_ago(family.owed_since, now),
        last_error=family.last_error,
        last_failure=family.last_failure,
        last_failure_at=timestamp(family.last_failure_time) if family.last_failure_time else "",
        node_ip=settings.node_ip,
        zone=settings.zone,
        node_port_addresses=settings.node_port_addresses,
        local_pods=_detector(settings),
        writing=_writing(family.writing, now),
    )


def _writing(writing: Writing | None, now: Moment) -> WritingReport | None:
    if writing is None or writing.done >= writing.of:
        return None
    return WritingReport(writing.done, writing.of, round(now.monotonic - writing.since, 3))


def _detector(settings: NodeSettings) -> str:
    if settings.local is None:
        return "none"
    return settings.local.cidr or f"interface {settings.local.interface}"


def _watch(name: str, watch: WatchState, now: Moment) -> WatchReport:
    return WatchReport(name, watch.connected, _ago(watch.last_event, now), watch.relists, dict(watch.errors))


def _ago(since: float | None, now: Moment) -> float | None:
    return None if since is None else round(now.monotonic - since, 3)
