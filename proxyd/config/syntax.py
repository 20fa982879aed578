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


class _Loader(_Base):
    """SafeLoader that keeps dates as text, knows 1e3 as a number, and fails in one way only: by a YAMLError."""

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


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes what _Loader would take for a number."""


# YAML 1.1 as PyYAML has it wants a dot and a sign; Go and JSON do not.
_EXPONENT = re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+$")
for _each in (_Loader, _Dumper):
    _each.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


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
