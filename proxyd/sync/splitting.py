"""What becomes of a write that the kernel refuses in the middle of a full one, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from proxyd.kernel.refused import EndedFromOutsideError, KernelRefusedError, OutcomeUnclearError
from proxyd.model import ServiceKey
from proxyd.sync.services import Services

# Services that the kernel may refuse in one full write before the trouble is taken to lie elsewhere.
QUARANTINED_AT_MOST = 16
T = TypeVar("T")


class Splitting:
    """The parts of one full write. What is refused is halved until the Services at fault are alone, and left out."""

    def __init__(self, services: Services, about_none: tuple[type[KernelRefusedError], ...] = ()) -> None:
        """``about_none`` are refusals that no Service can be the reason of; they are passed on at once."""
        self._services = services
        self._about_none = about_none
        self._quarantined = 0
        self._unclear = False

    @property
    def in_doubt(self) -> bool:
        """Whether the kernel may have something of the Services that were left out."""
        return self._unclear and self._quarantined > 0

    def write(self, part: dict[ServiceKey, T], commit: Callable[[dict[ServiceKey, T]], None]) -> None:
        """Has ``commit`` write a part.

        Raises its ``KernelRefusedError`` where too many Services were refused, or where that says nothing about a Service.
        """
        try:
            commit(part)
        except self._about_none:
            raise
        except KernelRefusedError as error:
            self._unclear |= isinstance(error, OutcomeUnclearError)
            if len(part) > 1:
                keys = list(part)
                for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
                    self.write({key: part[key] for key in half}, commit)
                return
            if isinstance(error, EndedFromOutsideError):
                raise
            self._quarantined += 1
            if self._quarantined > QUARANTINED_AT_MOST:
                raise
            for key in part:
                self._services.refused(key, str(error))
