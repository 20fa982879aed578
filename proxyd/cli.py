"""The command line: ``proxyd [run]``, ``status``, ``cleanup``; every user error becomes one message and a status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from proxyd import __version__, logs
from proxyd.config import Config, add_flags, load
from proxyd.errors import CannotWorkHereError, UserError

USAGE = 2
FAILURE = 1
COMMANDS = ("run", "status", "cleanup")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status: 0 done, 1 cannot work here, 2 the user's input is wrong."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments and arguments[0] in COMMANDS else "run"
    if command == "cleanup":
        return cleanup(arguments)
    try:
        if command == "status":
            return status(arguments)
        config = load(_run_parser().parse_args(arguments))
        logs.configure(config.logging_format, config.verbosity)
        return run(config)
    except UserError as error:
        return _fail(str(error), USAGE)
    except CannotWorkHereError as error:
        return _fail(str(error), FAILURE)


def run(config: Config) -> int:
    """Runs the daemon; raises what keeps it from starting."""
    # Imported late, so that --help and configuration errors are quick.
    from proxyd import daemon  # noqa: PLC0415

    return daemon.run(config)


def cleanup(arguments: Sequence[str]) -> int:
    """Removes all rules of proxyd and of kube-proxy from this network namespace."""
    parser = argparse.ArgumentParser(prog="proxyd cleanup", description=cleanup.__doc__, allow_abbrev=False)
    parser.add_argument("--own", action="store_true", help="remove proxyd's rules only")
    own_only = parser.parse_args(arguments).own
    from proxyd.cleanup import cleanup as clean  # noqa: PLC0415

    return clean(own_only=own_only)


def status(arguments: Sequence[str]) -> int:
    """Prints the report of the proxyd that runs in this network namespace; the status is 1 where it is not ready."""
    parser = argparse.ArgumentParser(prog="proxyd status", description=status.__doc__, allow_abbrev=False)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="for people or for programs")
    output = parser.parse_args(arguments).output
    import msgspec  # noqa: PLC0415

    from proxyd.serve.ask import ask  # noqa: PLC0415
    from proxyd.serve.report import PATH, Report  # noqa: PLC0415
    from proxyd.serve.report_text import report_text  # noqa: PLC0415

    body = ask(PATH)
    report = msgspec.json.decode(body, type=Report)
    sys.stdout.write(body.decode() if output == "json" else report_text(report))
    return 0 if report.ready else FAILURE


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="proxyd",
        description="A node proxy for Kubernetes. Commands: run (the default), status (how the one that runs here stands), "
        "cleanup (removes all rules).",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"proxyd {__version__}")
    add_flags(parser)
    return parser


def _fail(message: str, status: int) -> int:
    for line in message.splitlines():
        print(f"proxyd: {line}", file=sys.stderr)  # noqa: T201 - before and beside the log
    return status
