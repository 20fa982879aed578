"""JSON that is nested deeper than msgspec goes: what lies too deep is left out, and the rest is read.

msgspec descends also into what it only skips, and raises RecursionError (which is no MsgspecError) at Python's limit, near
1,000 levels. The API server takes objects of 10,000 levels, as Go's JSON reader does, and one of them must not end a watch.
Nothing that proxyd reads lies deeper than about ten.
"""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

# Levels that are read of what is nested too deep.
LEVELS = 100
# A string (the last one may be cut off) or a bracket. Possessive, for else strings without an end take quadratic time.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[][{}]', re.DOTALL)


def decode(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """Decodes JSON of any depth. Raises ``msgspec.MsgspecError``."""
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(_without_depths(bytes(data)))


def _without_depths(data: bytes) -> bytes:
    """The JSON with null for each object or array below ``LEVELS``."""
    parts: list[bytes] = []
    depth = kept = 0
    for token in _TOKEN.finditer(data):
        match token.group():
            case b"{" | b"[":
                if depth == LEVELS:
                    parts += data[kept : token.start()], b"null"
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth == LEVELS:
                    kept = token.end()
    if depth <= LEVELS:
        parts.append(data[kept:])
    return b"".join(parts)
