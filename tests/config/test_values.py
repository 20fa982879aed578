"""Single values: Go's durations, and how a wrong value is shown."""

import pytest

from proxyd.config.values import parse_duration, show


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("0s", 0.0),
        ("1s", 1.0),
        ("100ms", 0.1),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("+2m", 120.0),
        ("-1m30s", -90.0),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("1μs", 1e-6),
        ("250ns", 2.5e-7),
        ("1s1s", 2.0),
        ("2562047h", 9223369200.0),
    ],
)
def test_go_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    "text", ["", "1", "s", "-", ".s", "1 s", " 1s", "1s ", "1S", "1d", "1e3s", "1s2", "1s-1s", "--1s"]
)
def test_no_go_durations(text: str) -> None:
    with pytest.raises(ValueError, match="must be a duration"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["2562048h", "9" * 400 + "s"])
def test_durations_beyond_64_bits(text: str) -> None:
    with pytest.raises(ValueError, match="too long"):
        parse_duration(text)


def test_values_are_shown_on_one_line() -> None:
    assert show('a\n"b') == '"a\\n\\"b"'
