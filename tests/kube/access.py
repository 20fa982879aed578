"""What tests of the client do again and again: kubeconfigs, requests, files that are replaced, answers cut short."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import yaml

from proxyd.kube.client import Client, Response, TransportError
from tests.fakes import apiserver as fake

DEADLINE = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def kubeconfig(path: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    """Writes a kubeconfig with one cluster and one user."""
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def get(client: Client) -> bytes:
    response = client.get(fake.SERVICES, {"limit": "1"}, read_timeout=DEADLINE)
    body = response.read()
    response.close()
    return body


def replace(path: Path, text: str) -> None:
    """Replaces a file as mounted secrets are: a new one takes the name."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def aborted_read(response: Response) -> None:
    """Reads in a thread, aborts from this one, and expects the read to end."""
    ended: list[object] = []

    def read() -> None:
        try:
            ended.append(response.read1())
        except TransportError as error:
            ended.append(error.reason)

    reading = threading.Thread(target=read)
    reading.start()
    response.abort()
    reading.join(DEADLINE)
    assert ended in ([b""], ["stream"], ["tls"])
    response.close()
