"""/readyz: whether this node's rules are complete, up to date and fed, and if not, every reason why.

Stricter than /healthz on purpose: a watch that is down makes the node unready (roll-outs should stop), but must never make
it unhealthy, or an API server that is away would have load balancers drop every node at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from proxyd.serve import health
from proxyd.serve.collectors import WatchState
from proxyd.serve.health import Moment
from proxyd.serve.http import Response
from proxyd.sync.status import FamilyStatus, Status


def silent_watches(watches: Mapping[str, WatchState], now: float, sync_period: float) -> tuple[str, ...]:
    """Reasons about watches: never listed, or down for more than twice the sync period (monotonic seconds)."""
    found = []
    for name, watch in watches.items():
        if watch.last_event is None:
            found.append(f"{name}: not listed yet")
        elif not watch.connected and now - watch.last_event >= 2 * sync_period:
            found.append(f"{name}: the watch is down, the last event came {now - watch.last_event:.0f} s ago")
    return tuple(found)


def readyz(
    status: Status,
    watches: Mapping[str, WatchState],
    now: Moment,
    sync_period: float,
    waiting_since: float | None = None,
) -> Response:
    """The answer to /readyz: 200 and no reasons, or 503 and all of them."""
    reasons = (
        *health.reasons(status, now.monotonic, sync_period, waiting_since),
        *health.unwritten(status),
        *silent_watches(watches, now.monotonic, sync_period),
    )
    body = {
        "ready": not reasons,
        "reasons": list(reasons),
        "status": {each.family: _family(each, now) for each in status.families},
        "watches": {
            name: {"connected": each.connected, "lastEventSecondsAgo": _ago(each.last_event, now.monotonic)}
            for name, each in watches.items()
        },
    }
    return Response(503 if reasons else 200, "application/json", json.dumps(body, indent=2).encode())


def _family(family: FamilyStatus, now: Moment) -> dict[str, Any]:
    return {
        "lastUpdated": health.timestamp(family.last_success_time),
        "owedForSeconds": _ago(family.owed_since, now.monotonic),
        "lastError": family.last_error,
        "services": family.services,
        "endpoints": family.endpoints,
    }


def _ago(since: float | None, now: float) -> float | None:
    return None if since is None else round(now - since, 3)
