"""A Prometheus in a namespace, with the configuration that is shipped: what it has scraped, and what its rules say."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlencode

import yaml

from tests.program import DEADLINE, Place, until
from tests.prometheus.programs import CONFIGURATION, DEPLOY

HOST, PORT = "127.0.0.1", 9090
# So that there are rates after a moment.
INTERVAL = "1s"
# What the discovery of Nodes gives for each: the address of the kubelet.
KUBELET_PORT = 10250


class Sample(NamedTuple):
    """One series of an answer, now."""

    labels: Mapping[str, str]
    value: float


def configuration(nodes: Mapping[str, str]) -> dict[str, Any]:
    """The shipped one for Nodes by name, with their addresses, and a list in the place of discovery.

    Debian's Prometheus has none for Kubernetes. The targets are as it would give them, so that they have to be relabelled.
    """
    content: dict[str, Any] = yaml.safe_load(CONFIGURATION.read_text())
    content["global"] = dict.fromkeys(content["global"], INTERVAL)
    content["rule_files"] = [str(DEPLOY / name) for name in content["rule_files"]]
    (job,) = content["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "node"}]
    job["static_configs"] = [
        {"targets": [f"{address}:{KUBELET_PORT}"], "labels": {"instance": name}} for name, address in nodes.items()
    ]
    return content


class Prometheus:
    """A running one, on loopback. A context manager: it has ended after it."""

    def __init__(self, place: Place, found: Path, folder: Path, nodes: Mapping[str, str]) -> None:
        """Starts it, and waits until it has scraped every Node. ``folder`` is for its data; ``nodes``: address by name."""
        self._place = place
        self._log = folder / "prometheus.log"
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(configuration(nodes)))
        words = [
            str(found / "prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={HOST}:{PORT}",
        ]
        with self._log.open("w") as log:
            self._process = place.start(words, stdout=log, stderr=log)
        try:
            until(self._answers, "Prometheus answers", every=0.05)
            until(lambda: self.value("count(up == 1)") == len(nodes), f"{len(nodes)} scraped", every=0.1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it."""
        self._process.terminate()
        try:
            self._process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise ChildProcessError(f"Prometheus ended with {self._process.returncode}:\n{self._log.read_text()}")
        return self._get("/-/ready")[0] == 200

    def _get(self, path: str) -> tuple[int, str]:
        status, body = self._place.node.call("http_get", host=HOST, port=PORT, path=path)
        return status, body

    def api(self, path: str, **arguments: str) -> Any:
        """What its API says to a question. Raises ``AssertionError`` with its words where that is an error."""
        status, body = self._get(f"/api/v1/{path}?{urlencode(arguments)}")
        assert status == 200, f"{arguments}: {status} {body}"
        answer = json.loads(body)
        assert answer["status"] == "success", body
        assert not answer.get("warnings"), body
        return answer["data"]

    def query(self, expression: str) -> list[Sample]:
        """What an expression that gives series says now; those that are no number are left out."""
        data = self.api("query", query=expression)
        assert data["resultType"] == "vector", expression
        samples = [Sample(each["metric"], float(each["value"][1])) for each in data["result"]]
        return [each for each in samples if not math.isnan(each.value)]

    def value(self, expression: str) -> float | None:
        """The value of the only series, None where there is none."""
        samples = self.query(expression)
        assert len(samples) <= 1, samples
        return samples[0].value if samples else None
