"""Admission: every bad item is refused alone, by name, and everything beside it is served."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as patiently
from hypothesis import strategies as st

from proxyd.desired.admission import Admitted, admit
from proxyd.model import Family, Finding, Reason, Service
from tests.build import port, service

V4, V6 = Family.IPV4, Family.IPV6
DUAL = ("10.96.0.1", "fd00:96::1")


def refused(built: Service) -> list[tuple[Reason, str]]:
    """The Findings, all of which must name the Service."""
    findings = admit(built).findings
    assert {(f.kind, f.object) for f in findings} <= {("Service", str(built.key))}
    return [(f.reason, f.message) for f in findings]


def admitted(family: Family = V4, **fields: Any) -> Admitted:
    return admit(service(**fields)).families[family]


def test_a_good_service_is_admitted_whole() -> None:
    good = service(
        cluster_ips=DUAL,
        external_ips=("192.0.2.99", "2001:db8::99"),
        ingress_ips=("203.0.113.10", "2001:db8:1::10"),
        source_ranges=("198.51.100.0/24", "2001:db8:7::/48"),
        ports=(port(80, "http", node_port=30080), port(53, "dns", "udp")),
        affinity_seconds=600,
    )
    assert admit(good).findings == ()
    assert admit(good).families == {
        V4: Admitted("10.96.0.1", ("192.0.2.99",), ("203.0.113.10",), ("198.51.100.0/24",), good.ports, 600),
        V6: Admitted("fd00:96::1", ("2001:db8::99",), ("2001:db8:1::10",), ("2001:db8:7::/48",), good.ports, 600),
    }


class TestClusterIPs:
    @pytest.mark.parametrize("ips", [(), ("",), (" ", "\t")])
    def test_without_one_nothing_is_served_and_nothing_is_wrong(self, ips: tuple[str, ...]) -> None:
        admission = admit(service(cluster_ips=ips))
        assert (admission.families, admission.findings) == ({}, ())

    def test_a_family_without_one_is_not_served(self) -> None:
        assert set(admit(service(cluster_ips=("fd00:96::1",))).families) == {V6}

    @pytest.mark.parametrize(
        "ip", ["10.96.0.300", "svc.example", "0.0.0.0", "127.0.0.1", "224.0.0.1", "::1", "fe80::1%eth0"]
    )
    def test_a_bad_one_is_refused_and_the_other_family_is_served(self, ip: str) -> None:
        built = service(cluster_ips=(ip, "fd00:96::1"))
        assert refused(built) == [(Reason.INVALID_ADDRESS, f"spec.clusterIPs[0]: {ip!r} cannot be a Service address")]
        assert set(admit(built).families) == {V6}

    def test_the_first_of_a_family_counts_and_another_is_refused(self) -> None:
        built = service(cluster_ips=("10.96.0.1", "10.96.0.2"))
        message = "spec.clusterIPs: 10.96.0.2 is not served, being a second IPv4 address"
        assert refused(built) == [(Reason.INVALID_ADDRESS, message)]
        assert admit(built).families[V4].cluster_ip == "10.96.0.1"

    def test_one_that_is_listed_twice_is_one(self) -> None:
        assert refused(service(cluster_ips=("10.96.0.1", "10.96.0.1"))) == []

    def test_leading_zeros_are_read_as_decimal(self) -> None:
        assert admitted(ip="010.096.000.010").cluster_ip == "10.96.0.10"


class TestAddresses:
    """External IPs and load balancer addresses."""

    FIELDS = pytest.mark.parametrize(
        ("field", "where"),
        [("external_ips", "spec.externalIPs"), ("ingress_ips", "status.loadBalancer.ingress")],
    )
    BAD = (
        "::ffff:10.0.0.1",
        "fe80::1%eth0",
        "10.1.2.3/8",
        "10.0.0.256",
        "example.org",
        "0.0.0.0",
        "127.0.0.1",
        "127.1.2.3",
        "239.1.1.1",
        "::",
        "::1",
        "ff02::1",
        "10.0.0.1; drop",
    )

    @FIELDS
    @pytest.mark.parametrize("bad", BAD)
    def test_a_bad_one_is_refused_by_its_field_and_the_rest_is_served(self, field: str, where: str, bad: str) -> None:
        built = service(cluster_ips=DUAL, **{field: ("203.0.113.1", bad, "2001:db8::1", "203.0.113.2")})
        assert refused(built) == [(Reason.INVALID_ADDRESS, f"{where}[1]: {bad!r} cannot be a Service address")]
        families = admit(built).families
        assert getattr(families[V4], field) == ("203.0.113.1", "203.0.113.2")
        assert getattr(families[V6], field) == ("2001:db8::1",)
        assert families[V4].ports == families[V6].ports == built.ports

    @FIELDS
    def test_blank_ones_are_skipped_silently(self, field: str, where: str) -> None:
        built = service(**{field: ("", " ", "203.0.113.1")})
        assert refused(built) == []
        assert getattr(admit(built).families[V4], field) == ("203.0.113.1",)

    @FIELDS
    def test_one_of_a_family_without_cluster_ip_is_reported_and_not_served(self, field: str, where: str) -> None:
        built = service(**{field: ("203.0.113.1", "2001:db8::5")})
        message = f"{where}: 2001:db8::5 is IPv6, but there is no IPv6 cluster IP"
        assert refused(built) == [(Reason.INVALID_ADDRESS, message)]
        assert getattr(admit(built).families[V4], field) == ("203.0.113.1",)

    @FIELDS
    def test_repeated_ones_count_once_however_they_are_spelled(self, field: str, where: str) -> None:
        built = service(**{field: ("10.10.1.7", "10.010.1.7", " 10.10.1.7")})
        assert getattr(admit(built).families[V4], field) == ("10.10.1.7",)
        assert refused(built) == []


class TestPorts:
    @pytest.mark.parametrize(
        ("bad", "reason", "message"),
        [
            (port(0), Reason.INVALID_PORT, "spec.ports[1].port: 0 is not within 1..65535"),
            (port(-1), Reason.INVALID_PORT, "spec.ports[1].port: -1 is not within 1..65535"),
            (port(65536), Reason.INVALID_PORT, "spec.ports[1].port: 65536 is not within 1..65535"),
            (port(80, "x", "icmp"), Reason.INVALID_PORT, "spec.ports[1].protocol: 'icmp' is not TCP, UDP or SCTP"),
            (port(80, "x", ""), Reason.INVALID_PORT, "spec.ports[1].protocol: '' is not TCP, UDP or SCTP"),
            (port(443, "again"), Reason.DUPLICATE_PORT, "spec.ports[1]: 443/tcp is listed before"),
        ],
    )
    def test_a_bad_port_is_refused_and_the_others_are_served(self, bad: Any, reason: Reason, message: str) -> None:
        first, last = port(443, "https"), port(1, "last")
        built = service(ports=(first, bad, last))
        assert refused(built) == [(reason, message)]
        assert admit(built).families[V4].ports == (first, last)

    @pytest.mark.parametrize(
        ("number", "reason", "message"),
        [
            (-1, Reason.INVALID_PORT, "spec.ports[1].nodePort: -1 is not within 0..65535"),
            (65536, Reason.INVALID_PORT, "spec.ports[1].nodePort: 65536 is not within 0..65535"),
            (30080, Reason.DUPLICATE_PORT, "spec.ports[1].nodePort: 30080/tcp is listed before"),
        ],
    )
    def test_with_a_bad_node_port_the_port_is_served_without_it(
        self, number: int, reason: Reason, message: str
    ) -> None:
        first, bad, last = port(80, "a", node_port=30080), port(81, "b", node_port=number), port(82, "c")
        built = service(ports=(first, bad, last))
        assert refused(built) == [(reason, message)]
        assert admit(built).families[V4].ports == (first, port(81, "b"), last)

    @pytest.mark.parametrize("number", [-1, 65536])
    def test_a_bad_port_for_health_checks_is_refused_alone(self, number: int) -> None:
        built = service(health_check_node_port=number)
        message = f"spec.healthCheckNodePort: {number} is not within 0..65535"
        assert refused(built) == [(Reason.INVALID_PORT, message)]
        assert admit(built).families[V4].ports == built.ports

    def test_a_refused_port_does_not_take_its_numbers_away_from_later_ones(self) -> None:
        good = port(80, "b", node_port=30080)
        assert admitted(ports=(port(0, "a", node_port=30080), good)).ports == (good,)

    def test_one_number_with_each_protocol_is_no_duplicate(self) -> None:
        ports = tuple(port(53, protocol, protocol, node_port=30053) for protocol in ("tcp", "udp", "sctp"))
        built = service(ports=ports)
        assert refused(built) == []
        assert admit(built).families[V4].ports == ports

    def test_without_ports_there_is_still_the_cluster_ip(self) -> None:
        assert admitted(ports=()) == Admitted("10.96.0.1", (), (), None, ())


class TestSourceRanges:
    def sources(self, *ranges: str) -> tuple[Any, Any]:
        families = admit(service(cluster_ips=DUAL, source_ranges=ranges)).families
        return families[V4].sources, families[V6].sources

    def test_none_is_open(self) -> None:
        assert self.sources() == (None, None)

    def test_of_each_family_for_itself(self) -> None:
        assert self.sources("198.51.100.0/24", "2001:db8::/32") == (("198.51.100.0/24",), ("2001:db8::/32",))

    def test_of_the_other_family_only_leave_this_one_open(self) -> None:
        assert self.sources("198.51.100.0/24") == (("198.51.100.0/24",), None)
        assert self.sources("2001:db8::/32") == (None, ("2001:db8::/32",))

    def test_with_blanks_around_them(self) -> None:
        assert self.sources(" 203.0.113.0/25", "198.51.100.0/24 ")[0] == ("203.0.113.0/25", "198.51.100.0/24")

    def test_keep_the_order_in_which_they_are_given_as_far_as_they_are_not_merged(self) -> None:
        given = ("203.0.113.128/25", "192.0.2.0/24", "203.0.113.0/25", "10.0.0.0/8")
        assert self.sources(*given)[0] == ("192.0.2.0/24", "10.0.0.0/8", "203.0.113.0/24")

    def test_with_leading_zeros_and_host_bits(self) -> None:
        assert self.sources("010.1.2.3/8")[0] == ("10.0.0.0/8",)

    def test_that_overlap_or_repeat_are_merged(self) -> None:
        assert self.sources("10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8", "10.1.2.3/8")[0] == ("10.0.0.0/8",)

    def test_that_hold_everything_open_their_family_and_not_the_other(self) -> None:
        assert self.sources("10.0.0.0/8", "0.0.0.0/0") == (("0.0.0.0/0",), None)
        assert self.sources("0.0.0.0/0", "2001:db8::/32") == (("0.0.0.0/0",), ("2001:db8::/32",))

    def test_blank_ones_only_are_open(self) -> None:
        assert self.sources("", "  ") == (None, None)

    @pytest.mark.parametrize("bad", ["10.0.0.0", "10.0.0.0/33", "fe80::1%eth0/64", "::ffff:10.0.0.0/104", "anywhere"])
    def test_an_unreadable_one_is_refused_and_the_others_hold(self, bad: str) -> None:
        built = service(source_ranges=("198.51.100.0/24", bad))
        message = f"spec.loadBalancerSourceRanges[1]: {bad!r} is not a CIDR"
        assert refused(built) == [(Reason.INVALID_SOURCE_RANGE, message)]
        assert admit(built).families[V4].sources == ("198.51.100.0/24",)

    def test_unreadable_ones_only_are_closed(self) -> None:
        assert self.sources("10.0.0.0/33", "") == ((), ())

    def test_an_unreadable_one_closes_a_family_that_has_no_other(self) -> None:
        assert self.sources("198.51.100.0/24", "2001:db8::/129") == (("198.51.100.0/24",), ())


class TestAffinity:
    @pytest.mark.parametrize("seconds", [0, 1, 10800, 86400])
    def test_what_the_api_allows_is_taken(self, seconds: int) -> None:
        built = service(affinity_seconds=seconds)
        assert (admit(built).families[V4].affinity_seconds, refused(built)) == (seconds, [])

    @pytest.mark.parametrize("seconds", [-1, 86401, 10**12])
    def test_what_it_does_not_allow_becomes_its_default(self, seconds: int) -> None:
        built = service(affinity_seconds=seconds)
        message = f"spec.sessionAffinityConfig.clientIP.timeoutSeconds: {seconds} is not within 1..86400"
        assert refused(built) == [(Reason.INVALID_AFFINITY, message)]
        assert admit(built).families[V4].affinity_seconds == 10800


def test_everything_bad_at_once_still_serves_the_good_rest() -> None:
    built = service(
        cluster_ips=("10.96.0.1", "bogus"),
        external_ips=("2001:db8::5", "192.0.2.99", "no"),
        ingress_ips=("10.010.1.7", "fe80::1%eth0"),
        source_ranges=("198.51.100.0/24 ", "2001:db8::/32", "x"),
        ports=(port(80, "http", node_port=99999), port(0, "zero"), port(81, "other")),
    )
    assert admit(built).families == {
        V4: Admitted("10.96.0.1", ("192.0.2.99",), ("10.10.1.7",), ("198.51.100.0/24",), (port(80), port(81, "other")))
    }
    assert [reason for reason, _ in refused(built)] == [
        Reason.INVALID_ADDRESS,
        Reason.INVALID_PORT,
        Reason.INVALID_PORT,
        Reason.INVALID_ADDRESS,
        Reason.INVALID_ADDRESS,
        Reason.INVALID_ADDRESS,
        Reason.INVALID_SOURCE_RANGE,
    ]


ANY_TEXT = st.sampled_from(
    ["", " ", "10.0.0.1", "010.0.0.1", "fd00::1", "x", "0.0.0.0", "10.0.0.0/8", "::/0"]
) | st.text(max_size=8)
TEXTS = st.lists(ANY_TEXT, max_size=4).map(tuple)
NUMBERS = st.integers(-2, 3) | st.integers(65530, 65540)
PORTS = st.lists(
    st.builds(port, NUMBERS, ANY_TEXT, st.sampled_from(["tcp", "udp", "sctp", "icmp", ""]), NUMBERS), max_size=4
).map(tuple)


@patiently(deadline=None)
@given(TEXTS, TEXTS, TEXTS, TEXTS, PORTS)
def test_admission_never_raises_and_what_passes_is_canonical(
    cluster_ips: tuple[str, ...],
    external_ips: tuple[str, ...],
    ingress_ips: tuple[str, ...],
    source_ranges: tuple[str, ...],
    ports: Any,
) -> None:
    built = service(
        cluster_ips=cluster_ips,
        external_ips=external_ips,
        ingress_ips=ingress_ips,
        source_ranges=source_ranges,
        ports=ports,
    )
    admission = admit(built)
    assert all(isinstance(finding, Finding) for finding in admission.findings)
    for family, each in admission.families.items():
        again = service(
            cluster_ips=(each.cluster_ip,),
            external_ips=each.external_ips,
            ingress_ips=each.ingress_ips,
            source_ranges=each.sources or (),
            ports=each.ports,
        )
        assert admit(again).findings == ()
        assert admit(again).families[family] == (each if each.sources != () else _open(each))


def _open(each: Admitted) -> Admitted:
    return Admitted(each.cluster_ip, each.external_ips, each.ingress_ips, None, each.ports)
