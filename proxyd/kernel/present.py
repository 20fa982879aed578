"""What rules for Services the kernel has now, whoever wrote them. Only looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from proxyd.errors import CannotWorkHereError
from proxyd.ipt import names
from proxyd.ipt.objects import ChainName, Table
from proxyd.ipt.ownership import OWN_MARK
from proxyd.ipt.saved import Contents, read
from proxyd.kernel.ipt.iptables import Backend, Iptables, IptablesRefusedError, IptablesTools, IptablesUnavailableError
from proxyd.kernel.nft.libnftables import Library, NftablesUnavailableError
from proxyd.kernel.nft.reading import read_generation
from proxyd.kernel.predecessor import Predecessor, PredecessorError
from proxyd.kernel.refused import KernelRefusedError
from proxyd.model import Family
from proxyd.plan import ipt_served, nft_served
from proxyd.plan.answer import Removal
from proxyd.plan.served import Serving

_TABLES = (Table.NAT, Table.FILTER, Table.MANGLE)


class CannotLookError(CannotWorkHereError):
    """The kernel cannot be asked what rules it has."""


class Present(NamedTuple):
    """What is served now, and by whose rules, for people."""

    serving: Serving
    whose: str


NOTHING = Present({}, "no rules for Services")


def present(
    family: Family,
    library: Callable[[], Library] = Library,
    tools: Callable[[Family, Backend], Iptables] = IptablesTools,
) -> Present:
    """What is in force: our table, else the chains of iptables in the backend that has any. Raises ``CannotLookError``."""
    try:
        table = read_generation(library(), family)
    except NftablesUnavailableError:
        table = None  # then there are no rules of ours either
    except KernelRefusedError as error:
        raise CannotLookError(f"nftables: {error}") from error
    if table is not None:
        return Present(nft_served.serving(table), "the rules of proxyd's nftables mode")
    for backend in Backend:
        contents = saved(tools(family, backend))
        if ChainName(Table.NAT, names.SERVICES) in contents.chains:
            whose = "proxyd" if ChainName(Table.NAT, OWN_MARK) in contents.chains else "kube-proxy"
            return Present(ipt_served.serving(contents), f"the rules of {whose}'s iptables mode (iptables-{backend})")
    return NOTHING


def saved(tools: Iptables) -> Contents:
    """All rules of one backend; no table comes into being by it. Nothing where there are no tools."""
    try:
        existing = tools.tables()
        return read(line for table in _TABLES if table in existing for line in tools.save(table))
    except IptablesUnavailableError:
        return Contents()
    except IptablesRefusedError as error:
        raise CannotLookError(str(error)) from error


def removal(place: Predecessor) -> Removal | None:
    """What a takeover would remove in one place. Raises ``CannotLookError``."""
    try:
        found = place.find()
    except PredecessorError as error:
        raise CannotLookError(f"{place.place}: {error}") from error
    if found is None:
        return None
    kept = tuple(f"{each.table} {each.name}" for each in found.kept)
    return Removal(place.place, found.whose, len(found.chains), len(found.jumps), kept)
