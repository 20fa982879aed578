"""The text of --help: commands and flags in groups, one line each where it fits."""

from __future__ import annotations

import textwrap

from proxyd.config.flags import GROUPS, Flag
from proxyd.config.leftovers import LEFTOVER_SWITCHES

WIDTH = 100
_COLUMN = 44

_HEAD = """\
proxyd: a node proxy for Kubernetes, with kube-proxy's flags and configuration.

  proxyd [run] [flags]   serves until it is told to end
  proxyd status          tells how the proxyd in this network namespace stands
  proxyd explain         tells what becomes of a connection to a Service, and why
  proxyd plan            tells what another configuration, mode or other objects would change
  proxyd history         tells the last changes, and what caused each
  proxyd drain           tells which endpoints that end still hold connections
  proxyd cleanup         deletes all rules of proxyd and of kube-proxy here; --own: only proxyd's
"""


def usage() -> str:
    """Gives the whole text, ending in a line end."""
    groups = (f"\n{title}:\n" + "".join(_line(flag) for flag in flags) for title, flags in GROUPS.items())
    leftovers = f"  and flags of older kube-proxies, such as {' and '.join(LEFTOVER_SWITCHES[-4:-2])}\n"
    return f"{_HEAD}{''.join(groups)}{leftovers}"


def _line(flag: Flag) -> str:
    letter = f"-{flag.letter}, " if flag.letter else ""
    start = f"  {letter}{flag.name}{f' {flag.metavar}' if flag.metavar.strip() else ''}"
    said = textwrap.wrap(flag.help, WIDTH - _COLUMN)
    if said and len(start) <= _COLUMN - 2:
        start = f"{start:<{_COLUMN}}{said.pop(0)}"
    return "\n".join([start, *(f"{'':{_COLUMN}}{each}" for each in said)]) + "\n"
