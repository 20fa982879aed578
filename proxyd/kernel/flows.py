"""The interface to the kernel's connection tracker: what may be asked of it, and how it says no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from proxyd.desired.conflicts import FrontendKey
from proxyd.desired.flows import Live
from proxyd.model import Family

Newer = Callable[[], Mapping[FrontendKey, Live]]


class FlowsError(Exception):
    """Stale flows could not be deleted, or not all of them; asking again for the same is right."""


class FlowTable(Protocol):
    """The tracked flows of one network namespace."""

    def delete_stale(self, family: Family, frontends: Mapping[FrontendKey, Live], newer: Newer = dict) -> int:
        """Deletes the stale flows (see ``is_stale``) to these frontends and no others; gives how many they were.

        The flows of a frontend are those whose original destination, port and protocol it is; without an address, on
        any address of this host that is not given for itself with an endpoint. A long list takes time: ``newer`` gives the
        states that came since it was last called, and they hold from then on. Zero is success. Raises ``FlowsError``.
        """
