"""Since when each endpoint has been terminating, as far as this process has seen it; EndpointSlices do not say.

Memory is bounded by the endpoints that terminate now: what is in no slice any more is forgotten with it.
"""

from __future__ import annotations

from proxyd.model import EndpointSlice

SliceKey = tuple[str, str]


class Terminating:
    """Follows slices. Not safe by itself: the store calls it under its lock."""

    def __init__(self) -> None:
        self._since: dict[SliceKey, dict[str, float]] = {}

    def update(self, old: EndpointSlice | None, new: EndpointSlice | None, now: float) -> None:
        """Takes a slice that came (``old`` is None), changed, or went (``new`` is None); ``now``: monotonic seconds."""
        if new is None:
            if old is not None:
                self._since.pop((old.namespace, old.name), None)
            return
        key = (new.namespace, new.name)
        before = self._since.get(key, {})
        found = {each.address: before.get(each.address, now) for each in new.endpoints if each.terminating}
        if found:
            self._since[key] = found
        else:
            self._since.pop(key, None)

    def since(self, piece: EndpointSlice, address: str) -> float | None:
        """When an endpoint of this slice was first seen terminating (monotonic seconds); None where it is not."""
        return self._since.get((piece.namespace, piece.name), {}).get(address)
