"""JSON of the API to the model: every field, everything that is left out, and everything that is refused."""

import json
from typing import Any

import msgspec
import pytest

from proxyd.kube.decode import Decoded, decode_endpoint_slice, decode_node, decode_service
from proxyd.model import Endpoint, EndpointSlice, Family, Node, Service, ServiceKey, ServicePort, SlicePort

META = {"name": "web", "namespace": "shop", "resourceVersion": "17"}


def service(spec: dict[str, Any] | None, meta: dict[str, Any] | None = None, **more: Any) -> Decoded[Service]:
    return decode_service(json.dumps({"metadata": {**META, **(meta or {})}, "spec": spec, **more}).encode())


def slice_of(endpoints: Any, meta: dict[str, Any] | None = None, **more: Any) -> Decoded[EndpointSlice]:
    labels = {"kubernetes.io/service-name": "web"}
    given = {
        "metadata": {**META, "name": "web-abc", "labels": labels, **(meta or {})},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        **more,
    }
    return decode_endpoint_slice(json.dumps(given).encode())


def value(decoded: Decoded[Any]) -> Any:
    assert decoded.refused == ""
    assert decoded.value is not None
    return decoded.value


class TestService:
    def test_every_field(self) -> None:
        decoded = service(
            {
                "type": "LoadBalancer",
                "ports": [
                    {"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 30080},
                    {"name": "dns", "protocol": "UDP", "port": 53, "targetPort": 5353},
                ],
                "clusterIP": "10.0.0.1",
                "clusterIPs": ["10.0.0.1", "fd00::1"],
                "externalIPs": ["192.0.2.1"],
                "loadBalancerSourceRanges": ["198.51.100.0/24 "],
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
                "externalTrafficPolicy": "Local",
                "internalTrafficPolicy": "Local",
                "healthCheckNodePort": 32001,
                "selector": {"app": "web"},
            },
            {"creationTimestamp": "2026-01-01T00:00:00Z", "uid": "1-2-3"},
            status={"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}},
        )
        assert decoded.key == ("shop", "web")
        assert decoded.resource_version == "17"
        assert value(decoded) == Service(
            key=ServiceKey("shop", "web"),
            ports=(ServicePort("http", "tcp", 80, 30080), ServicePort("dns", "udp", 53)),
            cluster_ips=("10.0.0.1", "fd00::1"),
            external_ips=("192.0.2.1",),
            ingress_ips=("203.0.113.1",),
            source_ranges=("198.51.100.0/24 ",),
            affinity_seconds=60,
            internal_local=True,
            external_local=True,
            health_check_node_port=32001,
            created="2026-01-01T00:00:00Z",
            uid="1-2-3",
        )

    def test_the_least_there_is(self) -> None:
        assert value(service({"clusterIP": "10.0.0.1"})) == Service(ServiceKey("shop", "web"), (), ("10.0.0.1",))

    def test_null_in_every_field(self) -> None:
        names = (
            "type ports clusterIPs externalIPs loadBalancerSourceRanges sessionAffinity sessionAffinityConfig "
            "externalTrafficPolicy internalTrafficPolicy healthCheckNodePort"
        )
        spec = {"clusterIP": "10.0.0.1", **dict.fromkeys(names.split())}
        meta = dict.fromkeys(["labels", "annotations", "creationTimestamp", "deletionTimestamp"])
        expected = Service(ServiceKey("shop", "web"), (), ("10.0.0.1",))
        assert value(service(spec, meta, status=None)) == expected
        assert value(service(spec, status={"loadBalancer": None})) == expected
        assert value(service(spec, status={"loadBalancer": {"ingress": None}})) == expected

    def test_null_in_every_port_field(self) -> None:
        port = dict.fromkeys(["name", "protocol", "port", "nodePort"])
        assert value(service({"clusterIP": "10.0.0.1", "ports": [port]})).ports == (ServicePort("", "tcp", 0),)

    @pytest.mark.parametrize(
        ("spec", "meta"),
        [
            ({"clusterIP": "None"}, {}),
            ({"clusterIP": "None", "clusterIPs": ["None"], "externalIPs": ["192.0.2.1"]}, {}),
            ({"clusterIP": ""}, {}),
            ({"clusterIPs": []}, {}),
            ({}, {}),
            (None, {}),
            ({"type": "ExternalName", "externalName": "example.org"}, {}),
            ({"type": "ExternalName", "clusterIP": "10.0.0.1"}, {}),
            ({"clusterIP": "10.0.0.1"}, {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}),
            ({"clusterIP": "10.0.0.1"}, {"labels": {"service.kubernetes.io/service-proxy-name": ""}}),
        ],
    )
    def test_not_for_this_proxy(self, spec: dict[str, Any] | None, meta: dict[str, Any]) -> None:
        assert service(spec, meta) == Decoded(("shop", "web"), "17", None)

    @pytest.mark.parametrize(
        ("ingress", "expected"),
        [
            ({"ip": "203.0.113.1", "ipMode": "VIP"}, ("203.0.113.1",)),
            ({"ip": "203.0.113.1", "ipMode": None}, ("203.0.113.1",)),
            ({"ip": "203.0.113.1", "ipMode": "Proxy"}, ()),
            ({"hostname": "lb.example.org"}, ()),
            ({"ip": ""}, ()),
        ],
    )
    def test_ingress(self, ingress: dict[str, Any], expected: tuple[str, ...]) -> None:
        decoded = service({"clusterIP": "10.0.0.1"}, status={"loadBalancer": {"ingress": [ingress]}})
        assert value(decoded).ingress_ips == expected

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            ({"sessionAffinity": "None"}, 0),
            ({"sessionAffinity": "ClientIP"}, 10800),
            ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {}}, 10800),
            ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": None}}}, 10800),
            ({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}, 7),
            ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 7}}}, 0),
        ],
    )
    def test_affinity(self, spec: dict[str, Any], expected: int) -> None:
        assert value(service({"clusterIP": "10.0.0.1", **spec})).affinity_seconds == expected

    @pytest.mark.parametrize(("kind", "expected"), [("LoadBalancer", 32001), ("NodePort", 0), (None, 0)])
    def test_health_check_port_of_load_balancers_only(self, kind: str | None, expected: int) -> None:
        spec = {"clusterIP": "10.0.0.1", "type": kind, "healthCheckNodePort": 32001}
        assert value(service(spec)).health_check_node_port == expected

    def test_serves_while_it_is_being_deleted(self) -> None:
        assert value(service({"clusterIP": "10.0.0.1"}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}))

    @pytest.mark.parametrize(
        ("spec", "path"),
        [
            ({"clusterIP": "10.0.0.1", "ports": [{"port": "80"}]}, "$.spec.ports[0].port"),
            ({"clusterIP": 1}, "$.spec.clusterIP"),
            ({"clusterIPs": [None]}, "$.spec.clusterIPs[0]"),
            ([], "$.spec"),
        ],
    )
    def test_wrong_type_refuses_this_object_and_names_the_field(self, spec: Any, path: str) -> None:
        decoded = service(spec)
        assert decoded[:3] == (("shop", "web"), "17", None)
        assert path in decoded.refused

    def test_wrong_type_in_the_metadata_leaves_name_and_version(self) -> None:
        decoded = service({"clusterIP": "10.0.0.1"}, {"labels": {"version": 1}})
        assert decoded[:3] == (("shop", "web"), "17", None)
        assert "$.metadata.labels" in decoded.refused

    def test_without_a_name(self) -> None:
        assert service({"clusterIP": "10.0.0.1"}, {"name": ""}).refused == "no metadata.name"

    def test_missing_namespace_and_version(self) -> None:
        decoded = service({"clusterIP": "10.0.0.1"}, {"namespace": None, "resourceVersion": None})
        assert decoded[:2] == (("", "web"), "")
        refused = service({"clusterIP": 1}, {"name": None, "namespace": None, "resourceVersion": None})
        assert refused[:3] == (("", ""), "", None)

    @pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"metadata":null}', b'{"metadata":{"name":1}}'])
    def test_raises_where_not_even_the_name_can_be_read(self, raw: bytes) -> None:
        with pytest.raises(msgspec.MsgspecError):
            decode_service(raw)


