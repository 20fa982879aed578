"""The command lines of the commands that ask: a name, flags of their own, and beside them those of ``run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxyd.config import CommandLine, ConfigError, read_arguments
from proxyd.errors import UserError

OUTPUT = "--output"
_LETTERS = {"o": OUTPUT}


class Given(NamedTuple):
    """A command line: the name in front ("": none), the command's own flags ("" where not given), and those of ``run``."""

    name: str
    own: Mapping[str, str]
    line: CommandLine

    @property
    def as_json(self) -> bool:
        """Whether the answer is for programs."""
        return self.own[OUTPUT] == "json"


def read_line(arguments: Sequence[str], flags: Mapping[str, bool], *, named: bool = False) -> Given:
    """Takes arguments apart. ``flags`` are the command's own, each with whether it stands alone; all have ``--output``.

    ``named``: a name may come first. Raises ``UserError``, for all problems at once where flags have them.
    """
    rest = list(arguments)
    name = rest.pop(0) if named and rest and not rest[0].startswith("-") else ""
    flags = {OUTPUT: False, **flags}
    read = read_arguments(rest, flags, _LETTERS)
    if read.problems:
        raise ConfigError(tuple(map(str, read.problems)))
    own = {flag: read.text(flag) or "" for flag in flags}
    if own[OUTPUT] not in ("", "text", "json"):
        raise UserError(f"{OUTPUT}: must be text or json, got {own[OUTPUT]!r}")
    return Given(name, own, CommandLine({flag: texts for flag, texts in read.given.items() if flag not in flags}))
