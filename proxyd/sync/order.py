"""What comes first in a write of everything, and how its end is asked for; for both modes."""

from __future__ import annotations

from proxyd.model import ServiceKey

FIRST = (ServiceKey("default", "kubernetes"), ServiceKey("kube-system", "kube-dns"))


class StoppedError(Exception):
    """The daemon is asked to end; what is in the kernel is complete for the Services it has."""


def importance(key: ServiceKey) -> tuple[bool, ServiceKey]:
    """What to sort Services by: nodes and pods need the API server and DNS before all else."""
    return key not in FIRST, key
