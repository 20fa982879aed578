"""Forwarding of one Service: the route, endpoints and sources of each of its frontends.

What the kernel makes of a route is what the scenarios show.
"""

from itertools import product
from typing import Any

import pytest

from proxyd.desired.admission import admit
from proxyd.desired.conflicts import FrontendKey, Kind
from proxyd.desired.endpoints import Backend
from proxyd.desired.forwarding import (
    Forwarding,
    Frontend,
    HealthCheck,
    PortForwarding,
    Route,
    build_forwarding,
    claims_of,
)
from proxyd.model import Endpoint, EndpointSlice, Family, Finding, NodeSettings, Reason, Service, SlicePort
from tests.build import NODE_IP, SERVING_TERMINATING, endpoint, endpoint_slice, key, port, service, settings

V4, V6 = Family.IPV4, Family.IPV6
EXTERNAL, INGRESS = "192.0.2.99", "203.0.113.10"
A, B = endpoint("10.244.1.2"), endpoint("10.244.2.2", "node2")
HERE, THERE = Backend("10.244.1.2", 8080), Backend("10.244.2.2", 8080)


def full(**fields: Any) -> Service:
    """A Service with every kind of frontend."""
    fields.setdefault("ports", (port(80, node_port=30080),))
    return service(external_ips=(EXTERNAL,), ingress_ips=(INGRESS,), **fields)


def forwarding(
    built: Service,
    *slices: EndpointSlice,
    on: NodeSettings | None = None,
    lost: dict[FrontendKey, Any] | None = None,
) -> Forwarding:
    on = on or settings()
    return build_forwarding(built, admit(built).families[on.family], slices, on, lost or {})


def only_port(built: Service, *endpoints: Endpoint, **more: Any) -> PortForwarding:
    [found] = forwarding(built, endpoint_slice("web", *endpoints), **more).ports
    return found


def routes(found: PortForwarding) -> dict[Kind, Route]:
    return {frontend.kind: frontend.route for frontend in found.frontends}


def sources(found: PortForwarding) -> dict[Kind, tuple[str, ...] | None]:
    return {frontend.kind: frontend.sources for frontend in found.frontends}


