"""What a running proxyd tells `proxyd drain`: Services, some at a time."""

from __future__ import annotations

import msgspec

from proxyd.desired.draining import Ports
from proxyd.kube.store import Store
from proxyd.model import Family
from proxyd.serve.draining import DrainReport, path_of
from proxyd.serve.http import Request, Response
from proxyd.sync.status import FamilyStatus, Status
from tests import build

STATUS = Status("nftables", (FamilyStatus(Family.IPV4, settings=build.settings()), FamilyStatus(Family.IPV6)))


def ask(store: Store, path: str, status: Status = STATUS) -> Response:
    where, _, query = path.partition("?")
    return DrainReport(store, lambda: status, page=2)(Request("GET", where, query))


def ports(store: Store, path: str) -> Ports:
    return msgspec.json.decode(ask(store, path).body, type=Ports)


def test_every_service_is_told_once_over_all_pages() -> None:
    for size in range(6):
        names = [f"s{number}" for number in range(size)]
        store = build.store(*(build.service(each, ip=f"10.96.0.{i}") for i, each in enumerate(names, 1)))
        found, after = [], ""
        while after is not None:
            page = ports(store, path_of(after=after))
            found += [each.service for each in page.ports]
            assert len(page.ports) <= 2
            after = page.after  # type: ignore[assignment]
        assert found == names


def test_one_service_is_told_with_what_terminates() -> None:
    endpoints = (build.endpoint("10.244.1.2", **build.SERVING_TERMINATING), "10.244.1.3")
    store = build.store(
        build.service(), build.service("other", ip="10.96.0.2"), build.endpoint_slice("web", *endpoints)
    )
    told = ports(store, path_of("default/web"))
    assert [(each.service, each.endpoints, [x[:2] for x in each.terminating]) for each in told.ports] == [
        ("web", (("10.244.1.3", 8080),), [("10.244.1.2", 8080)])
    ]
    assert told.after is None


def test_what_cannot_be_answered() -> None:
    store = build.store(build.service())
    missing = ask(store, path_of("default/nothing"))
    assert (missing.status, missing.body) == (400, b"there is no Service default/nothing here")
    unwritten = Status("nftables", (FamilyStatus(Family.IPV4),))
    assert ask(store, path_of(), unwritten).status == 503
    assert ask(Store(), path_of()).status == 503
