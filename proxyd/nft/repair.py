"""The transaction that undoes what others did to single elements and chains: it follows the edits, not the cluster."""

from __future__ import annotations

from proxyd.nft.delta import Holdings
from proxyd.nft.drift import Drift
from proxyd.nft.fixed import base_chains
from proxyd.nft.layout import Layout, generation_of
from proxyd.nft.objects import Element, Transaction


def repair(drift: Drift, holdings: Holdings, layout: Layout) -> Transaction:
    """Brings exactly the places of ``drift`` to what the kernel should hold; ``drift`` must not mean everything.

    What is there by the last notification is deleted whatever its value, since the kernel refuses another value for a key
    that exists. Then what belongs there is added, which the kernel accepts if it is there already. Where things are
    otherwise by now, it refuses the whole transaction. Other generations are on their way out and need no repair.
    """
    places = [place for place in drift.elements if generation_of(place[0]) == layout.generation]
    wanted = [element for place in places if (element := holdings.element(*place)) is not None]
    lasting = {chain.name: chain for chain in base_chains(layout)}
    chains = (lasting.get(name) or holdings.chain(name) for name in sorted(drift.chains))
    return Transaction(
        drift.family,
        chains=tuple(chain for chain in chains if chain is not None),
        delete_elements=tuple(Element(*place) for place in sorted(places) if drift.elements[place]),
        add_elements=tuple(sorted(wanted)),
    )
