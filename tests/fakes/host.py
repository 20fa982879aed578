"""A host in memory: interfaces, addresses and a default route, with the kernel's ways of losing them."""

from __future__ import annotations

from collections.abc import Callable

from proxyd.model import Family, HostAddress, HostState


class FakeHost:
    """Implements ``HostWatch``; tells on the thread that makes the change.

    Has the interfaces a and b (up), and the loopback with its addresses.
    """

    LOOPBACK, A, B = 1, 2, 3

    def __init__(self) -> None:
        self._up = {self.LOOPBACK, self.A, self.B}
        self._addresses: list[tuple[Family, str, int, str]] = [
            (Family.IPV4, "127.0.0.1", self.LOOPBACK, "host"),
            (Family.IPV6, "::1", self.LOOPBACK, "host"),
        ]
        self._defaults: dict[Family, int] = {}
        self._ipv6 = True
        self._told: Callable[[HostState], None] | None = None

    def read(self) -> HostState:
        found = (
            HostAddress(family, address, interface, scope, usable=interface in self._up)
            for family, address, interface, scope in sorted(self._addresses, key=lambda each: (each[0], each[2]))
        )
        return HostState(tuple(found), dict(self._defaults))

    def start(self, told: Callable[[HostState], None]) -> None:
        self._told = told

    def stop(self) -> None:
        self._told = None

    def add(self, interface: int, *addresses: str, scope: str = "global") -> None:
        families = (Family.IPV6 if ":" in each else Family.IPV4 for each in addresses)
        self._addresses += [(f, each, interface, scope) for f, each in zip(families, addresses, strict=True)]
        self._changed()

    def delete(self, interface: int, *addresses: str) -> None:
        self._addresses = [each for each in self._addresses if each[1] not in addresses or each[2] != interface]
        self._changed()

    def down(self, interface: int) -> None:
        """IPv4 keeps the addresses, IPv6 forgets them."""
        self._up.discard(interface)
        self._addresses = [each for each in self._addresses if each[2] != interface or each[0] is Family.IPV4]
        self._defaults = {family: each for family, each in self._defaults.items() if each != interface}
        self._changed()

    def up(self, interface: int) -> None:
        self._up.add(interface)
        self._changed()

    def remove(self, interface: int) -> None:
        self._addresses = [each for each in self._addresses if each[2] != interface]
        self._changed()

    def default(self, interface: int, family: Family = Family.IPV4) -> None:
        """Points the default route at an interface."""
        self._defaults[family] = interface
        self._changed()

    def switch_ipv6(self, *, on: bool) -> None:
        """Off takes all IPv6 addresses away; on brings the loopback's back."""
        self._addresses = [each for each in self._addresses if each[0] is Family.IPV4]
        if on:
            self._addresses.append((Family.IPV6, "::1", self.LOOPBACK, "host"))
        self._changed()

    def _changed(self) -> None:
        if self._told is not None:
            self._told(self.read())