class TestFrontends:
    def test_of_every_kind(self) -> None:
        found = only_port(full(), A)
        assert found == PortForwarding(
            name="default/web:http",
            protocol="tcp",
            frontends=(
                Frontend(FrontendKey("10.96.0.1", "tcp", 80), Kind.CLUSTER_IP, Route.CLUSTER),
                Frontend(FrontendKey(INGRESS, "tcp", 80), Kind.LOAD_BALANCER, Route.EXTERNAL),
                Frontend(FrontendKey(EXTERNAL, "tcp", 80), Kind.EXTERNAL_IP, Route.EXTERNAL),
                Frontend(FrontendKey("", "tcp", 30080), Kind.NODE_PORT, Route.EXTERNAL),
            ),
            cluster=(HERE,),
            beside=(HERE,),
        )

    def test_a_cluster_ip_service_has_just_one(self) -> None:
        assert set(routes(only_port(service(), A))) == {Kind.CLUSTER_IP}

    def test_an_address_that_is_listed_as_several_kinds_is_of_the_strongest(self) -> None:
        built = service(external_ips=(INGRESS, "10.96.0.1"), ingress_ips=(INGRESS,), source_ranges=("10.0.0.0/8",))
        found = only_port(built, A)
        assert [(f.key.address, f.kind) for f in found.frontends] == [
            ("10.96.0.1", Kind.CLUSTER_IP),
            (INGRESS, Kind.LOAD_BALANCER),
        ]
        assert sources(found)[Kind.LOAD_BALANCER] == ("10.0.0.0/8",)

    def test_an_external_ip_that_is_a_node_address_is_an_external_ip(self) -> None:
        found = only_port(service(external_ips=(NODE_IP[V4],)), A)
        assert found.frontends[1].key == FrontendKey(NODE_IP[V4], "tcp", 80)
        assert found.frontends[1].kind is Kind.EXTERNAL_IP

    def test_protocols_with_one_name_and_number_are_apart(self) -> None:
        built = service(ports=(port(53, "dns", "udp", 30053), port(53, "dns", "tcp", 30053)))
        ports = (SlicePort("dns", "udp", 5353), SlicePort("dns", "tcp", 53))
        udp, tcp = forwarding(built, endpoint_slice("web", "10.244.1.2", ports=ports)).ports
        assert (udp.protocol, udp.cluster) == ("udp", (Backend("10.244.1.2", 5353),))
        assert (tcp.protocol, tcp.cluster) == ("tcp", (Backend("10.244.1.2", 53),))
        assert {f.key.protocol for f in udp.frontends} == {"udp"}

    def test_a_port_that_no_slice_names_is_refused_and_the_others_serve(self) -> None:
        built = service(ports=(port(80, "http"), port(443, "https")))
        http, https = forwarding(built, endpoint_slice("web", A)).ports
        assert routes(http) == {Kind.CLUSTER_IP: Route.CLUSTER}
        assert (routes(https), https.cluster) == ({Kind.CLUSTER_IP: Route.REJECT}, ())

    def test_the_number_of_the_service_port_is_not_that_of_the_endpoint(self) -> None:
        found = only_port(service(ports=(port(8081),)), A)
        assert (found.frontends[0].key.port, found.cluster) == (8081, (HERE,))

    def test_an_unnamed_port_is_called_by_the_service_alone(self) -> None:
        piece = endpoint_slice("web", A, ports=(SlicePort("", "tcp", 8080),))
        [found] = forwarding(service(ports=(port(80, ""),)), piece).ports
        assert (found.name, found.cluster) == ("default/web", (HERE,))

    def test_affinity_is_handed_on(self) -> None:
        assert only_port(service(affinity_seconds=600), A).affinity_seconds == 600

    def test_slices_of_the_other_family_do_not_count(self) -> None:
        built = service(cluster_ips=("10.96.0.1", "fd00:96::1"))
        pieces = (endpoint_slice("web", A), endpoint_slice("web", "fd00:10:244::2", name="six", family=V6))
        assert forwarding(built, *pieces).ports[0].cluster == (HERE,)
        six = forwarding(built, *pieces, on=settings(V6)).ports[0]
        assert six.cluster == (Backend("fd00:10:244::2", 8080),)
        assert six.frontends[0].key.address == "fd00:96::1"
        assert routes(forwarding(built, pieces[0], on=settings(V6)).ports[0]) == {Kind.CLUSTER_IP: Route.REJECT}


