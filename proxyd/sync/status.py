"""What the sync thread tells others: an immutable Status that is swapped whole, and the events that metrics count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from proxyd.desired.forwarding import HealthCheck
from proxyd.desired.localhost import LocalhostPort
from proxyd.model import CamelStruct, Cause, Event, Family, Finding, Node, NodeSettings, ServiceKey

# How foreign changes were undone.
Repair = Literal["mended", "rewritten"]


class Counts(NamedTuple):
    """Of iptables mode. Rules by table: how many there are, and how many the last pass wrote.

    ``partial_failures``: writing changes failed, ``locked``: calls failed since somebody held the lock, in that pass.
    """

    rules: Mapping[str, int] = {}
    written: Mapping[str, int] = {}
    partial_failures: int = 0
    locked: int = 0


class Undone(CamelStruct, frozen=True):
    """Foreign edits that a pass undid: how many transactions, what they did (for people), and how that was mended."""

    edits: int
    what: str
    how: Repair


class PassResult(msgspec.Struct, frozen=True):
    """One attempt to bring one family's rules up to date. ``error`` is empty where it succeeded; times in seconds.

    ``refusals`` counts transactions that the kernel refused in it; a pass can get over them and succeed. ``services``
    counts those that changed. ``waited`` is the time from the oldest event to the beginning of the pass, ``in_kernel`` what
    of ``seconds`` went by in calls of the kernel or of its tools. ``events`` are those that the family itself has found: a
    foreign edit, a retry.
    """

    family: Family
    full: bool
    seconds: float
    services: int
    operations: int
    error: str = ""
    refusals: int = 0
    counts: Counts = Counts()
    waited: float = 0.0
    in_kernel: float = 0.0
    events: tuple[Event, ...] = ()
    undone: Undone | None = None


class Writing(msgspec.Struct, frozen=True):
    """A full write: how many Services it has written of how many, the most important ones first; ``since`` it began
    (monotonic seconds).
    """

    done: int
    of: int
    since: float


class FamilyStatus(msgspec.Struct, frozen=True):
    """How one family stands. Times are monotonic seconds, except ``..._time`` (Unix seconds).

    ``last_success`` is None before the first complete write; ``owed_since`` is the time of the oldest change that is
    not in the kernel yet, None where nothing is owed. ``last_error`` is that of the last pass ("": it succeeded),
    ``last_failure`` that of the last pass that failed. ``quarantined`` are Services that the kernel refused. ``settings``
    are those that the rules were made with, None before there were any. ``localhost_ports`` is the same object for as long
    as none of them changes. What is counted of Services is as of the last success (``OF_LAST_SUCCESS``); before the first
    one, of as much as was written. ``writing`` is how far the last full write has come, told meanwhile too; None before the
    first one.
    """

    family: Family
    last_success: float | None = None
    last_success_time: float | None = None
    owed_since: float | None = None
    last_error: str = ""
    services: int = 0
    endpoints: int = 0
    no_local_internal: int = 0
    no_local_external: int = 0
    health_checks: tuple[HealthCheck, ...] = ()
    localhost_ports: tuple[LocalhostPort, ...] = ()
    settings: NodeSettings | None = None
    last_pass: PassResult | None = None
    last_failure: str = ""
    last_failure_time: float | None = None
    quarantined: tuple[ServiceKey, ...] = ()
    writing: Writing | None = None

    @property
    def node_port_addresses(self) -> tuple[str, ...] | None:
        """The addresses that node ports are taken on, None where all are."""
        return self.settings.node_port_addresses if self.settings else ()


# Fields of a FamilyStatus that a failure leaves as they were.
OF_LAST_SUCCESS = (
    "services",
    "endpoints",
    "no_local_internal",
    "no_local_external",
    "health_checks",
    "localhost_ports",
    "settings",
)


class Status(msgspec.Struct, frozen=True):
    """Everything that servers may show, as of the end of the last pass; ``writing`` as of any moment."""

    mode: str
    families: tuple[FamilyStatus, ...] = ()
    findings: tuple[Finding, ...] = ()
    node: Node | None = None


class Observer(Protocol):
    """Who counts what the sync thread does (the metrics). Called on the sync thread; must be quick and never raise."""

    def queued(self) -> None:
        """Something asked for a pass."""

    def pass_done(self, result: PassResult) -> None:
        """A pass over one family ended, well or not."""

    def programmed(self, family: Family, seconds: float) -> None:
        """An endpoint change reached the kernel ``seconds`` after it began (its trigger time)."""

    def written(self, family: Family, cause: Cause, seconds: float) -> None:
        """A change reached the kernel ``seconds`` after it was received."""

    def cleanup_failed(self, family: Family) -> None:
        """Objects that are no longer used could not be deleted; it will be tried again."""

    def repaired(self, family: Family, how: Repair, edits: int) -> None:
        """That many foreign transactions on our table have been undone, place by place or by writing everything."""

    def found(self, finding: Finding) -> None:
        """A Finding that was not there before."""
