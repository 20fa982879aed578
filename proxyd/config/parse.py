"""Text to a Document: YAML, types and Go durations. What fits no type is a problem, what fits no field is a warning.

kube-proxy decodes strictly, and on a failure that is only strict (unknown or duplicate fields) again leniently, logging
the strict error; so such a file starts here too. Source: cmd/kube-proxy/app/options.go, loadConfig.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec
import yaml

from proxyd.config.schema import (
    API_VERSION,
    KIND,
    ZERO_MEANS_DEFAULT,
    Document,
    Problem,
    Quantity,
    Seconds,
    SecondsOrNanoseconds,
)

_NANOSECONDS = {"ns": 1, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9}
_PART = r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[-+]?(?:{_PART})+")
_QUANTITY = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]+)?")

_S = TypeVar("_S", bound=msgspec.Struct)


class Parsed(NamedTuple):
    """What a file says. A field with a problem has its default in ``document``, so that the rest can be judged too."""

    document: Document
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def parse_file(text: str) -> Parsed:
    """Reads the text of a configuration file (YAML or JSON). Raises nothing: all that is wrong is in ``problems``.

    A second YAML document is not read, as in kube-proxy.
    """
    try:
        raw, warnings = _load_yaml(text)
    except yaml.YAMLError as error:
        return Parsed(Document(), (Problem("", _syntax(error)),))
    except RecursionError:
        return Parsed(Document(), (Problem("", "YAML: nested too deeply"),))
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else show(raw)
        return Parsed(Document(), (Problem("", f"must be a map, a {KIND}; found {found}"),), warnings)
    reader = _Reader()
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if raw.get(name) != expected:
            reader.problems.append(Problem(name, f'must be "{expected}", got {show(raw.get(name))}'))
    body = {key: value for key, value in raw.items() if key not in ("apiVersion", "kind")}
    document = reader.block(Document, body, "")
    return Parsed(document, tuple(reader.problems), (*warnings, *reader.warnings))


def parse_duration(text: str) -> float:
    """Gives the seconds of a Go duration (``1h30m``, ``100ms``, ``-1.5s``, ``0``). Raises ValueError for other text.

    Source: Go's time.ParseDuration; like it, refuses what does not fit 64 bits of nanoseconds (292 years).
    """
    if re.fullmatch(r"[-+]?0", text):
        return 0.0
    if not _DURATION.fullmatch(text):
        raise ValueError(f'must be a duration such as "30s" or "1h30m", got {show(text)}')
    total = sum(float(number) * _NANOSECONDS[unit] for number, unit in re.findall(_PART, text))
    if total >= 2**63:
        raise ValueError(f"is too long a duration: {show(text)}")
    return (-total if text.startswith("-") else total) / 1e9


def show(value: object) -> str:
    """Gives a value as a user would know it again in their file: text in quotes, containers by kind only."""
    match value:
        case None | bool() | str():
            return json.dumps(value)  # escapes line ends: a problem is one line
        case int() if abs(value) >= 2**64:  # Python refuses to write out very large ones
            return "a huge number"
        case dict():
            return "a map"
        case list():
            return "a list"
        case _:
            return str(value)


class _Loader(yaml.SafeLoader):
    """SafeLoader that keeps dates as text and that fails in one way only: by a YAMLError that knows its line."""

    # A copy without timestamps: Kubernetes has none in YAML, and an invalid one (2024-13-45) would not be a YAMLError.
    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Builds the value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            # PyYAML lets these through for text that does not fit its (often explicit) tag: `!!bool maybe`.
            tag = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {tag}", node.start_mark) from error


def _load_yaml(text: str) -> tuple[Any, tuple[str, ...]]:
    loader = _Loader(text)
    node = loader.get_node() if loader.check_node() else None
    if node is None:
        return None, ()
    warnings = list(_duplicates(node, "", set()))
    if loader.check_node():
        warnings.append("the file has more than one YAML document: only the first is read")
    return loader.construct_document(node), tuple(warnings)


def _duplicates(node: yaml.Node, path: str, seen: set[int]) -> Iterator[str]:
    if id(node) in seen:  # an alias, perhaps to a node around it
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicates(item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            at = f"{path}.{name}" if path else name
            if name in keys:
                yield f"{at}: duplicate field (line {key.start_mark.line + 1}), the last one counts"
            keys.add(name)
            yield from _duplicates(value, at, seen)


def _syntax(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # characters that YAML does not allow
        return f"YAML: {' '.join(str(error).split())}"
    what = ", ".join(part for part in (error.context, error.problem) if part)  # type: ignore[attr-defined]
    return f"YAML: line {mark.line + 1}, column {mark.column + 1}: {what}"


class _Reader:
    """Fits plain values to the schema, and collects what does not fit."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def block(self, kind: type[_S], value: object, path: str) -> _S:
        """Reads a map into a struct. Null is absent, as in Go."""
        if not isinstance(value, dict):
            self.problems.append(Problem(path, f"must be a map, got {show(value)}"))
            return kind()
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        given: dict[str, Any] = {}
        for key, item in value.items():
            at = f"{path}.{key}" if path else str(key)
            field = fields.get(key)
            if field is None:
                self.warnings.append(f"{at}: unknown field, ignored")
                continue
            result = None if item is None else self.value(field.type, item, at)
            if result is None or (at in ZERO_MEANS_DEFAULT and not result):
                continue
            given[field.name] = result
        return kind(**given)

    def value(self, kind: Any, value: object, path: str) -> Any:
        """Reads one value; None where it has a problem."""
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self.block(kind, value, path)
        if get_origin(kind) is tuple:
            return self.items(get_args(kind)[0], value, path)
        if get_origin(kind) is dict:
            return self.entries(get_args(kind)[1], value, path)
        try:
            return _LEAVES[kind](value)
        except ValueError as error:
            self.problems.append(Problem(path, str(error)))
            return None

    def items(self, kind: Any, value: object, path: str) -> tuple[Any, ...] | None:
        """Reads a list, each of its items on its own."""
        if not isinstance(value, list):
            self.problems.append(Problem(path, f"must be a list, got {show(value)}"))
            return None
        results = [self.value(kind, item, f"{path}[{index}]") for index, item in enumerate(value)]
        return None if None in results else tuple(results)

    def entries(self, kind: Any, value: object, path: str) -> dict[str, Any] | None:
        """Reads a map whose keys are the user's."""
        if not isinstance(value, dict):
            self.problems.append(Problem(path, f"must be a map, got {show(value)}"))
            return None
        results = {str(key): self.value(kind, item, f"{path}.{key}") for key, item in value.items()}
        return None if None in results.values() else results


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text (quote it if it is), got {show(value)}")
    return value


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, got {show(value)}")
    return value


def _int32(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, got {show(value)}")
    if not -(2**31) <= value < 2**31:
        raise ValueError("is a number too large for 32 bits")
    return value


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
    return value / 1e9


def _quantity(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _QUANTITY.fullmatch(text):
        raise ValueError(f'must be a quantity such as "64Ki", got {show(value)}')
    return text


_LEAVES: dict[Any, Callable[[object], Any]] = {
    str: _text,
    str | None: _text,
    bool: _bool,
    int: _int32,
    float: _number,
    Seconds: _seconds,
    SecondsOrNanoseconds: _seconds_or_nanoseconds,
    Quantity: _quantity,
}
