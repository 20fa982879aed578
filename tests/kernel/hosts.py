"""A real kernel's addresses, in a network namespace of its own, changed in the words of tests.fakes.host."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from proxyd.kernel.addresses import KernelHost
from proxyd.model import Family, HostState
from tests.netns import leave


class RealHost:
    """A ``KernelHost`` with the interfaces a and b, which are the two ends of one link."""

    LOOPBACK, A, B = 1, 2, 3
    _NAMES = ("", "lo", "a", "b")

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "namespace", leave)
        # No search for duplicates, which takes seconds, and no link-local addresses.
        self._set("net/ipv6/conf/default/accept_dad", "0")
        self._set("net/ipv6/conf/default/addr_gen_mode", "1")
        self.ip(
            "link set lo up",
            "link add index 2 name a type veth peer index 3 name b",
            "link set dev a up",
            "link set dev b up",
        )
        self.watch = self._thread.submit(KernelHost).result()

    def ip(self, *lines: str) -> None:
        """Carries out commands of ``ip`` in the namespace."""
        text = "".join(f"{line}\n" for line in lines)
        self._thread.submit(
            subprocess.run, ["ip", "-batch", "-"], input=text, text=True, check=True, capture_output=True
        ).result()

    def _set(self, path: str, value: str) -> None:
        self._thread.submit((Path("/proc/sys") / path).write_text, value).result()

    def read(self) -> HostState:
        return self.watch.read()

    def start(self, told: Callable[[HostState], None]) -> None:
        self.watch.start(told)

    def stop(self) -> None:
        self.watch.stop()
        self._thread.shutdown()

    def add(self, interface: int, *addresses: str, scope: str = "global") -> None:
        more = f" scope {scope}" if scope != "global" else ""
        self.ip(*(f"address add {each} dev {self._NAMES[interface]}{more}" for each in addresses))

    def delete(self, interface: int, *addresses: str) -> None:
        self.ip(*(f"address delete {each} dev {self._NAMES[interface]}" for each in addresses))

    def down(self, interface: int) -> None:
        self.ip(f"link set dev {self._NAMES[interface]} down")

    def up(self, interface: int) -> None:
        self.ip(f"link set dev {self._NAMES[interface]} up")

    def remove(self, interface: int) -> None:
        self.ip(f"link delete dev {self._NAMES[interface]}")

    def default(self, interface: int, family: Family = Family.IPV4) -> None:
        words = ["ip", f"-{family[-1]}", "route", "replace", "default", "dev", self._NAMES[interface]]
        self._thread.submit(subprocess.run, words, check=True, capture_output=True).result()

    def switch_ipv6(self, *, on: bool) -> None:
        self._set("net/ipv6/conf/all/disable_ipv6", "0" if on else "1")
