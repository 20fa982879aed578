"""What comes first in a write of everything, and when it is given up; for both modes."""

from __future__ import annotations

from proxyd.model import ServiceKey

# Services that the kernel may refuse in one full write before the trouble is taken to lie elsewhere.
QUARANTINED_AT_MOST = 16
FIRST = (ServiceKey("default", "kubernetes"), ServiceKey("kube-system", "kube-dns"))


class StoppedError(Exception):
    """The daemon is asked to end; what is in the kernel is complete for the Services it has."""


def importance(key: ServiceKey) -> tuple[bool, ServiceKey]:
    """What to sort Services by: nodes and pods need the API server and DNS before all else."""
    return key not in FIRST, key