class TestRoutes:
    """The base case: section 2.9."""

    @pytest.mark.parametrize("internal", [False, True], ids=["iTP Cluster", "iTP Local"])
    @pytest.mark.parametrize("external", [False, True], ids=["eTP Cluster", "eTP Local"])
    @pytest.mark.parametrize(
        "endpoints", [(), (A,), (B,), (A, B)], ids=["no endpoint", "one here", "one elsewhere", "here and elsewhere"]
    )
    def test_policies_by_place_of_endpoints(
        self, endpoints: tuple[Endpoint, ...], external: bool, internal: bool
    ) -> None:
        found = only_port(full(internal_local=internal, external_local=external), *endpoints)
        here = A in endpoints
        if not endpoints:
            expected = (Route.REJECT, Route.REJECT)
        else:
            expected = (
                (Route.LOCAL if here else Route.DROP) if internal else Route.CLUSTER,
                (Route.EXTERNAL_LOCAL if here else Route.EXTERNAL_NO_LOCAL) if external else Route.EXTERNAL,
            )
        inside = routes(found).pop(Kind.CLUSTER_IP)
        outside = {route for kind, route in routes(found).items() if kind is not Kind.CLUSTER_IP}
        assert (inside, outside) == (expected[0], {expected[1]})
        assert set(found.cluster) == {Backend(e.address, 8080) for e in endpoints}
        assert set(found.local) == ({HERE} if here and (internal or external) else set())
        assert found.no_local_internal is (internal and endpoints == (B,))
        assert found.no_local_external is (external and endpoints == (B,))

    def test_without_endpoints_everything_is_refused(self) -> None:
        found = only_port(full())
        assert set(routes(found).values()) == {Route.REJECT}
        assert len(found.frontends) == 4
        assert (found.cluster, found.local, found.beside) == ((), (), ())

    def test_without_slices_too(self) -> None:
        [found] = forwarding(full()).ports
        assert set(routes(found).values()) == {Route.REJECT}

    def test_with_both_policies_local_and_no_endpoint_it_is_refused_and_not_counted(self) -> None:
        found = only_port(full(internal_local=True, external_local=True))
        assert set(routes(found).values()) == {Route.REJECT}
        assert (found.no_local_internal, found.no_local_external) == (False, False)

    def test_external_local_on_a_service_that_is_not_reachable_from_outside_means_nothing(self) -> None:
        found = only_port(service(external_local=True), B)
        assert (routes(found), found.no_local_external) == ({Kind.CLUSTER_IP: Route.CLUSTER}, False)

    @pytest.mark.parametrize(
        "fields",
        [{"external_ips": (EXTERNAL,)}, {"ingress_ips": (INGRESS,)}, {"ports": (port(80, node_port=30080),)}],
        ids=lambda fields: next(iter(fields)),
    )
    def test_each_kind_of_address_alone_makes_it_reachable_from_outside(self, fields: dict[str, Any]) -> None:
        found = only_port(service(external_local=True, **fields), A, B)
        assert set(routes(found).values()) == {Route.CLUSTER, Route.EXTERNAL_LOCAL}
        assert (set(found.cluster), found.local) == ({HERE, THERE}, (HERE,))

    def test_of_a_dual_stack_service_only_the_family_with_an_address_is_reachable(self) -> None:
        built = service(cluster_ips=("10.96.0.1", "fd00:96::1"), ingress_ips=("2001:db8::1",), external_local=True)
        assert set(routes(forwarding(built, on=settings(V6)).ports[0])) == {Kind.CLUSTER_IP, Kind.LOAD_BALANCER}
        found = only_port(built, B)
        assert (set(routes(found)), found.no_local_external) == ({Kind.CLUSTER_IP}, False)

    def test_internal_local_alone_keeps_only_the_local_list(self) -> None:
        found = only_port(service(internal_local=True), A, B)
        assert (routes(found), found.cluster, found.local) == ({Kind.CLUSTER_IP: Route.LOCAL}, (), (HERE,))
        assert found.beside == (HERE,)

    def test_an_endpoint_without_a_node_is_not_local(self) -> None:
        found = only_port(full(external_local=True), endpoint("10.244.1.2", None))
        assert routes(found)[Kind.NODE_PORT] is Route.EXTERNAL_NO_LOCAL
        assert found.beside == (HERE,)


class TestTerminating:
    T_HERE = endpoint("10.244.1.2", **SERVING_TERMINATING)
    T_THERE = endpoint("10.244.2.2", "node2", **SERVING_TERMINATING)

    def test_local_pods_that_terminate_serve_the_outside_and_the_ready_remote_one_the_inside(self) -> None:
        found = only_port(full(external_local=True), self.T_HERE, B)
        assert (found.cluster, found.local) == ((THERE,), (HERE,))
        assert routes(found)[Kind.LOAD_BALANCER] is Route.EXTERNAL_LOCAL
        assert routes(found)[Kind.CLUSTER_IP] is Route.CLUSTER

    def test_the_last_pod_of_all_elsewhere_serves_the_inside_and_the_outside_is_dropped(self) -> None:
        found = only_port(full(external_local=True), self.T_THERE)
        assert routes(found)[Kind.CLUSTER_IP] is Route.CLUSTER
        assert routes(found)[Kind.LOAD_BALANCER] is Route.EXTERNAL_NO_LOCAL
        assert found.cluster == (THERE,)

    def test_pods_that_no_longer_serve_are_as_good_as_none(self) -> None:
        gone = endpoint("10.244.1.2", ready=False, serving=False, terminating=True)
        found = only_port(full(external_local=True, internal_local=True), gone)
        assert set(routes(found).values()) == {Route.REJECT}

    def test_ready_pods_keep_terminating_ones_unused(self) -> None:
        found = only_port(full(), A, endpoint("10.244.1.3", **SERVING_TERMINATING))
        assert found.cluster == (HERE,)

    def test_only_terminating_pods_serve_with_policy_cluster(self) -> None:
        found = only_port(full(), self.T_HERE, self.T_THERE)
        assert (set(found.cluster), routes(found)[Kind.NODE_PORT]) == ({HERE, THERE}, Route.EXTERNAL)


