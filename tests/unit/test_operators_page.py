"""What operators are told to look at exists, and all that exists is told to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxyd.kernel.surroundings import Tracking
from proxyd.model import FAMILIES, Reason
from proxyd.serve.metrics import Metrics
from proxyd.serve.tracking import TrackingCollector
from proxyd.serve.traffic import TrafficCollector
from proxyd.sync.status import Status
from tests import build

OPERATE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()


def exported() -> set[str]:
    found: set[str] = set()
    for mode in ("nftables", "iptables"):
        metrics = Metrics(FAMILIES, "1", lambda: Status(""), build.store(), mode=mode)
        metrics.add(TrafficCollector(dict))
        metrics.add(TrackingCollector(lambda: Tracking(1, 2)))
        found.update(re.findall(r"^# TYPE ((?:kubeproxy|proxyd)_\S+) ", metrics.render().decode(), re.MULTILINE))
    return found


@pytest.mark.parametrize("reason", list(Reason))
def test_every_finding_reason_is_explained(reason: Reason) -> None:
    assert f"`{reason}`" in OPERATE


@pytest.mark.parametrize("name", sorted(exported()))
def test_every_metric_is_explained(name: str) -> None:
    assert f"`{name}" in OPERATE


def test_no_metric_is_explained_that_does_not_exist() -> None:
    named = set(re.findall(r"`((?:kubeproxy|proxyd)_[a-z_]+)", OPERATE))
    watched = {name for name in named if name.startswith("proxyd_watch_")}  # there are none without watches
    assert named - watched <= exported()
