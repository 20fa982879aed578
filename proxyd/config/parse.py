"""Text to a Document. What fits no type is a problem, what fits no field is a warning.

kube-proxy decodes strictly, and on a failure that is only strict (unknown or duplicate fields) again leniently, logging
the strict error; so such a file starts here too. Source: cmd/kube-proxy/app/options.go, loadConfig.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from proxyd.config.schema import API_VERSION, KIND, ZERO_MEANS_DEFAULT, Document, Problem
from proxyd.config.syntax import read_yaml
from proxyd.config.values import LEAVES, show, show_name

_S = TypeVar("_S", bound=msgspec.Struct)

# After this many unknown fields it is said that there are more: the file is something else.
_UNKNOWN_SHOWN = 50


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
        raw, warnings = read_yaml(text)
    except ValueError as error:
        return Parsed(Document(), (Problem("", str(error)),))
    if not isinstance(raw, dict):
        found = "nothing" if raw is None else show(raw)
        return Parsed(Document(), (Problem("", f"must be a map, a {KIND}; found {found}"),), warnings)
    reader = _Reader()
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if raw.get(name) != expected:
            reader.problems.append(Problem(name, f'must be "{expected}", got {show(raw.get(name))}'))
    body = {key: value for key, value in raw.items() if key not in ("apiVersion", "kind")}
    document = reader.block(Document, body, "")
    return Parsed(document, tuple(reader.problems), (*warnings, *reader.unknown()))


def closest(name: str, names: Iterable[str]) -> str:
    """Gives `` (did you mean NAME?)`` for what looks like a typing error of one of the names, else nothing."""
    by_lower = {each.lower(): each for each in names}
    found = get_close_matches(name.lower()[:64], by_lower, n=1, cutoff=0.8)
    return f" (did you mean {by_lower[found[0]]}?)" if found else ""


class _Reader:
    """Fits plain values to the schema, and collects what does not fit."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._unknown: list[str] = []

    def unknown(self) -> tuple[str, ...]:
        """A line for each unknown field, up to a sensible number."""
        more = len(self._unknown) - _UNKNOWN_SHOWN
        return (*self._unknown[:_UNKNOWN_SHOWN], *([f"{more} more unknown fields, ignored"] if more > 0 else []))

    def block(self, kind: type[_S], value: object, path: str) -> _S:
        """Reads a map into a struct. Null is absent, as in Go."""
        if not isinstance(value, dict):
            self.problems.append(Problem(path, f"must be a map, got {show(value)}"))
            return kind()
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        given: dict[str, Any] = {}
        for key, item in value.items():
            at = f"{path}.{show_name(key)}" if path else show_name(key)
            field = fields.get(key)
            if field is None:
                self._unknown.append(f"{at}: unknown field, ignored{closest(show_name(key), fields)}")
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
            return LEAVES[kind](value)
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
        results = {key: self.value(kind, item, f"{path}.{show_name(key)}") for key, item in value.items()}
        return None if None in results.values() else {show_name(key): item for key, item in results.items()}
