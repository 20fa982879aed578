"""The log's formats, levels and what libraries say."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from proxyd import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_json() -> None:
    stream = io.StringIO()
    logs.configure("json", 0, stream)
    structlog.get_logger("proxyd.sync").warning("rules written", services=3, family="IPv4", path=object)
    (line,) = lines(stream)
    stamp = line.pop("timestamp")
    assert stamp.endswith("Z")
    assert abs((datetime.now(UTC) - datetime.fromisoformat(stamp)).total_seconds()) < 3600
    assert line == {
        "event": "rules written",
        "level": "warning",
        "logger": "proxyd.sync",
        "services": 3,
        "family": "IPv4",
        "path": "<class 'object'>",
    }


def test_a_logger_without_a_name() -> None:
    stream = io.StringIO()
    logs.configure("json", 0, stream)
    structlog.get_logger().info("event")
    assert "logger" not in lines(stream)[0]


def test_loggers_made_before() -> None:
    log = structlog.get_logger("early")
    stream = io.StringIO()
    logs.configure("json", 0, stream)
    log.info("event")
    assert lines(stream)[0]["logger"] == "early"


@pytest.mark.parametrize(("verbosity", "seen"), [(0, ["info"]), (1, ["debug", "info"]), (4, ["debug", "info"])])
def test_verbosity(verbosity: int, seen: list[str]) -> None:
    stream = io.StringIO()
    logs.configure("json", verbosity, stream)
    log = structlog.get_logger()
    log.debug("a")
    log.info("b")
    assert [line["level"] for line in lines(stream)] == seen


def test_exceptions_in_json_are_structured_and_without_variables() -> None:
    stream = io.StringIO()
    logs.configure("json", 0, stream)
    token = "".join(["top", "secret"])
    try:
        raise LookupError("not there")
    except LookupError:
        structlog.get_logger().exception("failed", size=len(token))
    (line,) = lines(stream)
    (exception,) = line["exception"]
    assert (exception["exc_type"], exception["exc_value"]) == ("LookupError", "not there")
    assert exception["frames"][-1]["name"] == "test_exceptions_in_json_are_structured_and_without_variables"
    assert token not in stream.getvalue()


def test_exceptions_in_text_are_plain() -> None:
    stream = io.StringIO()
    logs.configure("text", 0, stream)
    try:
        raise LookupError("not there")
    except LookupError:
        structlog.get_logger().exception("failed")
    text = stream.getvalue()
    assert "Traceback (most recent call last):" in text
    assert text.endswith("LookupError: not there\n")


@pytest.mark.parametrize(
    ("log_format", "stream", "text", "colors"),
    [
        ("", io.StringIO(), False, False),
        ("", Terminal(), True, True),
        ("text", io.StringIO(), True, False),
        ("text", Terminal(), True, True),
        ("json", Terminal(), False, False),
    ],
)
def test_choice_of_format(log_format: str, stream: io.StringIO, text: bool, colors: bool) -> None:
    logs.configure(log_format, 0, stream)
    structlog.get_logger().info("event", key="value")
    assert stream.getvalue().startswith("{") != text
    assert ("\x1b[" in stream.getvalue()) == colors


def test_unknown_format() -> None:
    with pytest.raises(ValueError, match="xml"):
        logs.configure("xml")


def test_standard_error_unless_told_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("json")
    structlog.get_logger().info("event")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["event"] == "event"


def test_libraries_are_heard_from_warning_on() -> None:
    stream = io.StringIO()
    logs.configure("json", 9, stream)
    for name in ("urllib3.connectionpool", "kubernetes", "watchfiles", "asyncio"):
        library = logging.getLogger(name)
        library.info("not %s", "this")
        library.warning("retry %d of %s: 100%%", 1, "x")
    got = lines(stream)
    assert [line["logger"] for line in got] == ["urllib3.connectionpool", "kubernetes", "watchfiles", "asyncio"]
    assert {(line["event"], line["level"]) for line in got} == {("retry 1 of x: 100%", "warning")}


def test_odd_records_of_libraries() -> None:
    stream = io.StringIO()
    logs.configure("json", 0, stream)
    library = logging.getLogger("odd")
    library.log(35, "between levels")
    library.log(99, "beyond levels")
    library.error("wrong %d %d", "text")
    try:
        raise LookupError("not there")
    except LookupError:
        library.exception("failed")
    library.error("nothing raised", exc_info=True)
    got = lines(stream)
    assert [line["level"] for line in got] == ["warning", "critical", "error", "error", "error"]
    assert got[2]["event"] == "wrong %d %d"
    assert got[3]["exception"][0]["exc_type"] == "LookupError"
    assert "exception" not in got[4]


def test_a_log_that_cannot_be_written_harms_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    for stream in (Gone(), io.StringIO()):
        logs.configure("json", 0, stream)
        stream.close()
        structlog.get_logger().info("event")
        logging.getLogger("library").error("event")


def test_rich_stays_out() -> None:
    pytest.importorskip("rich")
    code = "import proxyd.logs, sys; assert not [m for m in sys.modules if m.startswith('rich')]; import rich"
    subprocess.run([sys.executable, "-c", code], check=True)
