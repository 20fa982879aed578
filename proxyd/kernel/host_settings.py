"""Brings settings of the kernel to what the configuration asks for: only where they differ, and never fatally.

A container with NET_ADMIN alone sees /proc/sys read-only. proxyd works there all the same, says what it could not do, and
an init container can do it (``--init-only``, where a failure is one).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from proxyd.config import Config
from proxyd.config.host_settings import OOM_SCORE_ADJ, Setting, changes, node_settings, process_settings
from proxyd.kernel.conntrack import load_tracker

_OOM = OOM_SCORE_ADJ.rsplit("/", 1)[1]

NODE_HINT = "set it on the node, or run proxyd --init-only with the same configuration in a privileged init container"
PROCESS_HINT = (
    "a lower oom_score_adj takes CAP_SYS_RESOURCE (the kubelet sets it for priorityClassName system-node-critical)"
)


class SettingFiles(Protocol):
    """Numbers in files, one in each. Both methods raise ``OSError``."""

    def read(self, path: str) -> int:
        """The number in a file below the root directory."""

    def write(self, path: str, value: int) -> None:
        """Replaces it."""


class KernelFiles:
    """The real ones; those of the network are of the namespace of the thread that asks. ``root`` stands in for /."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self, path: str) -> int:
        """See ``SettingFiles``. Has the kernel load the connection tracker, if that is all that is missing."""
        file = self._root / path
        if "nf_conntrack" in path and self._root == Path("/") and not file.exists():
            load_tracker()
        text = file.read_text(encoding="ascii").strip()
        try:
            return int(text)
        except ValueError as error:
            raise OSError(errno.EINVAL, f"not a number: {text[:20]!r}") from error

    def write(self, path: str, value: int) -> None:
        """See ``SettingFiles``."""
        # No new file in place of one that is not there: opened without O_CREAT.
        descriptor = os.open(self._root / path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, f"{value}\n".encode())
        finally:
            os.close(descriptor)


class Outcome(NamedTuple):
    """What was found and done. ``found`` has the values before, ``changed`` the new ones, ``failed`` the reasons why not.

    All by the name of the setting; what is not there is in ``failed`` only.
    """

    found: dict[str, int]
    changed: dict[str, int]
    failed: dict[str, str]

    @property
    def summary(self) -> str:
        """All settings in one line, as ``name=value`` or ``name=before->now``."""
        return " ".join(
            f"{name}={value}" + (f"->{self.changed[name]}" if name in self.changed else "")
            for name, value in self.found.items()
        )

    @property
    def problem(self) -> str:
        """One line that names all that could not be set, and how to have it done; empty where there is nothing."""
        hints = [NODE_HINT] if self.is_serious else []
        hints += [PROCESS_HINT] if _OOM in self.failed else []
        return f"{'; '.join(self.failed.values())}. To mend it: {'; '.join(hints)}" if self.failed else ""

    @property
    def is_serious(self) -> bool:
        """Whether anything failed that is about traffic."""
        return bool(self.failed.keys() - {_OOM})


def apply_settings(
    config: Config, files: SettingFiles | None = None, *, more: Iterable[Setting] = (), init_only: bool = False
) -> Outcome:
    """Writes every setting that differs from what ``config`` asks for; one failure keeps no other from being written.

    ``more`` are settings that one mode needs beside those. With ``init_only`` only those of the node: our own process is
    about to end.
    """
    files = KernelFiles() if files is None else files
    # What the machine has, whatever share of it is ours: the tracker is the machine's.
    wanted = (*node_settings(config, os.cpu_count() or 1), *more, *(() if init_only else process_settings(config)))
    found: dict[str, int] = {}
    failed: dict[str, str] = {}
    for setting in wanted:
        try:
            found[setting.name] = files.read(setting.path)
        except OSError as error:
            failed[setting.name] = _failure(setting, error)
    current = {setting.path: found[setting.name] for setting in wanted if setting.name in found}
    changed: dict[str, int] = {}
    for setting, now in changes(wanted, current):
        if now is None:
            continue
        try:
            files.write(setting.path, setting.value)
            changed[setting.name] = setting.value
        except OSError as error:
            failed[setting.name] = _failure(setting, error, now)
    return Outcome(found, changed, failed)


def _failure(setting: Setting, error: OSError, now: int | None = None) -> str:
    """Why a setting is not what it should be: its key as sysctl spells it, the value wanted, and the reason."""
    key = setting.path.removeprefix("proc/sys/").replace("/", ".") if "proc/sys" in setting.path else f"/{setting.path}"
    relation = ">=" if setting.at_least else "="
    is_now = "" if now is None else f" but is {now}"
    return f"{key} should be {relation}{setting.value} ({setting.field}){is_now}: {error.strerror or error}"
