"""One log for everything: structlog events and what libraries say through the standard library, as text or as JSON."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING, TextIO

# structlog imports rich wherever it finds it (the linters bring it along): 4.3 MB that the daemon has no use for.
# Of use only where this module is imported before structlog is.
_HIDDEN = "rich"
if _HIDDEN not in sys.modules:
    sys.modules[_HIDDEN] = None  # type: ignore[assignment]
import structlog  # noqa: E402
import structlog.dev  # noqa: E402
import structlog.processors  # noqa: E402
import structlog.tracebacks  # noqa: E402

if sys.modules[_HIDDEN] is None:
    del sys.modules[_HIDDEN]

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

FORMATS = ("", "text", "json")


def configure(log_format: str = "", verbosity: int = 0, stream: TextIO | None = None) -> None:
    """Sets up the log of the whole process; called once, before anything is logged (loggers may have been made).

    ``log_format`` is "text", "json" or "" (text on a terminal, else JSON). ``verbosity`` above 0 shows debug events
    of our own, below 0 nothing but warnings; libraries are heard from WARNING on. ``stream`` is standard error unless
    given.
    """
    if log_format not in FORMATS:
        raise ValueError(f"unknown log format {log_format!r}")
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    as_text = log_format == "text" or (log_format == "" and terminal)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            _add_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_text(colors=terminal) if as_text else _json()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_level(verbosity)),
        logger_factory=_OutputFactory(stream),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Bridge()]
    root.setLevel(logging.WARNING)


def _level(verbosity: int) -> int:
    return logging.DEBUG if verbosity > 0 else logging.INFO if verbosity == 0 else logging.WARNING


def _add_name(logger: _Output, _method: str, event: EventDict) -> EventDict:
    if logger.name:
        event["logger"] = logger.name
    return event


def _text(*, colors: bool) -> list[Processor]:
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]


def _json() -> list[Processor]:
    # Never the local variables of a traceback: they may hold tokens.
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer(default=str)]


class _Output(structlog.WriteLogger):
    """Writes lines; a log that can no longer be written (its reader is gone) must not stop a sync pass."""

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self.name = name

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _OutputFactory:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __call__(self, name: str = "") -> _Output:
        return _Output(self._stream, name)


class _Bridge(logging.Handler):
    """Hands records of the standard library's loggers (urllib3, asyncio, ...) to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - a library's broken format string, shown as it is
            message = str(record.msg)
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        # structlog knows the five standard levels only.
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        structlog.get_logger(record.name).log(level, message, **({"exc_info": exc_info} if exc_info else {}))