class TestEndpointSlice:
    def test_every_field(self) -> None:
        decoded = slice_of(
            [
                {
                    "addresses": ["192.0.2.1"],
                    "conditions": {"ready": False, "serving": True, "terminating": True},
                    "nodeName": "n1",
                    "zone": "z9",
                    "hints": {"forZones": [{"name": "z1"}, {"name": "z2"}], "forNodes": [{"name": "n2"}]},
                    "targetRef": {"kind": "Pod", "name": "p"},
                }
            ],
            {"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00.5Z"}},
        )
        assert decoded.key == ("shop", "web-abc")
        assert value(decoded) == EndpointSlice(
            "shop",
            "web-abc",
            ServiceKey("shop", "web"),
            Family.IPV4,
            (Endpoint("192.0.2.1", False, True, True, "n1", ("z1", "z2"), ("n2",)),),
            (SlicePort("http", "tcp", 8080),),
            (),
            1767225600.5,
        )

    @pytest.mark.parametrize(
        ("conditions", "expected"),
        [
            (None, (True, True, False)),
            ({}, (True, True, False)),
            ({"ready": None, "serving": None, "terminating": None}, (True, True, False)),
            ({"ready": True}, (True, True, False)),
            ({"ready": False}, (False, True, False)),
            ({"ready": False, "serving": False, "terminating": True}, (False, False, True)),
        ],
    )
    def test_conditions(self, conditions: dict[str, Any] | None, expected: tuple[bool, ...]) -> None:
        [endpoint] = value(slice_of([{"addresses": ["192.0.2.1"], "conditions": conditions}])).endpoints
        assert (endpoint.ready, endpoint.serving, endpoint.terminating) == expected

    @pytest.mark.parametrize("hints", [None, {}, {"forZones": None, "forNodes": None}, {"forZones": [{"name": None}]}])
    def test_no_hints(self, hints: dict[str, Any] | None) -> None:
        [endpoint] = value(slice_of([{"addresses": ["192.0.2.1"], "hints": hints, "nodeName": None}])).endpoints
        assert endpoint == Endpoint("192.0.2.1")

    @pytest.mark.parametrize("endpoints", [None, [], [{}], [{"addresses": None}], [{"addresses": []}]])
    def test_no_endpoints(self, endpoints: Any) -> None:
        decoded = value(slice_of(endpoints))
        assert (decoded.endpoints, decoded.refused) == ((), ())

    def test_first_of_several_addresses(self) -> None:
        [endpoint] = value(slice_of([{"addresses": ["192.0.2.1", "192.0.2.2"]}])).endpoints
        assert endpoint.address == "192.0.2.1"

    @pytest.mark.parametrize(
        ("given", "expected"), [("10.180.00.001", "10.180.0.1"), (" 192.0.2.1", "192.0.2.1"), ("010.1.2.3", "10.1.2.3")]
    )
    def test_addresses_become_canonical(self, given: str, expected: str) -> None:
        [endpoint] = value(slice_of([{"addresses": [given]}])).endpoints
        assert endpoint.address == expected

    @pytest.mark.parametrize(
        "address", ["2001:db8::1", "0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "host", "", "1.2.3.256"]
    )
    def test_unusable_address_harms_no_other(self, address: str) -> None:
        decoded = value(slice_of([{"addresses": [address]}, {"addresses": ["192.0.2.2"]}]))
        assert [endpoint.address for endpoint in decoded.endpoints] == ["192.0.2.2"]
        assert decoded.refused == (address,)

    def test_ipv6(self) -> None:
        given = [{"addresses": ["2001:DB8:0::1"]}, {"addresses": ["fe80::1"]}, {"addresses": ["192.0.2.1"]}]
        decoded = value(slice_of(given, addressType="IPv6"))
        assert decoded.family is Family.IPV6
        assert [endpoint.address for endpoint in decoded.endpoints] == ["2001:db8::1"]
        assert decoded.refused == ("fe80::1", "192.0.2.1")

    @pytest.mark.parametrize(
        ("ports", "expected"),
        [
            (None, ()),
            ([], ()),
            ([{"name": "a", "port": None}], ()),
            ([{"name": "a", "port": 0}], ()),
            ([{"name": None, "port": 80}], (SlicePort("", "tcp", 80),)),
            ([{"port": 80, "protocol": None}], (SlicePort("", "tcp", 80),)),
            ([{"name": "d", "port": 53, "protocol": "UDP"}], (SlicePort("d", "udp", 53),)),
        ],
    )
    def test_ports(self, ports: Any, expected: tuple[SlicePort, ...]) -> None:
        assert value(slice_of([], ports=ports)).ports == expected

    @pytest.mark.parametrize(
        ("labels", "kind"),
        [
            ({"kubernetes.io/service-name": "web"}, "FQDN"),
            ({"kubernetes.io/service-name": "web"}, None),
            ({"kubernetes.io/service-name": ""}, "IPv4"),
            ({}, "IPv4"),
            (None, "IPv4"),
            ({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}, "IPv4"),
            ({"kubernetes.io/service-name": "web", "service.kubernetes.io/service-proxy-name": "x"}, "IPv4"),
        ],
    )
    def test_not_for_this_proxy(self, labels: dict[str, str] | None, kind: str | None) -> None:
        decoded = slice_of([{"addresses": ["192.0.2.1"]}], {"labels": labels}, addressType=kind)
        assert decoded == Decoded(("shop", "web-abc"), "17", None)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("2026-01-01T00:00:00Z", 1767225600.0),
            ("2026-01-01T00:00:00.123456789Z", pytest.approx(1767225600.1234567)),
            ("2026-01-01T00:00:00+01:00", None),
            ("yesterdayZ", None),
            ("2026-01-01T00:00:00.xZ", None),
            ("", None),
        ],
    )
    def test_trigger_time(self, text: str, expected: float | None) -> None:
        meta = {"annotations": {"endpoints.kubernetes.io/last-change-trigger-time": text}}
        assert value(slice_of([], meta)).trigger == expected

    def test_names_are_shared(self) -> None:
        one, two = (value(slice_of([{"addresses": ["192.0.2.1"], "nodeName": "node-17"}])) for _ in range(2))
        assert one.endpoints[0].node is two.endpoints[0].node

    def test_wrong_type_refuses_the_slice(self) -> None:
        decoded = slice_of([{"addresses": "192.0.2.1"}])
        assert decoded[:3] == (("shop", "web-abc"), "17", None)
        assert "$.endpoints[0].addresses" in decoded.refused


