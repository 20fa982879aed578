"""iptables through its own tools: the rules of one family in one backend of one network namespace.

The two backends are separate rule sets that the kernel carries out one after the other. A namespace may have rules in
both, and a machine the tools for both, for one or for none.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, Protocol

from proxyd.errors import CannotWorkHereError
from proxyd.kernel.ipt.lock import XtablesLock
from proxyd.model import Family

# Seconds to wait for the lock that all users of the legacy tools on a machine share.
LOCK_WAIT = 5
_SHOWN = 600
# Characters that are given to a tool at once.
_PIECE = 1 << 16
# How text keeps bytes that are none: comments of others may hold them.
_ANY_BYTE = "surrogateescape"
# Exit status of the tools where the lock was not to be had, among other things.
_NO_RESOURCE = 4


class Backend(StrEnum):
    """Which of the kernel's two rule sets."""

    LEGACY = "legacy"
    NFT = "nft"


class IptablesUnavailableError(CannotWorkHereError):
    """The tools of a backend are not there."""


class IptablesRefusedError(Exception):
    """A call was refused: nothing of the table that it was about has been changed. The lock being held is one reason."""


class IptablesLockedError(IptablesRefusedError):
    """Somebody else held the lock of the legacy tools for too long."""


class IptablesKilledError(IptablesRefusedError):
    """The tool was ended from outside; the table that it was about may have been written."""


class Iptables(Protocol):
    """One family in one backend."""

    def tables(self) -> tuple[str, ...]:
        """The tables that exist; the legacy backend tells without its tools. Raises ``IptablesUnavailableError``."""

    def save(self, table: str) -> Iterator[str]:
        """The lines of a table as ``iptables-save`` gives them; reading a table makes it exist.

        Comments may hold any byte: what is no UTF-8 is escaped (``surrogateescape``), and ``restore`` gives it back.
        Raises ``IptablesUnavailableError``, ``IptablesRefusedError``.
        """

    def restore(self, text: str | Iterable[str]) -> None:
        """Carries out input of ``iptables-restore --noflush``, each table whole or not at all.

        Pieces are given to the tool as they come. Raises ``IptablesUnavailableError``, ``IptablesRefusedError``.
        """


