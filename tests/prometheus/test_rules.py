"""The rules in deploy/prometheus: taken by promtool, and every alert fires when it should and only then."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus.cases import CASES, Case, Series
from tests.prometheus.programs import ALERTS, CONFIGURATION, RECORDING, ROOT, groups, rules
from tests.prometheus.server import configuration

ALERTING = rules(ALERTS)
BY_NAME = {rule["alert"]: rule for rule in ALERTING}


def promtool(found: Path, *words: str) -> None:
    done = subprocess.run([found / "promtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_the_rules(found: Path) -> None:
    promtool(found, "check", "rules", "--lint=all", "--lint-fatal", str(RECORDING), str(ALERTS))


def test_the_example_of_a_configuration_loads_these_rules() -> None:
    assert yaml.safe_load(CONFIGURATION.read_text())["rule_files"] == [RECORDING.name, ALERTS.name]


@pytest.mark.parametrize("every", sorted({case.every for case in CASES}))
def test_every_alert_fires_when_it_should_and_not_when_it_should_not(found: Path, tmp_path: Path, every: int) -> None:
    file = tmp_path / "alerts.test.yaml"
    tests = list(_tests([case for case in CASES if case.every == every]))
    content = {
        "rule_files": [str(RECORDING), str(ALERTS)],
        # Without it the order is another each time, and an alert may see what was recorded a minute ago.
        "group_eval_order": [group["name"] for group in (*groups(RECORDING), *groups(ALERTS))],
        "evaluation_interval": f"{every}m",
        "tests": tests,
    }
    file.write_text(yaml.safe_dump(content))
    promtool(found, "test", "rules", str(file))


def test_no_alert_is_without_a_case() -> None:
    assert len(BY_NAME) == len(ALERTING)
    assert {case.alert for case in CASES} == BY_NAME.keys()


def test_the_pieces_of_configuration_in_the_document_are_taken_too(found: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "prometheus.md").read_text(), re.DOTALL)
    pieces = [yaml.safe_load(block) for block in blocks]
    (listed,) = [piece["static_configs"] for piece in pieces if "static_configs" in piece]
    (kept,) = [piece for piece in pieces if isinstance(piece, list)]
    content = configuration({})
    (job,) = content["scrape_configs"]
    job |= {"static_configs": listed, "relabel_configs": [*kept, *job["relabel_configs"]]}
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(content))
    promtool(found, "check", "config", str(file))


def _tests(cases: Sequence[Case]) -> Iterator[dict[str, Any]]:
    """What promtool is to try: firing in time with the right labels, and silence."""
    for case in cases:
        labels = {**case.labels, **BY_NAME[case.alert]["labels"], "alertname": case.alert, "alertstate": "firing"}
        sample = {"labels": _series("ALERTS", labels), "value": 1}
        yield _test(f"{case.alert} fires", case.fires, _firing(case, case.before), _firing(case, case.at, sample))
    for number, (series, silent) in enumerate(_together(cases)):
        yield _test(f"silence {number}", series, *map(_silence, silent))


def _together(cases: Sequence[Case]) -> list[tuple[dict[str, str], list[Case]]]:
    """What must not make alerts fire, as much at once as is about different metrics: each try takes its time."""
    blocks: list[tuple[dict[str, str], list[Case]]] = []
    for case in cases:
        for quiet in case.quiet:
            fitting = (block for block in blocks if not _metrics(block[0]) & _metrics(quiet))
            if (block := next(fitting, None)) is None:
                blocks.append(block := ({}, []))
            block[0].update(quiet)
            block[1].append(case)
    return blocks


def _metrics(series: Series) -> set[str]:
    return {name.partition("{")[0] for name in series}


def _silence(case: Case) -> dict[str, Any]:
    # Has never fired: every minute is looked at, since alerts are samples too.
    expression = f'count_over_time(ALERTS{{alertname="{case.alert}",alertstate="firing"}}[{case.until}m])'
    return {"expr": expression, "eval_time": f"{case.until}m", "exp_samples": []}


def _test(name: str, series: Series, *expected: Mapping[str, Any]) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in series.items()]
    return {"name": name, "interval": "1m", "input_series": given, "promql_expr_test": list(expected)}


def _firing(case: Case, minute: int, *samples: Mapping[str, Any]) -> dict[str, Any]:
    expression = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    return {"expr": expression, "eval_time": f"{minute}m", "exp_samples": list(samples)}


def _series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}"


@pytest.mark.parametrize("name", BY_NAME)
def test_an_alert_says_what_is_wrong_where_and_what_to_do(name: str) -> None:
    rule = BY_NAME[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    known = set.intersection(*({*case.labels} for case in CASES if case.alert == name))
    for text in rule["annotations"].values():
        # A label that is not there would be shown as nothing.
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= known
    file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert anchor == name.lower()


def test_no_alert_is_explained_that_does_not_exist() -> None:
    explained = re.findall(r"^#+ (Proxyd\w+)$", (ROOT / "docs" / "operate.md").read_text(), re.MULTILINE)
    assert sorted(explained) == sorted(BY_NAME)
