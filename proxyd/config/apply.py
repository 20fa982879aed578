"""What flags do to a Document, and the flags that are no field of it.

With --config the file wins and most flags are ignored, with one warning. Source: cmd/kube-proxy/app/options.go.
"""

from __future__ import annotations

from typing import NamedTuple

from proxyd.addresses import canonical
from proxyd.config.commandline import CommandLine
from proxyd.config.flags import FLAGS, Flag, switch
from proxyd.config.leftovers import LEFTOVER_SWITCHES, LEFTOVER_VALUES
from proxyd.config.schema import Document, Problem, put
from proxyd.config.values import show

_LEFTOVERS = (*LEFTOVER_SWITCHES, *LEFTOVER_VALUES)
_IGNORED_BESIDE_CONFIG = ("--master", "--healthz-port", "--metrics-port")
_PORT_OF = {"--healthz-port": "healthzBindAddress", "--metrics-port": "metricsBindAddress"}
_VERSIONS = ("raw",)


class Options(NamedTuple):
    """Flags that are no field of the Document; "" where not given. ``version`` is "", "true" or "raw".

    ``page_address`` is None where not given; "" switches the status page off.
    """

    config: str = ""
    master: str = ""
    manifests: str = ""
    write_config_to: str = ""
    cleanup: bool = False
    init_only: bool = False
    version: str = ""
    help: bool = False
    page_address: str | None = None
    problems: tuple[Problem, ...] = ()


class Applied(NamedTuple):
    """A Document with flags applied. ``origins`` tells which flag set a field path, so that problems can name it.

    ``leftovers`` are flags that were given and mean nothing.
    """

    document: Document
    origins: dict[str, str]
    leftovers: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def options(line: CommandLine) -> Options:
    """Gives the flags that are no field of the Document. --master does not count beside --config."""
    problems: list[Problem] = []

    def on(name: str) -> bool:
        try:
            return switch(line.text(name) or "false")
        except ValueError as error:
            problems.append(Problem(name, str(error)))
            return False

    config, version = line.text("--config") or "", line.text("--version") or ""
    if version not in ("", *_VERSIONS):
        version = "true" if on("--version") else ""
    return Options(
        config=config,
        master="" if config else line.text("--master") or "",
        manifests=line.text("--manifests") or "",
        write_config_to=line.text("--write-config-to") or "",
        cleanup=on("--cleanup"),
        init_only=on("--init-only"),
        version=version,
        help=on("--help"),
        page_address=line.text("--page-bind-address"),
        problems=tuple(problems),
    )


def apply_flags(document: Document, line: CommandLine) -> Applied:
    """Sets the fields that flags give; beside --config only those of flags that beat the file."""
    has_file = bool(line.text("--config"))
    ignored: list[str] = []
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for flag in (each for each in FLAGS if each.name in line.given):
        if has_file and (flag.name in _IGNORED_BESIDE_CONFIG or (flag.paths and not flag.beats_file)):
            ignored.append(flag.name)
            continue
        try:
            value = flag.read(_joined(line, flag)) if flag.paths else None
            if flag.name in _PORT_OF:
                document = _deprecated_port(document, flag, line)
        except ValueError as error:
            problems.append(Problem(flag.name, str(error)))
            continue
        for path in flag.paths if value is not None else ():
            document = put(document, path, value)
            origins[path] = flag.name
    leftovers = tuple(name for name in line.given if name in _LEFTOVERS)
    warnings = (f"ignored because --config is given: {', '.join(ignored)}",) if ignored else ()
    return Applied(document, origins, leftovers, tuple(problems), warnings)


def _joined(line: CommandLine, flag: Flag) -> str:
    texts = line.given[flag.name]
    return ",".join(texts) if flag.is_list else texts[-1]


def _deprecated_port(document: Document, flag: Flag, line: CommandLine) -> Document:
    """0 means no server; another port is for an address that comes without one (addressFromDeprecatedFlags)."""
    port, path = flag.read(_joined(line, flag)), _PORT_OF[flag.name]
    if not 0 <= port <= 65535:
        raise ValueError(f"must be 0..65535, got {port}")
    if not port:
        return put(document, path, "")
    given = document.healthz_bind_address if path == "healthzBindAddress" else document.metrics_bind_address
    found = canonical(given or "")
    if found is None:
        return document
    return put(document, path, f"[{found[1]}]:{port}" if ":" in found[1] else f"{found[1]}:{port}")


def unreadable(path: str, reason: str) -> Problem:
    """The problem that the file of --config cannot be read."""
    return Problem("--config", f"cannot read {path if path.isprintable() else show(path)}: {reason}")
