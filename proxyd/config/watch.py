"""The file of --config while proxyd runs: what becomes of a change to it.

kube-proxy ends with an error as soon as the file is written. Here the new content is read first: nonsense changes nothing
but is told, what means the same changes nothing, and only a usable other configuration ends the process, to be started
anew with it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import structlog

from proxyd.config.effective import Config, differences
from proxyd.errors import UserError
from proxyd.model import Finding, Reason

# Seconds between two looks at the file's status. A mounted ConfigMap takes the kubelet up to a minute, so inotify would
# gain nothing, and it misses links into other folders and single files that are mounted.
INTERVAL = 0.5

log = structlog.get_logger("proxyd.config")

_Stamp = tuple[int, ...] | None


class ConfigWatch:
    """Follows one file from a thread of its own. ``findings`` may be read from any thread."""

    def __init__(
        self,
        path: str,
        running: Config,
        read_again: Callable[[], Config],
        check: Callable[[Config], None],
        changed: Callable[[], None],
        attention: Callable[[], None],
    ) -> None:
        """``running`` is the Config in force, ``read_again`` gives what file and flags say now and raises UserError.

        ``check`` raises UserError where a Config could not be started with; ``changed`` is called once, when another
        one should be; ``attention`` whenever ``findings`` have changed.
        """
        self.findings: tuple[Finding, ...] = ()
        self._path = path
        self._running = running
        self._read_again = read_again
        self._check = check
        self._changed = changed
        self._attention = attention
        self._seen: _Stamp = None
        # Nothing yet: what came between the first reading and the first look is noticed too.
        self._weighed: _Stamp = (0,)
        self._problems: tuple[str, ...] = ()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="config", daemon=True)

    def start(self) -> None:
        """Begins to follow the file. To be called once."""
        self._thread.start()

    def stop(self, timeout: float = 0.5) -> None:
        """Ends the thread, waiting ``timeout`` seconds at most."""
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            if self.look():
                self._changed()
                return

    def look(self) -> bool:
        """Looks at the file once, and tells whether it is time to end. A change counts once it is the same in two looks.

        (It may be in the middle of being written, and half a configuration can be a good one.)
        """
        stamp = _stamp(self._path)
        settled, self._seen = stamp == self._seen, stamp
        if not settled or stamp == self._weighed:
            return False
        self._weighed = stamp
        problems, changes = self._weigh()
        if problems != self._problems:
            self._tell(problems)
        if changes:
            log.info(
                "the configuration has changed, ending to be started with it; all rules stay",
                changed=", ".join(changes),
            )
        return bool(changes)

    def _weigh(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Gives what is wrong with the file, and if nothing is, which fields mean something else now."""
        try:
            new = self._read_again()
            changes = differences(self._running, new)
            if changes:
                self._check(new)
        except UserError as error:
            return tuple(str(error).splitlines()), ()
        except Exception as error:  # a fault of our own must not end what works
            log.exception("fault in reading the configuration")
            return (f"internal error: {error!r}",), ()
        return (), changes

    def _tell(self, problems: tuple[str, ...]) -> None:
        self._problems = problems
        for each in problems:
            log.error("the new configuration is not used", file=self._path, problem=each)
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            message = f"not used, the old one stays in force: {problems[0]}{more}"
            self.findings = (Finding("KubeProxyConfiguration", self._path, Reason.CONFIGURATION_REFUSED, message),)
        else:
            log.info("the configuration file is right again", file=self._path)
            self.findings = ()
        self._attention()


def _stamp(path: str) -> _Stamp:
    """What tells that a file was written or replaced, links followed; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
