"""``proxyd history``: asks the running proxyd for its last changes, and goes on asking where they are to be followed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from proxyd.errors import UserError
from proxyd.serve.ask import ask, decoded
from proxyd.serve.history import Page, Wanted, service_name
from proxyd.serve.history_text import dropped_text, entry_text

# How often whoever follows asks (seconds).
EVERY = 1.0
# Lines that are shown where nothing else is asked for.
SHOWN = 20


def history(arguments: Sequence[str]) -> int:
    """Prints the last changes, newest last: what caused each, which Services, what was written and how long it took."""
    asked = _parser().parse_args(arguments)
    if asked.number < 0:
        raise UserError(f"-n: must be a number from 0 on, got {asked.number}")
    wanted = Wanted(0, asked.number, service_name(asked.service))
    as_json = asked.output == "json"
    if asked.follow:
        for line in follow(wanted, ask, time.sleep, as_json=as_json):
            print(line, flush=True)  # noqa: T201 - what was asked for
    else:
        sys.stdout.write(told(ask(wanted.path), as_json=as_json))
    return 0


def told(body: bytes, *, as_json: bool) -> str:
    """An answer of the running proxyd, as a document or in lines."""
    page = decoded(body, Page)
    if as_json:
        return msgspec.json.format(body, indent=2).decode() + "\n"
    return "".join(f"{entry_text(each)}\n" for each in page.entries)


def follow(
    wanted: Wanted, fetch: Callable[[str], bytes], sleep: Callable[[float], None], *, as_json: bool
) -> Iterator[str]:
    """Lines for what is wanted, and then for all that comes, without end.

    ``fetch`` answers a path; ``sleep`` waits so many seconds. After a restart, the changes of the new proxyd are shown from
    its first one on. Raises what ``fetch`` raises.
    """
    run, first = "", True
    while True:
        page = decoded(fetch(wanted.path), Page)
        if not first and page.run != run:
            wanted = wanted._replace(after=0, limit=None)
            page = decoded(fetch(wanted.path), Page)
        elif not first and page.dropped and not as_json:
            yield dropped_text(page.dropped)
        run, first = page.run, False
        for each in page.entries:
            yield msgspec.json.encode(each).decode() if as_json else entry_text(each)
        wanted = wanted._replace(after=page.last, limit=None)
        sleep(EVERY)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="proxyd history", description=history.__doc__, allow_abbrev=False)
    parser.add_argument("service", nargs="?", default="", metavar="NAMESPACE/NAME", help="only changes of this Service")
    parser.add_argument("-n", "--number", type=int, default=SHOWN, metavar="N", help=f"how many at most ({SHOWN})")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with changes as they come")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="for people or for programs")
    return parser
