"""The command lines of the commands that ask: a name, flags of their own, and beside them those of ``run``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxyd.config import CommandLine, ConfigError, Problem, read_arguments
from proxyd.config.flags import switch
from proxyd.errors import UserError

OUTPUT = "--output"
_LETTERS = {"o": OUTPUT}
# Flags with which ``run`` does something else than run: nothing to ask about.
_DEEDS = ("--cleanup", "--init-only", "--write-config-to", "--version")


class Given(NamedTuple):
    """A command line: the name in front ("": none), the command's own flags, and those of ``run``.

    ``own`` are the flags with a text ("" where not given), ``switches`` those without (False where not given).
    """

    name: str
    own: Mapping[str, str]
    switches: Mapping[str, bool]
    line: CommandLine

    @property
    def as_json(self) -> bool:
        """Whether the answer is for programs."""
        return self.own[OUTPUT] == "json"


def check_words(arguments: Sequence[str]) -> None:
    """Raises ``UserError`` where arguments are no text: questions are put, and answered, in UTF-8."""
    for each in arguments:
        try:
            each.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"arguments must be UTF-8, got {os.fsencode(each).decode(errors='backslashreplace')}"
            ) from None


def read_line(arguments: Sequence[str], flags: Mapping[str, bool], *, named: bool = False) -> Given:
    """Takes arguments apart. ``flags`` are the command's own, each with whether it is a switch; all have ``--output``.

    ``named``: a name may come first. Raises ``UserError``, for all problems at once where flags have them.
    """
    rest = list(arguments)
    name = rest.pop(0) if named and rest and not rest[0].startswith("-") else ""
    flags = {OUTPUT: False, **flags}
    read = read_arguments(rest, flags, _LETTERS)
    problems, switches = list(read.problems), {}
    problems += [Problem(flag, "goes with the command run only") for flag in _DEEDS if flag in read.given]
    for flag in (flag for flag, alone in flags.items() if alone):
        try:
            switches[flag] = switch(read.given.get(flag, ("false",))[-1])
        except ValueError as error:
            problems.append(Problem(flag, str(error)))
    if problems:
        raise ConfigError(tuple(map(str, problems)))
    own = {flag: read.text(flag) or "" for flag, alone in flags.items() if not alone}
    if own[OUTPUT] not in ("", "text", "json"):
        raise UserError(f"{OUTPUT}: must be text or json, got {own[OUTPUT]!r}")
    line = CommandLine({flag: texts for flag, texts in read.given.items() if flag not in flags})
    return Given(name, own, switches, line)
