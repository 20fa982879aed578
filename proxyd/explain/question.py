"""What can be asked, read from the words of a command line."""

from __future__ import annotations

import re
from typing import NamedTuple

from proxyd.addresses import canonical
from proxyd.errors import UserError
from proxyd.explain.view import Packet
from proxyd.model import PROTOCOLS, Family, ServiceKey

_TO = re.compile(r"(?:\[([^]]+)\]|([^]\[:]+)):([0-9]{1,5})(?:/([a-z]+))?", re.IGNORECASE)
_NAME = re.compile(r"(?:([^/:]+)/)?([^/:]+)(?::([^/:]+))?")


class Named(NamedTuple):
    """A Service by its name. ``port``: only the one with this name or number ("": all of them)."""

    service: ServiceKey
    port: str = ""


def read_source(text: str) -> str:
    """The canonical address of --from. Raises ``UserError``."""
    found = canonical(text)
    if found is None:
        raise UserError(f"--from: must be an IP address, got {text!r}")
    return found[1]


def read_packet(source: str, to: str, interface: str = "") -> Packet:
    """The packet of --from, --to and --interface. Raises ``UserError``."""
    match = _TO.fullmatch(to)
    found = canonical(match[1] or match[2]) if match else None
    protocol = (match[4] or "tcp").lower() if match else ""
    if match is None or found is None or protocol not in PROTOCOLS or not 1 <= int(match[3]) <= 65535:
        raise UserError(f"--to: must be like 10.96.0.1:80/tcp or [fd00::1]:53/udp, got {to!r}")
    sender = read_source(source)
    if family_of(sender) is not found[0]:
        raise UserError(f"--from {sender} and --to {found[1]} are of different families")
    return Packet(sender, found[1], protocol, int(match[3]), interface)


def read_name(text: str) -> Named:
    """A Service as NAMESPACE/NAME[:PORT] (without a namespace: default). Raises ``UserError``."""
    match = _NAME.fullmatch(text)
    if match is None:
        raise UserError(f"a Service must be like default/web or default/web:http, got {text!r}")
    return Named(ServiceKey(match[1] or "default", match[2]), match[3] or "")


def family_of(address: str) -> Family:
    """The family of a canonical address."""
    return Family.IPV6 if ":" in address else Family.IPV4
