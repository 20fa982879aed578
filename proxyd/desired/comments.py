"""Which names of objects may be in comments of rules, the only place in rule text that names come into.

An API server lets no others in; a manifest may hold anything.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9./:_-]+")


def fits_comments(name: str) -> bool:
    """Whether a name holds nothing that names of objects cannot hold, so nothing that could end a comment."""
    return _NAME.fullmatch(name) is not None
