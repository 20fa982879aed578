"""Events (events.k8s.io/v1): what is said on which object, and the JSON of it. Pure: times and names are handed in.

Reasons and actions are kube-proxy's where it says the same. The reporting controller is not: who of the two said it matters
on a cluster that has both.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple

import msgspec

from proxyd.model import Finding, Reason, ServiceKey

CONTROLLER = "proxyd"
# Limits of the API server (validation of events.k8s.io/v1, names of objects), in bytes.
NOTE_AT_MOST = 1024
INSTANCE_AT_MOST = 128
NAME_AT_MOST = 253

API_VERSIONS = {"Service": "v1", "Node": "v1", "EndpointSlice": "discovery.k8s.io/v1"}


class Outcome(StrEnum):
    """What became of a notice: a closed list, used as a metric label."""

    CREATED = "created"
    COUNTED = "counted"
    KNOWN = "known"
    DROPPED = "dropped"
    GIVEN_UP = "given-up"


class Notice(NamedTuple):
    """Something to say on one object. ``namespace`` is "" for a Node; ``warning`` tells Warning from Normal.

    ``of_node``: it is about this node. Else all nodes would say the same, and one of them is enough. ``again`` is empty
    where a repetition is the same Event with a higher count; else it tells one occurrence from the next.
    """

    kind: str
    namespace: str
    name: str
    reason: str
    action: str
    note: str
    warning: bool = True
    of_node: bool = False
    again: str = ""


class _About(NamedTuple):
    action: str
    of_node: bool = False


# What proxyd was doing when it found that. Every Reason has to be here.
_ABOUT = {
    Reason.UNREADABLE_OBJECT: _About("ReadObject"),
    Reason.INVALID_PORT: _About("AdmitService"),
    Reason.INVALID_ADDRESS: _About("AdmitService"),
    Reason.INVALID_SOURCE_RANGE: _About("AdmitService"),
    Reason.INVALID_AFFINITY: _About("AdmitService"),
    Reason.INVALID_ENDPOINT: _About("AdmitEndpoints"),
    Reason.DUPLICATE_PORT: _About("AdmitService"),
    Reason.FRONTEND_CONFLICT: _About("AssignFrontend"),
    Reason.KERNEL_REFUSED: _About("WriteRules", of_node=True),
    Reason.INTERNAL_ERROR: _About("WriteRules", of_node=True),
    Reason.NODE_NOT_FOUND: _About("FindNode", of_node=True),
    Reason.POD_RANGE_UNKNOWN: _About("FindPodRange", of_node=True),
    Reason.FAMILY_MISMATCH: _About("CheckConfiguration", of_node=True),
    Reason.CONFIGURATION_REFUSED: _About("CheckConfiguration", of_node=True),
}


def of_finding(finding: Finding) -> Notice | None:
    """What to say about a Finding; None where it is not about an object of the API."""
    if finding.kind not in API_VERSIONS:
        return None
    namespace, _, name = finding.object.rpartition("/")
    about = _ABOUT[finding.reason]
    reason = "".join(word.capitalize() for word in finding.reason.split("-"))
    return Notice(finding.kind, namespace, name, reason, about.action, finding.message, of_node=about.of_node)


def starting(node: str, note: str, when: str) -> Notice:
    """kube-proxy's Event of a start, on the Node; each start (``when``) is an Event of its own."""
    return Notice("Node", "", node, "Starting", "StartKubeProxy", note, warning=False, of_node=True, again=when)


def health_address_taken(node: str, problem: str) -> Notice:
    """kube-proxy's Event of a healthz address that cannot be had, on the Node."""
    return Notice("Node", "", node, "FailedToStartProxierHealthcheck", "StartKubeProxy", problem, of_node=True)


def metrics_address_taken(node: str, problem: str) -> Notice:
    """kube-proxy's Event of a metrics address that cannot be had, on the Node."""
    return Notice("Node", "", node, "FailedToStartMetricServer", "StartKubeProxy", problem, of_node=True)


def health_check_port_taken(key: ServiceKey, node: str, problem: str) -> Notice:
    """kube-proxy's Event of a healthCheckNodePort that cannot be had on a node, on the Service."""
    note = f"node {node}: {problem}"
    return Notice("Service", *key, "FailedToStartServiceHealthcheck", "Listen", note, of_node=True)


def path(notice: Notice) -> str:
    """Where Events on this object are created. Those on objects without a namespace are in the default one."""
    return f"/apis/events.k8s.io/v1/namespaces/{notice.namespace or 'default'}/events"


def event_name(notice: Notice, uid: str, node: str) -> str:
    """The same for the same thing said twice: the API server tells then that it has it, on whichever node it was said."""
    said_by = node if notice.of_node else ""
    words = (CONTROLLER, uid, *(str(each) for each in notice), said_by)
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
    stem = notice.name[: NAME_AT_MOST - len(digest) - 1].rstrip("-.")
    return f"{stem}.{digest}"


def event(notice: Notice, uid: str, node: str, at: float) -> bytes:
    """The Event, for a POST. ``uid`` is that of the object ("" where it is not known), ``at`` Unix seconds."""
    regarding = {
        "apiVersion": API_VERSIONS[notice.kind],
        "kind": notice.kind,
        "namespace": notice.namespace,
        "name": notice.name,
        "uid": uid,
    }
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": event_name(notice, uid, node), "namespace": notice.namespace or "default"},
        "eventTime": micro_time(at),
        "reportingController": CONTROLLER,
        "reportingInstance": node[:INSTANCE_AT_MOST],
        "action": notice.action,
        "reason": notice.reason,
        "type": "Warning" if notice.warning else "Normal",
        "regarding": {name: value for name, value in regarding.items() if value},
        "note": _cut(notice.note),
    }
    return msgspec.json.encode(body)


def series(count: int, at: float) -> bytes:
    """That an Event has come ``count`` times, the last time at ``at`` (Unix seconds), for a PATCH of it."""
    return msgspec.json.encode({"series": {"count": count, "lastObservedTime": micro_time(at)}})


def micro_time(unix: float) -> str:
    """A meta/v1 MicroTime: RFC 3339 with microseconds."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(note: str) -> str:
    encoded = note.encode()
    if len(encoded) <= NOTE_AT_MOST:
        return note
    return encoded[: NOTE_AT_MOST - 3].decode(errors="ignore") + "..."
