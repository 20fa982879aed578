"""Running totals of what is served, kept as Services change so that nobody has to count them all."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

from proxyd.desired.forwarding import Forwarding, HealthCheck
from proxyd.desired.localhost import LocalhostPort, relayed
from proxyd.model import ServiceKey


class Counts(NamedTuple):
    """Endpoints, and ServicePorts that have endpoints but none on this node while their policy is Local."""

    endpoints: int = 0
    no_local_internal: int = 0
    no_local_external: int = 0


class Tally:
    """Counts of each Service in the kernel and their sums."""

    def __init__(self) -> None:
        self._of: dict[ServiceKey, Counts] = {}
        self._health_checks: dict[ServiceKey, HealthCheck] = {}
        self._localhost_of: dict[ServiceKey, tuple[LocalhostPort, ...]] = {}
        self._localhost: tuple[LocalhostPort, ...] | None = None
        self.total = Counts()

    @property
    def services(self) -> int:
        """How many Services are served."""
        return len(self._of)

    @property
    def health_checks(self) -> tuple[HealthCheck, ...]:
        """The Services that load balancers ask about."""
        return tuple(self._health_checks.values())

    @property
    def localhost_ports(self) -> tuple[LocalhostPort, ...]:
        """The ports to listen on at the loopback address; the same object until one of them changes."""
        if self._localhost is None:
            self._localhost = tuple(chain.from_iterable(self._localhost_of.values()))
        return self._localhost

    def note(self, key: ServiceKey, forwarding: Forwarding | None) -> None:
        """Takes the present state of one Service."""
        old = self._of.pop(key, Counts())
        new = Counts()
        self._health_checks.pop(key, None)
        if forwarding is not None and forwarding.health_check is not None:
            self._health_checks[key] = forwarding.health_check
        if forwarding is not None:
            new = self._of[key] = count(forwarding)
        self._note_localhost(key, relayed(forwarding) if forwarding is not None else ())
        self.total = Counts(
            *(total - before + after for total, before, after in zip(self.total, old, new, strict=True))
        )

    def _note_localhost(self, key: ServiceKey, ports: tuple[LocalhostPort, ...]) -> None:
        if ports == self._localhost_of.get(key, ()):
            return
        self._localhost = None
        if ports:
            self._localhost_of[key] = ports
        else:
            del self._localhost_of[key]


def count(forwarding: Forwarding) -> Counts:
    """Counts one Service."""
    ports = forwarding.ports
    return Counts(
        sum(len(port.cluster) or len(port.local) for port in ports),
        sum(port.no_local_internal for port in ports),
        sum(port.no_local_external for port in ports),
    )
