"""Single values as kube-proxy spells them: reading plain values and flag texts, and showing a wrong one to its owner.

A reader raises ValueError whose text continues "<field>: ...". None of them has to do with a particular field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from proxyd.config.schema import Quantity, Seconds, SecondsOrNanoseconds

# A wrong value is shown up to this length: enough to know it again.
SHOWN = 80

_NANOSECONDS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_NANOSECONDS["h"] = 3600 * 10**9
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[-+]?(?:{_PART})+")
_QUANTITY = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./-]{1,63}")


def show(value: object) -> str:
    """Gives a value as a user would know it again in their file, on one line: containers by kind, long text cut."""
    match value:
        case str():
            shown = json.dumps(value[:SHOWN])  # escapes line ends and control characters
            return shown if len(value) <= SHOWN else f"{shown}... ({len(value)} characters)"
        case None | bool():
            return json.dumps(value)
        case int() if abs(value) >= 2**64:  # Python refuses to write out very large ones
            return "a huge number"
        case dict():
            return "a map"
        case list():
            return "a list"
        case _:
            return str(value)


def show_name(name: object) -> str:
    """Gives a map key as part of a field path: as it is where it is an ordinary name, else quoted."""
    text = str(name) if isinstance(name, str | float) else show(name)
    return text if _PLAIN_NAME.fullmatch(text) else show(text)


def parse_duration(text: str) -> float:
    """Gives the seconds of a Go duration (``1h30m``, ``100ms``, ``-1.5s``, ``0``). Raises ValueError for other text.

    Source: Go's time.ParseDuration; like it, refuses what does not fit 64 bits of nanoseconds (292 years).
    """
    if re.fullmatch(r"[-+]?0", text):
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f'must be a duration such as "30s" or "1h30m", got {show(text)}')
    parts = re.findall(_PART, text)
    if sum(len(number) for number, _ in parts) > 100:  # also keeps Python from working on very large numbers
        raise ValueError(f"is too long a duration: {show(text)}")
    total = int(sum(Fraction(number.rstrip(".")) * _NANOSECONDS[unit] for number, unit in parts))
    if total >= 2**63:
        raise ValueError(f"is too long a duration: {show(text)}")
    return (-total if text.startswith("-") else total) / 10**9


def show_duration(seconds: float) -> str:
    """Gives seconds as Go writes a duration (``24h0m0s``, ``1.5s``, ``100ms``); ``parse_duration`` reads it back exactly.

    Source: Go's time.Duration.String.
    """
    total = round(Fraction(seconds) * 10**9)
    sign, rest = ("-" if total < 0 else ""), min(abs(total), 2**63 - 1)  # a float rounds the longest one up
    if 0 < rest < 10**9:
        unit = next(unit for unit in ("ms", "µs", "ns") if rest >= _NANOSECONDS[unit])
        return f"{sign}{_decimal(rest, _NANOSECONDS[unit])}{unit}"
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    hours, minutes = divmod(minutes, 60)
    larger = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{larger}{_decimal(rest, 10**9)}s"


def _decimal(number: int, unit: int) -> str:
    whole, part = divmod(number, unit)
    digits = str(unit + part)[1:].rstrip("0")  # the unit's own "1" keeps the zeros in front
    return f"{whole}.{digits}" if digits else str(whole)


def quantity(text: str) -> str:
    """Gives a Kubernetes quantity (``64Ki``) as it is. Raises ValueError for other text."""
    if not _QUANTITY.fullmatch(text):
        raise ValueError(f'must be a quantity such as "64Ki", got {show(text)}')
    return text


def int32(number: int) -> int:
    """Gives a number as it is. Raises ValueError where 32 bits cannot hold it."""
    if not -(2**31) <= number < 2**31:
        raise ValueError("is a number too large for 32 bits")
    return number


def float32(number: float) -> float:
    """Gives a number as it is. Raises ValueError for NaN and for what Go's float32 cannot hold."""
    if not abs(number) < 3.4e38:
        raise ValueError(f"must be a number, got {show(number)}")
    return number


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text (quote it if it is), got {show(value)}")
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {show(value)}")
    return value


def _whole(value: object) -> int:
    """Takes ``5`` and ``5.0``, which are one number in JSON and so to kube-proxy."""
    if isinstance(value, float) and value.is_integer():
        return int32(int(value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, got {show(value)}")
    return int32(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 3.4e38:  # nor NaN
        raise ValueError(f"must be a number, got {show(value)}")
    return float(value)


def _seconds(value: object) -> float:
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if not isinstance(value, str):
        raise ValueError(f'must be a duration with a unit, such as "30s", got {show(value)}')
    return parse_duration(value)


def _seconds_or_nanoseconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int):
        return _seconds(value)
    if not -(2**63) <= value < 2**63:
        raise ValueError("is too long a duration")
    return value / 10**9


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f'must be a quantity such as "64Ki", got {show(value)}')
    return quantity(value if isinstance(value, str) else str(int32(value)))


# The reader of a plain value for each type of the schema that is not made of others.
LEAVES: dict[Any, Callable[[object], Any]] = {
    str: _text,
    str | None: _text,
    bool: _bool,
    int: _whole,
    float: _number,
    Seconds: _seconds,
    SecondsOrNanoseconds: _seconds_or_nanoseconds,
    Quantity: _quantity,
}
