"""What operators are told to look at exists, and all that exists is told to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from proxyd.ipt.style import INVALID_DROPPED, LOCALHOST_ACCEPTED
from proxyd.kernel.surroundings import Tracking
from proxyd.model import FAMILIES, Reason
from proxyd.serve.iptables_metrics import AccountedPackets
from proxyd.serve.metrics import Metrics
from proxyd.serve.tracking import TrackingCollector
from proxyd.serve.traffic import TrafficCollector
from proxyd.sync.status import Status
from tests import build

OPERATE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()


def exported() -> set[str]:
    found: set[str] = set()
    counted = AccountedPackets(lambda _: 0, frozenset({INVALID_DROPPED, LOCALHOST_ACCEPTED}))
    for mode, collector in (("nftables", TrafficCollector(dict)), ("iptables", counted)):
        metrics = Metrics(FAMILIES, "1", lambda: Status(""), build.store(), mode=mode)
        metrics.add(collector)
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
