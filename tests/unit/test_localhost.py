"""Node ports on the loopback address: which are listened for, with which endpoints, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import Forwarding
from proxyd.desired.localhost import LocalhostPort, refused, relayed
from proxyd.desired.services import Desired
from proxyd.model import FAMILIES, Family, Service, SlicePort
from proxyd.sync.tally import Tally
from tests import build
from tests.build import endpoint, key, port

V4, V6 = FAMILIES
HERE, ELSEWHERE = endpoint("10.244.1.2"), endpoint("10.244.2.2", node="node2")
PORTS = (SlicePort("http", "tcp", 8080), SlicePort("dns", "udp", 53), SlicePort("sig", "sctp", 7))


def worked_out(*services: Service, endpoints: Any = (HERE, ELSEWHERE), on: bool = True) -> list[Forwarding]:
    slices = [build.endpoint_slice(each.key.name, *endpoints, ports=PORTS) for each in services]
    store = build.store(*services, *slices)
    desired = Desired(V4, store.service)
    keys = [each.key for each in services]
    desired.concerned(keys)
    found = [desired.forwarding(each, build.settings(localhost_node_ports=on))[0] for each in keys]
    return [each for each in found if each is not None]


def ports(**fields: Any) -> tuple[LocalhostPort, ...]:
    """What is listened for on behalf of a Service with node port 30080, which has endpoints here and elsewhere."""
    how = {name: fields.pop(name) for name in ("endpoints", "on") if name in fields}
    fields.setdefault("ports", (port(node_port=30080),))
    (forwarding,) = worked_out(build.service(**fields), **how)
    return relayed(forwarding)


def listed(*addresses: str, number: int = 30080, seconds: int = 0) -> tuple[LocalhostPort, ...]:
    return (LocalhostPort(key(), number, tuple(Backend(each, 8080) for each in addresses), seconds),)


def test_all_endpoints_with_policy_cluster() -> None:
    assert ports() == listed("10.244.1.2", "10.244.2.2")
    # The policy for what comes from inside is none of this.
    assert ports(internal_local=True) == listed("10.244.1.2", "10.244.2.2")


def test_endpoints_of_this_node_with_policy_local() -> None:
    assert ports(external_local=True) == listed("10.244.1.2")
    assert ports(external_local=True, internal_local=True) == listed("10.244.1.2")


@pytest.mark.parametrize("fields", [{"endpoints": ()}, {"endpoints": (ELSEWHERE,), "external_local": True}], ids=str)
def test_nobody_listens_without_endpoints(fields: dict[str, Any]) -> None:
    assert ports(**fields) == ()


def test_endpoints_that_terminate_serve_where_there_is_no_other() -> None:
    assert ports(endpoints=(endpoint(**build.SERVING_TERMINATING),)) == listed("10.244.1.2")


def test_affinity_goes_with_it() -> None:
    assert ports(affinity_seconds=60) == listed("10.244.1.2", "10.244.2.2", seconds=60)


def test_only_node_ports_count() -> None:
    assert ports(ports=(port(),), external_ips=("198.51.100.1",), ingress_ips=("203.0.113.1",)) == ()


def test_nothing_where_nobody_asked() -> None:
    assert ports(on=False) == ()
    (forwarding,) = worked_out(build.service(ports=(port(53, "dns", "udp", 30053),)), on=False)
    assert refused(forwarding) == ()


def test_what_is_not_tcp_is_refused_whether_it_has_endpoints_or_not() -> None:
    service = build.service(
        ports=(
            port(node_port=30080),
            port(53, "dns", "udp", 30053),
            port(7, "sig", "sctp", 30007),
            port(54, "other", "udp", 30054),
            port(55, "none", "udp"),
        )
    )
    (forwarding,) = worked_out(service)
    assert [(str(frontend.key), name) for frontend, name in refused(forwarding)] == [
        ("node port 30053/udp", "default/web:dns"),
        ("node port 30007/sctp", "default/web:sig"),
        ("node port 30054/udp", "default/web:other"),
    ]
    assert relayed(forwarding) == listed("10.244.1.2", "10.244.2.2")


def test_of_two_services_with_one_node_port_one_has_it() -> None:
    old, new = (
        build.service(name, ip=ip, ports=(port(node_port=30080),), created=created)
        for name, ip, created in (("a", "10.96.0.1", "2026-01-02"), ("b", "10.96.0.2", "2026-01-01"))
    )
    found = {each.key.name: relayed(each) for each in worked_out(old, new)}
    assert not found["a"]
    assert [each.service for each in found["b"]] == [key("b")]


# -- as it is handed out -----------------------------------------------------------------------------------------------


def noted(tally: Tally, **fields: Any) -> tuple[LocalhostPort, ...]:
    name = fields.pop("name", "web")
    endpoints = fields.pop("endpoints", (HERE,))
    (forwarding,) = worked_out(build.service(name, ports=(port(node_port=30080),), **fields), endpoints=endpoints)
    tally.note(forwarding.key, forwarding)
    return tally.localhost_ports


def test_what_is_handed_out_follows_each_service_and_is_the_same_object_without_news() -> None:
    tally = Tally()
    assert tally.localhost_ports == ()
    first = noted(tally)
    assert first == listed("10.244.1.2")
    assert noted(tally) is first
    assert noted(tally, name="quiet", endpoints=()) is first
    assert noted(tally, endpoints=(HERE, ELSEWHERE)) == listed("10.244.1.2", "10.244.2.2")
    assert [each.service.name for each in noted(tally, name="api")] == ["web", "api"]
    tally.note(key("api"), None)
    assert tally.localhost_ports == listed("10.244.1.2", "10.244.2.2")
    tally.note(key(), None)
    assert tally.localhost_ports == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_both_families_have_their_own(family: Family) -> None:
    address = {V4: "10.244.1.2", V6: "fd00:10:244:1::2"}
    service = build.service(cluster_ips=("10.96.0.1", "fd00:10:96::1"), ports=(port(node_port=30080),))
    slices = [build.endpoint_slice("web", address[each], name=each, family=each) for each in FAMILIES]
    desired = Desired(family, build.store(service, *slices).service)
    forwarding, _ = desired.forwarding(service.key, build.settings(family, localhost_node_ports=True))
    assert forwarding is not None
    assert relayed(forwarding) == listed(address[family])
