"""One Service's change in iptables mode: what is written for it, and that nothing else is."""

from __future__ import annotations

from typing import Any

from proxyd.desired.forwarding import Forwarding
from proxyd.desired.services import Desired
from proxyd.ipt import names
from proxyd.ipt.delta import Holdings, Plan
from proxyd.ipt.style import Style
from proxyd.model import Family, Service
from tests import build

V4 = Family.IPV4
SETTINGS = build.settings()
WEB = build.key()


def forwarding(*endpoints: str, service: Service | None = None) -> Forwarding:
    store = build.store(service or build.service(), build.endpoint_slice("web", *endpoints))
    made, _ = Desired(V4, store.service).forwarding(WEB, SETTINGS)
    assert made is not None
    return made


class Kernel:
    """Holdings that have been told of every write."""

    def __init__(self) -> None:
        self.holdings = Holdings(V4, SETTINGS)

    def write(self, made: Forwarding | None, **style: Any) -> Plan:
        plan = self.holdings.plan({WEB: made}, Style(**style))
        self.holdings.confirm(plan)
        return plan

    def changed(self, made: Forwarding | None, **style: Any) -> set[str]:
        """Prefixes of the chains that a write rewrites."""
        return {_prefix(chain.name) for chain in self.write(made, **style).transaction.chains}


def _prefix(name: str) -> str:
    return name.rpartition("-")[0] + "-"


def test_a_new_service_gets_its_chains_and_its_dispatch() -> None:
    written = Kernel().write(forwarding("10.244.1.2", "10.244.1.3")).transaction
    assert sorted(_prefix(chain.name) for chain in written.chains) == [names.ENDPOINT, names.ENDPOINT, names.SERVICE]
    assert [each.chain for each in written.insert] == [names.SERVICES]
    assert (written.delete, written.delete_chains) == ((), ())


def test_what_is_the_same_is_not_written() -> None:
    kernel = Kernel()
    kernel.write(forwarding("10.244.1.2"))
    assert kernel.write(forwarding("10.244.1.2")).transaction.size == 0


def test_an_endpoint_more_is_its_chain_and_the_choice() -> None:
    kernel = Kernel()
    kernel.write(forwarding("10.244.1.2"))
    written = kernel.write(forwarding("10.244.1.2", "10.244.1.3")).transaction
    assert sorted(_prefix(chain.name) for chain in written.chains) == [names.ENDPOINT, names.SERVICE]
    assert (written.insert, written.delete, written.delete_chains) == ((), (), ())


def test_an_endpoint_less_takes_its_chain_away() -> None:
    kernel = Kernel()
    kernel.write(forwarding("10.244.1.2", "10.244.1.3"))
    written = kernel.write(forwarding("10.244.1.2")).transaction
    assert [_prefix(chain.name) for chain in written.chains] == [names.SERVICE]
    assert [_prefix(each.name) for each in written.delete_chains] == [names.ENDPOINT]


def test_the_last_endpoint_turns_the_dispatch_into_a_refusal() -> None:
    kernel = Kernel()
    kernel.write(forwarding("10.244.1.2"))
    written = kernel.write(forwarding()).transaction
    assert [(each.table, each.chain) for each in written.delete] == [("nat", names.SERVICES)]
    assert [(each.table, each.chain) for each in written.insert] == [("filter", names.SERVICES)]
    assert len(written.delete_chains) == 2


def test_a_service_that_goes_takes_everything_with_it() -> None:
    kernel = Kernel()
    kernel.write(forwarding("10.244.1.2"))
    written = kernel.write(None).transaction
    assert len(written.delete) == 1
    assert len(written.delete_chains) == 2
    assert WEB not in kernel.holdings
    assert kernel.write(None).transaction.size == 0


def test_what_is_to_be_deleted_is_known_in_the_style_it_was_written_in() -> None:
    kernel = Kernel()
    kernel.write(forwarding("10.244.1.2"), comments=True)
    # Crossing the limit of comments rewrites what is touched anyway, and finds its old rules.
    assert kernel.changed(forwarding("10.244.1.2"), comments=False) == {names.ENDPOINT, names.SERVICE}
    assert kernel.write(forwarding("10.244.1.2"), comments=False).transaction.size == 0


def test_a_plan_that_failed_changes_nothing() -> None:
    kernel = Kernel()
    kernel.holdings.plan({WEB: forwarding("10.244.1.2")}, Style())
    assert kernel.holdings.keys() == set()
