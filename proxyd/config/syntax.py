"""Text to plain values: YAML (or JSON, which is YAML) as kube-proxy's reader takes it, within bounds.

libyaml's scanner is used where it is there, of which kube-proxy's is a translation: the same tabs and the same depths are
allowed. Source: sigs.k8s.io/yaml, which reads the first document and forgets the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from proxyd.config.values import show_name

# Characters. A complete configuration has about 2,000.
LONGEST = 256 * 1024
# Values, with every alias counted as what it stands for: a small text can say exponentially many.
MOST_VALUES = 50_000

if TYPE_CHECKING:
    _Base = yaml.SafeLoader
else:
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Plain(NamedTuple):
    """The first document as plain values, and what was odd about the text."""

    value: Any
    warnings: tuple[str, ...] = ()


def read_yaml(text: str) -> Plain:
    """Reads the first document of a text. Raises ValueError, on one line and with the place where there is one."""
    if len(text) > LONGEST:
        raise ValueError(f"is too long: {len(text)} characters, of at most {LONGEST}")
    text = text.removeprefix("\ufeff")
    try:
        return _first_document(_Loader(text))
    except yaml.YAMLError as error:
        if (plain := _as_json(text)) is not None:
            return plain
        raise ValueError(_one_line(error)) from error
    except RecursionError:
        raise ValueError("YAML: nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("YAML: unacceptable character: half of a surrogate pair") from None


# What plain text is, as goyaml has it (resolve.go). PyYAML's own rules differ: 1:30 is a number, 1e3 and 0o17 are none,
# y is text, 2024-01-01 is a date.
_PLAIN = {
    "bool": r"y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON|n|N|no|No|NO|false|False|FALSE|off|Off|OFF",
    "float": r"[-+]?([0-9][0-9_]*\.[0-9_]*([eE][-+]?[0-9]+)?|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
    r"|\.(inf|Inf|INF))|\.(nan|NaN|NAN)",
    "int": r"[-+]?(0b[01_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)",
    "merge": r"<<",
    "null": r"~|null|Null|NULL|",
}
_RESOLVERS = [(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$")) for tag, pattern in _PLAIN.items()]


class _Loader(_Base):
    """SafeLoader with the rules above, which fails in one way only: by a YAMLError."""

    yaml_implicit_resolvers = {None: _RESOLVERS}  # noqa: RUF012 - PyYAML's own attribute; None: whatever it begins with
    bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}  # noqa: RUF012 - the same

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Builds the value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            # PyYAML lets these through for text that does not fit its (often explicit) tag: `!!bool maybe`.
            tag = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {tag}", node.start_mark) from error


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what _Loader would not take for text."""

    yaml_implicit_resolvers = {None: _RESOLVERS}  # noqa: RUF012


def write_yaml(value: Any) -> str:
    """Gives the text of plain values, from which ``read_yaml`` reads the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=True, width=10_000)


def _as_json(text: str) -> Plain | None:
    """Reads what is JSON and, by a hair, not YAML (escapes such as ``\\/`` and surrogate pairs); None for anything else."""
    try:
        return Plain(json.loads(text)) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return None


def _first_document(loader: _Loader) -> Plain:
    node = loader.get_node() if loader.check_node() else None
    if node is None:
        return Plain(None)
    if _values_in(node, {}) > MOST_VALUES:
        raise ValueError(f"has more than {MOST_VALUES} values (aliases count as what they stand for)")
    warnings = list(_duplicates(node, "", set()))
    if _goes_on(loader):
        warnings.append("the file has more than one YAML document: only the first is read")
    return Plain(loader.construct_document(node), tuple(warnings))


def _goes_on(loader: _Loader) -> bool:
    """Tells whether a second document begins, readable or not."""
    try:
        return loader.check_node()
    except yaml.YAMLError:
        return True


def _values_in(node: yaml.Node, known: dict[int, int]) -> int:
    """Counts the values of a document, with aliases written out. Raises ValueError where one is inside itself."""
    if (count := known.get(id(node))) is not None:
        if not count:
            raise ValueError(f"YAML: line {node.start_mark.line + 1}: an alias is inside of what it stands for")
        return count
    known[id(node)] = 0  # until it is counted: whoever meets it now is inside it
    count = 1
    if isinstance(node, yaml.SequenceNode):
        count += sum(_values_in(item, known) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_values_in(key, known) + _values_in(value, known) for key, value in node.value)
    known[id(node)] = count
    return count


def _duplicates(node: yaml.Node, path: str, seen: set[int]) -> Iterator[str]:
    if id(node) in seen:  # an alias
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicates(item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            name = show_name(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            at = f"{path}.{name}" if path else name
            if name in keys:
                yield f"{at}: duplicate field (line {key.start_mark.line + 1}), the last one counts"
            keys.add(name)
            yield from _duplicates(value, at, seen)


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:  # characters that YAML does not allow
        return f"YAML: {' '.join(str(error).split())}"
    what = ", ".join(part for part in (error.context, error.problem) if part)  # type: ignore[attr-defined]
    return f"YAML: line {mark.line + 1}, column {mark.column + 1}: {what}"
