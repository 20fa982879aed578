"""Many Services at once: which of them must be worked out again, and the forwarding of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from proxyd.desired.admission import admit
from proxyd.desired.conflicts import Claims
from proxyd.desired.forwarding import Forwarding, build_forwarding, claims_of
from proxyd.model import EndpointSlice, Family, Finding, NodeSettings, Service, ServiceKey

Lookup = Callable[[ServiceKey], tuple[Service | None, tuple[EndpointSlice, ...]]]


class Desired:
    """What one family should forward, Service by Service, read through ``lookup``.

    It keeps only the claims to frontends, since a conflict is the one thing that ties Services to each other.
    """

    def __init__(self, family: Family, lookup: Lookup) -> None:
        self._family = family
        self._lookup = lookup
        self._claims = Claims()

    def concerned(self, dirty: Iterable[ServiceKey]) -> set[ServiceKey]:
        """Takes notice of changed Services; gives them and all others whose conflicts this may decide anew."""
        concerned = set(dirty)
        for key in tuple(concerned):
            service, _ = self._lookup(key)
            admitted = admit(service).families.get(self._family) if service else None
            concerned |= self._claims.update(key, claims_of(service, admitted) if service and admitted else {})
        return concerned

    def forwarding(self, key: ServiceKey, settings: NodeSettings) -> tuple[Forwarding | None, tuple[Finding, ...]]:
        """The forwarding of one Service (None: nothing to forward in this family) and all Findings about it."""
        service, slices = self._lookup(key)
        if service is None:
            return None, ()
        admission = admit(service)
        admitted = admission.families.get(self._family)
        if admitted is None:
            return None, admission.findings
        forwarding = build_forwarding(service, admitted, slices, settings, self._claims.lost(key))
        return forwarding, admission.findings + forwarding.findings