class TestNode:
    def node(self, **given: Any) -> Node:
        raw = json.dumps({"metadata": {"name": "n1", **given.pop("meta", {})}, **given}).encode()
        decoded = decode_node(raw)
        assert decoded.key == ("", "n1")
        node: Node = value(decoded)
        return node

    def test_every_field(self) -> None:
        addresses = [
            {"type": "Hostname", "address": "n1"},
            {"type": "ExternalIP", "address": "203.0.113.1"},
            {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "InternalIP", "address": "2001:DB8::1"},
            {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "InternalIP", "address": None},
        ]
        node = self.node(
            meta={"labels": {"topology.kubernetes.io/zone": "z1"}, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            spec={
                "podCIDR": "10.1.0.0/24",
                "podCIDRs": ["10.1.0.0/24", "fd00::/64"],
                "taints": [{"key": "other"}, {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}],
            },
            status={"addresses": addresses},
        )
        assert node == Node(
            "n1", ("192.0.2.1", "2001:db8::1", "203.0.113.1"), "z1", ("10.1.0.0/24", "fd00::/64"), True, True
        )

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"spec": None, "status": None, "meta": {"labels": None}},
            {"spec": {"podCIDR": None, "podCIDRs": None, "taints": None}, "status": {"addresses": None}},
            {"spec": {"podCIDR": "", "podCIDRs": [], "taints": [{"key": None}]}, "status": {}},
        ],
    )
    def test_nothing_known(self, given: dict[str, Any]) -> None:
        assert self.node(**given) == Node("n1")

    def test_one_pod_range(self) -> None:
        assert self.node(spec={"podCIDR": "10.1.0.0/24"}).pod_cidrs == ("10.1.0.0/24",)
