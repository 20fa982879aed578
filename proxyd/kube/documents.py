"""The documents of a manifest file as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import yaml

from proxyd.kube import nesting

_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """SafeLoader that fails in one way only: by a YAMLError."""


def _checked(loader: Any, node: yaml.Node) -> Any:
    try:
        return _Base.yaml_constructors[node.tag](loader, node)
    except (ValueError, LookupError, AttributeError, ArithmeticError) as error:
        # PyYAML lets these through for text that does not fit its (often explicit) tag: `!!bool maybe`.
        tag = node.tag.rpartition(":")[2]
        raise yaml.constructor.ConstructorError(None, None, f"not a valid {tag}", node.start_mark) from error


# Only these compute. Checked in ``construct_object``, through which every value goes, files take twice the time to read.
for _tag in ("bool", "int", "float", "timestamp"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _checked)


def documents(data: bytes, name: str) -> Iterator[Any]:
    """Gives the documents of the file of that name. Raises ValueError, RecursionError or ``msgspec.MsgspecError``."""
    if name.endswith(".json"):
        if data.strip():
            yield nesting.decode(_JSON, data)
        return
    try:
        yield from yaml.load_all(data, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"invalid YAML: {error}") from error