class IptablesTools:
    """The real one: a process for each call, in the namespace of the thread that calls."""

    def __init__(
        self,
        family: Family,
        backend: Backend,
        path: str = "",
        lock_wait: int = LOCK_WAIT,
        author: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
        lock: XtablesLock | None = None,
    ) -> None:
        """``path`` is where the tools are, as in $PATH; ``lock_wait`` is how long to wait for the lock, in seconds.

        ``lock`` measures how long that takes, and adds a little to it.
        ``author`` is entered with the id of a process before that can change anything, and left when it has ended.
        """
        self.family = family
        self.backend = backend
        self._path = path or _usual_path()
        self._lock_wait = lock_wait
        self._author = author
        self._lock = lock
        self._names = "ip_tables_names" if family is Family.IPV4 else "ip6_tables_names"

    def tables(self) -> tuple[str, ...]:
        """See ``Iptables``."""
        if self.backend is Backend.LEGACY:
            try:
                # Not by the tool: that would load the module and make tables, which everybody then warns about.
                return tuple(Path(f"/proc/thread-self/net/{self._names}").read_text().split())
            except FileNotFoundError:
                return ()
        lines = self._lines([self._tool("save")])
        return tuple(line[1:].strip() for line in lines if line.startswith("*"))

    def save(self, table: str) -> Iterator[str]:
        """See ``Iptables``. Reads line by line, so that a large table costs no memory here."""
        return self._lines([self._tool("save"), "-t", table])

    def everything(self) -> Iterator[str]:
        """The lines of all tables that exist. Raises the errors of ``save``."""
        if self.backend is Backend.NFT:
            yield from self._lines([self._tool("save")])
            return
        for table in self.tables():
            yield from self.save(table)

    def list_chain(self, table: str, chain: str) -> Iterator[str]:
        """The rules of one chain, as ``save`` gives them. Raises the errors of ``save``."""
        return self._lines([self._tool(""), *self._wait(), "-t", table, "-S", chain])

    def version(self) -> tuple[int, ...]:
        """The tools' version. Raises ``IptablesUnavailableError``."""
        done = subprocess.run([self._tool(""), "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        found = re.search(r"\bv(\d+)\.(\d+)\.(\d+)", done.stdout)
        return tuple(map(int, found.groups())) if found else ()

    def restore(self, text: str | Iterable[str]) -> None:
        """See ``Iptables``."""
        command = [self._tool("restore"), *self._wait(), "--noflush"]
        pipe = subprocess.PIPE
        # Only the legacy tools have a lock.
        look = self._lock.call() if self._lock and self.backend is Backend.LEGACY else nullcontext()
        with (
            look,
            subprocess.Popen(command, stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe) as process,  # noqa: S603
            self._author(process.pid),
        ):
            try:
                _feed(process.stdin, (text,) if isinstance(text, str) else text)
            except BaseException:
                # Without its end, the table is left as it was.
                process.kill()
                raise
            error = process.stderr.read().decode(errors="replace") if process.stderr else ""
            status = process.wait()
        if status < 0:
            raise IptablesKilledError(f"{os.path.basename(command[0])}: ended by signal {-status}")
        if status:
            problem = _problem(command[0], status, error)
            locked = status == _NO_RESOURCE and "lock" in problem
            raise IptablesLockedError(problem) if locked else IptablesRefusedError(problem)

    def _wait(self) -> tuple[str, ...]:
        return ("-w", str(self._lock_wait))

    def _lines(self, command: list[str]) -> Iterator[str]:
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:  # noqa: S603
            # As bytes: in text, a carriage return within a comment would end the line.
            yield from (line.decode(errors=_ANY_BYTE) for line in process.stdout or ())
            error = process.stderr.read().decode(errors="replace") if process.stderr else ""
        if process.returncode:
            raise IptablesRefusedError(_problem(command[0], process.returncode, error))

    def _tool(self, what: str) -> str:
        """The path of a tool. Where there is no name for the backend, the plain one may be of it."""
        program = "iptables" if self.family is Family.IPV4 else "ip6tables"
        name, plain_name = ("-".join(filter(None, words)) for words in ((program, self.backend, what), (program, what)))
        if path := shutil.which(name, path=self._path):
            return path
        plain = shutil.which(plain_name, path=self._path)
        if plain is not None and _backend_of(plain) is self.backend:
            return plain
        raise IptablesUnavailableError(f"{name} is not there: install iptables (Debian's package has both backends)")


def _feed(stdin: IO[bytes] | None, pieces: Iterable[str]) -> None:
    """Gives text to a process, in larger pieces. One that ends early says why elsewhere."""
    if stdin is None:
        raise ValueError("no pipe")
    kept: list[str] = []
    size = 0
    try:
        for piece in pieces:
            kept.append(piece)
            size += len(piece)
            if size >= _PIECE:
                stdin.write("".join(kept).encode(errors=_ANY_BYTE))
                kept, size = [], 0
        stdin.write("".join(kept).encode(errors=_ANY_BYTE))
        stdin.close()
    except BrokenPipeError:
        with suppress(BrokenPipeError):
            stdin.close()


def _usual_path() -> str:
    """Where to look: services are often started without the folders of system administration."""
    return os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


def plain_backend() -> Backend | None:
    """The backend of the host's own ``iptables``, None where there is none."""
    plain = shutil.which("iptables", path=_usual_path())
    return _backend_of(plain) if plain is not None else None


def _backend_of(tool: str) -> Backend:
    done = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
    return Backend.NFT if "nf_tables" in done.stdout else Backend.LEGACY


def _problem(tool: str, status: int, error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith("Try ")]
    return f"{os.path.basename(tool)}: {'; '.join(lines) or f'exit status {status}'}"[:_SHOWN]
