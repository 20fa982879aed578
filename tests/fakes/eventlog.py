"""The Events of the stub API server: created once, then only their series may change, as in events.k8s.io/v1."""

from __future__ import annotations

import json
import threading
from typing import Any

REQUIRED = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type", "regarding")


class EventLog:
    """Events by path. Answers are a status code and an object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: dict[str, dict[str, Any]] = {}

    def create(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Takes a POST to a collection."""
        event = json.loads(body)
        at = f"{path}/{event['metadata']['name']}"
        with self._lock:
            if at in self.events:
                return 409, _status(409, "AlreadyExists")
            if not all(event.get(field) for field in REQUIRED) or len(event["note"].encode()) > 1024:
                return 422, _status(422, "Invalid")
            self.events[at] = event
            return 201, event

    def patch(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Takes a merge patch of one Event."""
        change = json.loads(body)
        with self._lock:
            if path not in self.events:
                return 404, _status(404, "NotFound")
            if change.keys() != {"series"} or change["series"]["count"] < 2:
                return 422, _status(422, "Invalid")
            self.events[path] = {**self.events[path], **change}
            return 200, self.events[path]

    def expire(self) -> None:
        """Forgets all of them, as the API server does after an hour."""
        with self._lock:
            self.events.clear()


def _status(code: int, reason: str) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason}
