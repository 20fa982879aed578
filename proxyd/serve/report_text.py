"""The node report as people read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from proxyd.serve.report import FamilyReport, Report

# Findings that are shown one by one; the counts are always whole.
SHOWN = 20
WIDEST = 40


def report_text(report: Report) -> str:
    """The report, for a terminal of about 120 columns; ends with a newline."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    me = report.identity
    state = "ready" if report.ready else "NOT READY"
    yield f"proxyd {me.version}, {me.mode} mode, node {me.node}: {state}"
    yield from (f"  ! {each}" for each in report.problems)
    nft = f", nftables {me.nftables}" if me.nftables else ""
    yield f"  since {me.started}, kernel {me.kernel}{nft}"
    yield from _section("Found and configured", _table([(d.name, d.value, d.why) for d in me.detected]))
    for family in report.families:
        yield from _section(str(family.family), _family(family))
    yield from _section("Services", _services(report))
    yield from _section("Watches", _watches(report))
    yield from _section("Around", _around(report))


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    body = list(lines)
    if body:
        yield ""
        yield title
        yield from (f"  {line}" for line in body)


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """In columns; what is longer than ``WIDEST`` pushes only its own line apart."""
    widths = [min(WIDEST, max(map(len, column))) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _family(family: FamilyReport) -> Iterator[str]:
    if (writing := family.writing) is not None:
        yield f"writing everything: {writing.written} of {writing.of} Services, for {writing.seconds:.1f} s"
    if family.last_pass_seconds is None:
        if writing is not None:
            return
        yield "nothing written yet; rules of an earlier run are as they were"
        return
    yield f"{family.services} Services, {family.endpoints} endpoints in force"
    if family.last_pass_seconds is not None:
        took = f"{family.last_pass_seconds * 1000:.1f} ms, {family.last_pass_operations} operations"
        yield f"last complete write {family.last_success or 'never'}; last pass {took}"
    if family.waiting_seconds is not None:
        yield f"a change has waited for {family.waiting_seconds:.1f} s: {family.last_error or 'it is being written'}"
    if family.last_failure:
        yield f"last failure {family.last_failure_at}: {family.last_failure}"
    ports = family.node_port_addresses
    yield f"node ports on {'all addresses' if ports is None else ', '.join(ports) or 'no address'}"
    yield f"node address {family.node_ip or 'unknown'}; local pods: {family.local_pods}; zone {family.zone or 'unknown'}"


def _services(report: Report) -> Iterator[str]:
    yield f"{report.services_refused} with something refused, {report.services_in_conflict} in conflict"
    for reason, count in sorted(Counter(each.reason for each in report.findings).items()):
        yield f"{count} x {reason}"
    for finding in report.findings[:SHOWN]:
        yield f"- {finding.kind} {finding.object}: {finding.message} ({finding.reason})"
    if len(report.findings) > SHOWN:
        yield f"- and {len(report.findings) - SHOWN} more: -o json has all"


def _watches(report: Report) -> list[str]:
    rows = []
    for watch in report.watches:
        age = watch.last_event_seconds_ago
        heard = "nothing heard yet" if age is None else f"last heard {age:.0f} s ago"
        errors = ", ".join(f"{count} x {kind}" for kind, count in sorted(watch.errors.items()))
        rows.append((watch.resource, "up" if watch.connected else "DOWN", heard, f"{watch.lists} lists", errors))
    return _table(rows) if rows else []


def _around(report: Report) -> Iterator[str]:
    for limit in report.limits:
        yield f"{limit.name}: {limit.used} of {limit.most}"
    if report.foreign_tables:
        many = f"{report.foreign_chains} chains and {report.foreign_sets} sets"
        yield f"tables of others: {', '.join(report.foreign_tables)} ({many}, read before each of our writes)"
    yield from (f"! {each}" for each in report.advice)