def test_hints_narrow_the_cluster_list_and_not_the_local_one() -> None:
    here = endpoint("10.244.1.2", zone_hints=("zb",))
    there = endpoint("10.244.2.2", "node2", zone_hints=("za", "zc"))
    found = only_port(full(external_local=True), here, there)
    assert (found.cluster, found.local) == ((THERE,), (HERE,))
    assert found.beside == (HERE,)


def test_hints_for_the_other_zones_only_leave_all_endpoints() -> None:
    there = endpoint("10.244.2.2", "node2", zone_hints=("zb",))
    assert only_port(service(), there).cluster == (THERE,)
    assert set(only_port(service(), there, A).cluster) == {HERE, THERE}


class TestSources:
    def test_apply_to_load_balancer_addresses_only(self) -> None:
        found = only_port(full(source_ranges=("198.51.100.0/24",)), A)
        assert sources(found) == {
            Kind.CLUSTER_IP: None,
            Kind.NODE_PORT: None,
            Kind.EXTERNAL_IP: None,
            Kind.LOAD_BALANCER: ("198.51.100.0/24",),
        }

    def test_hold_the_node_so_the_load_balancer_addresses_are_let_in(self) -> None:
        built = service(ingress_ips=(INGRESS, "203.0.113.11"), source_ranges=("192.0.2.0/24",))
        allowed = ("192.0.2.0/24", f"{INGRESS}/32", "203.0.113.11/32")
        assert [f.sources for f in only_port(built, A).frontends] == [None, allowed, allowed]

    def test_that_hold_the_addresses_already_are_not_repeated(self) -> None:
        built = full(source_ranges=("192.0.2.0/24", "203.0.113.0/24"))
        assert sources(only_port(built, A))[Kind.LOAD_BALANCER] == ("192.0.2.0/24", "203.0.113.0/24")

    def test_hold_the_node_in_ipv6(self) -> None:
        built = service(
            cluster_ips=("fd00:96::1",), ingress_ips=("2001:db8:1::10",), source_ranges=("2001:db8:2::/48",)
        )
        found = forwarding(built, on=settings(V6)).ports[0]
        assert sources(found)[Kind.LOAD_BALANCER] == ("2001:db8:2::/48", "2001:db8:1::10/128")

    def test_without_a_node_address_nothing_is_added(self) -> None:
        found = only_port(full(source_ranges=("192.0.2.0/24",)), A, on=settings(node_ip=""))
        assert sources(found)[Kind.LOAD_BALANCER] == ("192.0.2.0/24",)

    def test_of_the_other_family_only_leave_it_open(self) -> None:
        assert sources(only_port(full(source_ranges=("2001:db8::/32",)), A))[Kind.LOAD_BALANCER] is None

    def test_that_cannot_be_read_close_it_even_for_the_node(self) -> None:
        assert sources(only_port(full(source_ranges=("bogus",)), A))[Kind.LOAD_BALANCER] == ()

    def test_stay_in_force_while_there_is_no_endpoint(self) -> None:
        found = only_port(full(source_ranges=("198.51.100.0/24",)))
        assert sources(found)[Kind.LOAD_BALANCER] == ("198.51.100.0/24",)


class TestLost:
    def test_a_lost_frontend_is_left_out_and_told_and_the_others_stay(self) -> None:
        lost = {FrontendKey(EXTERNAL, "tcp", 80): key("other"), FrontendKey("", "tcp", 30080): key("third")}
        found = forwarding(full(), endpoint_slice("web", A), lost=lost)
        assert set(routes(found.ports[0])) == {Kind.CLUSTER_IP, Kind.LOAD_BALANCER}
        assert found.findings == (
            Finding(
                "Service",
                "default/web",
                Reason.FRONTEND_CONFLICT,
                f"{EXTERNAL}:80/tcp is served for default/other instead",
            ),
            Finding(
                "Service",
                "default/web",
                Reason.FRONTEND_CONFLICT,
                "node port 30080/tcp is served for default/third instead",
            ),
        )

    def test_lists_that_no_frontend_is_left_for_are_empty(self) -> None:
        lost = {FrontendKey("10.96.0.1", "tcp", 80): key("other")}
        found = only_port(service(), A, lost=lost)
        assert (found.frontends, found.cluster, found.local) == ((), (), ())
        lost = {FrontendKey(each, "tcp", 80): key("other") for each in ("10.96.0.1", EXTERNAL)}
        found = only_port(service(external_ips=(EXTERNAL,), internal_local=True, external_local=True), A, B, lost=lost)
        assert (found.frontends, found.cluster, found.local) == ((), (), ())


