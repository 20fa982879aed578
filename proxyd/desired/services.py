"""Many Services at once: which of them must be worked out again, and the forwarding of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from proxyd.desired.admission import Admission, admit
from proxyd.desired.conflicts import Claim, Claims, FrontendKey
from proxyd.desired.endpoints import Backend
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
        # Admissions of the Services that are being worked out, so that each is judged once.
        self._judged: dict[ServiceKey, Admission] = {}

    def forget(self) -> None:
        """Forgets all claims: what is said to have changed next is everything there is."""
        self._claims.clear()

    def concerned(self, dirty: Iterable[ServiceKey]) -> set[ServiceKey]:
        """Takes notice of changed Services; gives them and all others whose conflicts this may decide anew."""
        concerned = set(dirty)
        self._judged.clear()
        for key in tuple(concerned):
            try:
                claims = self._claims_of(key)
            except Exception:  # noqa: BLE001  (a fault of ours about one Service; forwarding() meets it again)
                claims = {}
            concerned |= self._claims.update(key, claims)
        return concerned

    def affected(
        self, before: NodeSettings | None, after: NodeSettings, keys: Iterable[ServiceKey]
    ) -> list[ServiceKey]:
        """Those of all Services (``keys``) that new settings of the node may lead elsewhere.

        What counts as local is in chains that all Services share, so that it concerns none of them; and the addresses that
        take node ports concern those that have node ports, for the sake of their flows.
        """
        if before is None or before != replace(
            after, local=before.local, node_port_addresses=before.node_port_addresses
        ):
            return list(keys)
        if before.node_port_addresses == after.node_port_addresses:
            return []
        return [key for key in keys if self._has_node_ports(key)]

    def in_slices(self, key: ServiceKey) -> frozenset[Backend]:
        """All endpoints of TCP in the slices of a Service, in whatever state, also where there is no such Service (now)."""
        _, slices = self._lookup(key)
        return frozenset(
            Backend(endpoint.address, port.port)
            for piece in slices
            if piece.family is self._family
            for port in piece.ports
            if port.protocol == "tcp"
            for endpoint in piece.endpoints
        )

    def _has_node_ports(self, key: ServiceKey) -> bool:
        service, _ = self._lookup(key)
        return service is not None and any(port.node_port for port in service.ports)

    def _claims_of(self, key: ServiceKey) -> dict[FrontendKey, Claim]:
        service, _ = self._lookup(key)
        if service is None:
            return {}
        admission = self._judged[key] = admit(service)
        admitted = admission.families.get(self._family)
        return claims_of(service, admitted) if admitted else {}

    def forwarding(self, key: ServiceKey, settings: NodeSettings) -> tuple[Forwarding | None, tuple[Finding, ...]]:
        """The forwarding of one Service (None: nothing to forward in this family) and all Findings about it."""
        service, slices = self._lookup(key)
        if service is None:
            return None, ()
        admission = self._judged.pop(key, None) or admit(service)
        admitted = admission.families.get(self._family)
        if admitted is None:
            return None, admission.findings
        forwarding = build_forwarding(service, admitted, slices, settings, self._claims.lost(key))
        return forwarding, admission.findings + forwarding.findings
