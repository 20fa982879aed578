"""The command line: ``proxyd [run]`` and other commands; a user error is one message and a status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from proxyd import __version__, logs
from proxyd.asking import check_words
from proxyd.config import CommandLine, Config, ConfigError, as_file, load, options, read_arguments
from proxyd.ending import Ending
from proxyd.errors import CannotWorkHereError, UserError

USAGE = 2
FAILURE = 1
# Of the commands explain, drain and plan: nobody here can answer.
NO_ANSWER = 4
# As of programs that SIGINT and SIGPIPE end.
INTERRUPTED, READER_QUIT = 130, 141
COMMANDS = ("run", "status", "history", "explain", "drain", "plan", "cleanup")
# Of the command cleanup only.
OWN = "--own"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status: 0 done, 1 cannot work here, 2 the user's input is wrong, 3 start me anew,
    130 interrupted, 141 nobody reads the output any more; others are a command's own.
    """
    try:
        try:
            return _command(list(sys.argv[1:] if argv is None else argv))
        finally:
            # Not left to the end of Python, which complains of a reader that has quit.
            print(end="", flush=True)  # noqa: T201
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for output in (1, 2):
            os.dup2(nowhere, output)
        return READER_QUIT


def _command(arguments: list[str]) -> int:
    """Runs a command; gives the exit status. What is wrong is told on standard error."""
    command = arguments.pop(0) if arguments and arguments[0] in COMMANDS else "run"
    own_only = command == "cleanup" and OWN in arguments
    if own_only:
        arguments.remove(OWN)
    try:
        if command in QUESTIONS:
            check_words(arguments)
            return QUESTIONS[command](arguments)
        return _dispatch(command, read_arguments(arguments), own_only=own_only)
    except UserError as error:
        return _fail(str(error), USAGE)
    except CannotWorkHereError as error:
        return _fail(str(error), NO_ANSWER if command in ("explain", "drain", "plan") else FAILURE)


def _dispatch(command: str, line: CommandLine, *, own_only: bool) -> int:
    """Does what is asked for, in kube-proxy's order. Source: cmd/kube-proxy/app/options.go, Run."""
    asked = options(line)
    if asked.help:
        from proxyd.config.usage import usage  # noqa: PLC0415

        return _say(usage())
    if asked.version:
        return _say(f"proxyd {__version__}\n")
    if command == "cleanup" or (asked.cleanup and not asked.write_config_to):
        # Rules have to go whatever the rest of the configuration says.
        if problems := (*line.problems, *asked.problems):
            raise ConfigError(tuple(map(str, problems)))
        return cleanup(own_only=own_only)
    config = load(line)
    logs.configure(config.logging_format, config.verbosity)
    if asked.write_config_to:
        return write_config(config, asked.write_config_to)
    if asked.init_only:
        return init_only(config)
    return run(replace(config, given=line.given), asked.config, lambda: load(line))


def run(config: Config, file: str, read_again: Callable[[], Config]) -> int:
    """Runs the daemon; raises what keeps it from starting. ``file`` is that of --config, or ""."""
    ending = Ending()
    ending.on_signals()
    # Imported late, so that --help and configuration errors are quick.
    from proxyd import daemon  # noqa: PLC0415

    return daemon.run(config, file, read_again, ending)


def init_only(config: Config) -> int:
    """Sets on this host what needs full privileges, so that proxyd can then run with NET_ADMIN alone.

    Raises ``CannotWorkHereError`` where anything could not be set, with all of it in the message.
    """
    from proxyd.kernel.host_settings import apply_settings  # noqa: PLC0415

    outcome = apply_settings(config, init_only=True)
    if outcome.failed:
        raise CannotWorkHereError("\n".join(outcome.failed.values()))
    return _say(f"host settings: {outcome.summary}\n")


def write_config(config: Config, path: str) -> int:
    """Writes the configuration in effect as a file that means the same."""
    text, lost = as_file(config)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            f"--write-config-to: cannot write {path!r}: {getattr(error, 'strerror', None) or error}"
        ) from None
    for each in (*config.warnings, *lost):
        _complain(each)
    return 0


def cleanup(*, own_only: bool = False) -> int:
    """Removes all rules of proxyd and of kube-proxy from this network namespace, or with ``own_only`` proxyd's."""
    from proxyd.cleanup import cleanup as clean  # noqa: PLC0415

    return clean(own_only=own_only)


def status(arguments: Sequence[str]) -> int:
    """Prints the report of the proxyd that runs in this network namespace; the status is 1 where it is not ready."""
    parser = argparse.ArgumentParser(prog="proxyd status", description=status.__doc__, allow_abbrev=False)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="for people or for programs")
    output = parser.parse_args(arguments).output
    from proxyd.serve.ask import ask, decoded  # noqa: PLC0415
    from proxyd.serve.report import PATH, Report  # noqa: PLC0415
    from proxyd.serve.report_text import report_text  # noqa: PLC0415

    body = ask(PATH)
    report = decoded(body, Report)
    sys.stdout.write(body.decode() if output == "json" else report_text(report))
    return 0 if report.ready else FAILURE


def explain(arguments: Sequence[str]) -> int:
    """Tells what becomes of a connection; see ``explaining`` for the exit status."""
    from proxyd.explaining import explain as answer  # noqa: PLC0415

    return answer(arguments)


def drain(arguments: Sequence[str]) -> int:
    """Lists endpoints that terminate or are gone and still hold connections; see ``draining`` for the exit status."""
    from proxyd.draining import drain as answer  # noqa: PLC0415

    return answer(arguments)


def history(arguments: Sequence[str]) -> int:
    """Prints the last changes, and follows them; see ``history``."""
    from proxyd.history import history as show  # noqa: PLC0415

    return show(arguments)


def plan(arguments: Sequence[str]) -> int:
    """Tells what would change; see ``planning`` for the exit status."""
    from proxyd.planning import plan as make  # noqa: PLC0415

    return make(arguments)


QUESTIONS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "status": status,
    "history": history,
    "explain": explain,
    "drain": drain,
    "plan": plan,
}


def _say(text: str) -> int:
    print(text, end="")  # noqa: T201 - what was asked for
    return 0


def _complain(text: str) -> None:
    print(f"proxyd: {text}", file=sys.stderr)  # noqa: T201 - before and beside the log


def _fail(message: str, status: int) -> int:
    for each in message.splitlines():
        _complain(each)
    return status
