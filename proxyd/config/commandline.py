"""Arguments to flags and their texts, by the rules of Go's pflag, which kube-proxy's command lines are written for.

``--flag value``, ``--flag=value``, ``--flag`` alone for a switch, underscores for dashes, ``-v4``, ``-v=4``, ``-v 4``; a
flag that needs a value takes the next argument whatever it looks like. Source: github.com/spf13/pflag, and
k8s.io/component-base/cli/flag for the underscores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from proxyd.config.parse import closest
from proxyd.config.schema import Problem
from proxyd.config.values import show


class CommandLine(NamedTuple):
    """What was given: the texts of each flag by its name (``--v``), in order, and what could not be understood."""

    given: dict[str, tuple[str, ...]]
    problems: tuple[Problem, ...] = ()

    def text(self, name: str) -> str | None:
        """The last text of a flag, None where it is not given."""
        texts = self.given.get(name)
        return texts[-1] if texts else None


def read(arguments: Sequence[str], switches: Mapping[str, bool], letters: Mapping[str, str]) -> CommandLine:
    """Takes arguments apart. Raises nothing: all that is wrong is in ``problems``.

    ``switches`` has all flags by name and tells which are switches, whose value may be left out (it is "true" then);
    ``letters`` gives the flag that a single letter stands for.
    """
    given: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, text = _split(argument, letters)
        if not name:
            positional = [*rest] if argument == "--" else [argument]
            problems += [Problem("", f"takes no arguments, only flags; got {show(each)}") for each in positional]
            if argument == "--":
                break
        elif name not in switches:
            problems.append(Problem(_shown(name), f"unknown flag{closest(name, switches)}"))
        elif text is not None or switches[name]:
            given[name] = (*given.get(name, ()), "true" if text is None else text)
        elif rest:
            given[name] = (*given.get(name, ()), rest.pop(0))
        else:
            problems.append(Problem(name, "needs a value"))
    return CommandLine(given, tuple(problems))


def _split(argument: str, letters: Mapping[str, str]) -> tuple[str, str | None]:
    """Gives the flag ("" where it is none) and the text that came with it."""
    if not argument.startswith("-") or argument in ("-", "--"):
        return "", None
    name, equals, text = argument.partition("=")
    if name.startswith("--"):
        return name.replace("_", "-"), text if equals else None
    if letter := letters.get(argument[1]):
        return letter, argument[2:].removeprefix("=") if len(argument) > 2 else None
    return name, text if equals else None


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) <= 64 else show(name)