class TestClaims:
    def test_every_frontend_is_claimed_with_its_kind(self) -> None:
        built = full(created="2026-01-01T00:00:00Z")
        claims = claims_of(built, admit(built).families[V4])
        assert {frontend: each.kind for frontend, each in claims.items()} == {
            f.key: f.kind for f in only_port(built).frontends
        }
        assert {(each.created, each.undated, each.key) for each in claims.values()} == {
            ("2026-01-01T00:00:00Z", False, key())
        }

    def test_a_service_without_a_date_says_so(self) -> None:
        built = service(created="")
        assert [each.undated for each in claims_of(built, admit(built).families[V4]).values()] == [True]


class TestRefusedEndpoints:
    def test_are_told_of_the_slice_they_are_in(self) -> None:
        pieces = (
            endpoint_slice("web", A, name="a", refused=("127.0.0.1",)),
            endpoint_slice("web", name="b", refused=("x1", "x2", "x3", "x4", "x5")),
            endpoint_slice("web", name="c", refused=("fe80::1",), family=V6),
        )
        found = forwarding(service(), *pieces)
        assert found.ports[0].cluster == (HERE,)
        assert found.findings == (
            Finding("EndpointSlice", "default/a", Reason.INVALID_ENDPOINT, "'127.0.0.1' cannot be an endpoint"),
            Finding(
                "EndpointSlice",
                "default/b",
                Reason.INVALID_ENDPOINT,
                "'x1', 'x2', 'x3' and 2 more cannot be an endpoint",
            ),
        )


@pytest.mark.parametrize(
    ("internal", "external", "accessible", "endpoints"),
    list(product([False, True], [False, True], [False, True], [(), (A,), (B,), (A, B)])),
)
def test_every_route_has_the_endpoints_that_it_speaks_of(
    internal: bool, external: bool, accessible: bool, endpoints: tuple[Endpoint, ...]
) -> None:
    build = full if accessible else service
    found = only_port(build(internal_local=internal, external_local=external), *endpoints)
    for route in routes(found).values():
        cluster = route in {Route.CLUSTER, Route.EXTERNAL, Route.EXTERNAL_LOCAL, Route.EXTERNAL_NO_LOCAL}
        local = route in {Route.LOCAL, Route.EXTERNAL_LOCAL}
        assert not cluster or found.cluster
        assert not local or found.local
    assert set(found.local) <= {HERE}


class TestHealthChecks:
    @pytest.mark.parametrize(
        ("endpoints", "expected"),
        [
            ((A, B), 1),
            ((A, endpoint("10.244.1.3")), 2),
            ((A, A), 1),
            ((B,), 0),
            ((endpoint("10.244.1.2", **SERVING_TERMINATING), B), 0),
            ((endpoint("10.244.1.2", ready=False), B), 0),
            ((endpoint("10.244.1.2", None),), 0),
            ((), 0),
        ],
    )
    def test_count_ready_endpoints_of_this_node(self, endpoints: tuple[Endpoint, ...], expected: int) -> None:
        found = forwarding(full(external_local=True, health_check_node_port=32001), endpoint_slice("web", *endpoints))
        assert found.health_check == HealthCheck(key(), 32001, expected)

    @pytest.mark.parametrize(
        "fields",
        [
            {"external_local": True},
            {"health_check_node_port": 32001},
            {"health_check_node_port": 65536, "external_local": True},
            {"health_check_node_port": -1, "external_local": True},
        ],
    )
    def test_are_for_a_port_and_policy_local(self, fields: dict[str, Any]) -> None:
        assert forwarding(full(**fields), endpoint_slice("web", A)).health_check is None
