"""healthCheckNodePort: what is answered, and that listeners follow what is written to the kernel."""

from __future__ import annotations

import http.client
import json
import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from proxyd.desired.forwarding import HealthCheck
from proxyd.model import Family, NodeSettings, ServiceKey
from proxyd.serve.http import Server
from proxyd.serve.service_health import Check, ServiceHealth, answer, checks_of
from proxyd.sync.status import FamilyStatus, Status
from tests.build import key

V4, V6 = Family.IPV4, Family.IPV6
WEB, API = key("web"), key("api")


def status(*checks: HealthCheck, family: Family = V4, hosts: tuple[str, ...] | None = ("127.0.0.1",)) -> Status:
    settings = NodeSettings(family, "n1", node_port_addresses=hosts)
    return Status("nftables", (FamilyStatus(family, health_checks=checks, settings=settings),))


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


class Node:
    def __init__(self) -> None:
        self.server = Server(retry_seconds=0.02)
        self.server.start()
        self.healthy = True
        self.told: queue.Queue[tuple[ServiceKey, str]] = queue.Queue()
        self.health = ServiceHealth(self.server, lambda: self.healthy, lambda *what: self.told.put(what))

    def get(self, port: int, host: str = "127.0.0.1") -> tuple[int, dict[str, Any], str | None]:
        connection = http.client.HTTPConnection(host, port, timeout=10)
        try:
            connection.request("GET", "/any/path")
            response = connection.getresponse()
            return response.status, json.loads(response.read()), response.headers["X-Load-Balancing-Endpoint-Weight"]
        finally:
            connection.close()

    def update(self, *checks: HealthCheck) -> None:
        """Takes a status and waits until every listener that it asks for is there."""
        self.health.update(status(*checks))
        for listener in self.health.listeners:
            assert listener.listening.wait(10)


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.server.stop()


@pytest.mark.parametrize(
    ("local", "healthy", "code"), [(2, True, 200), (0, True, 503), (2, False, 503), (0, False, 503)]
)
def test_only_a_node_with_endpoints_and_current_rules_is_recommended(local: int, healthy: bool, code: int) -> None:
    assert answer(WEB, local, healthy).status == code


def test_the_answer_has_the_shape_that_load_balancers_know() -> None:
    response = answer(WEB, 3, True)
    assert response.content_type == "application/json"
    assert response.headers == (("X-Load-Balancing-Endpoint-Weight", "3"),)
    assert json.loads(response.body) == {
        "service": {"namespace": "default", "name": "web"},
        "localEndpoints": 3,
        "serviceProxyHealthy": True,
    }


def test_a_listener_is_asked_for_on_every_address_that_takes_node_ports() -> None:
    (family,) = status(HealthCheck(WEB, 32001, 1), hosts=("192.0.2.11", "192.0.2.13")).families
    assert checks_of(family) == {Check(V4, WEB, "192.0.2.11", 32001), Check(V4, WEB, "192.0.2.13", 32001)}


@pytest.mark.parametrize(("family", "host"), [(V4, "0.0.0.0"), (V6, "::")])
def test_without_a_restriction_the_listener_is_on_any_address_of_the_family(family: Family, host: str) -> None:
    (each,) = status(HealthCheck(WEB, 32001, 1), family=family, hosts=None).families
    assert checks_of(each) == {Check(family, WEB, host, 32001)}


def test_answers_follow_the_number_of_local_endpoints(node: Node) -> None:
    port = free_port()
    node.update(HealthCheck(WEB, port, 1))
    assert node.get(port)[0] == 200
    node.update(HealthCheck(WEB, port, 0))
    code, body, weight = node.get(port)
    assert (code, body["localEndpoints"], weight) == (503, 0, "0")
    node.update(HealthCheck(WEB, port, 5))
    assert node.get(port)[0] == 200


def test_each_family_answers_for_itself_on_the_same_port_of_any_address(node: Node) -> None:
    port = free_port()
    both = (
        status(HealthCheck(WEB, port, local), family=family, hosts=None).families[0]
        for family, local in ((V4, 1), (V6, 0))
    )
    node.health.update(Status("iptables", tuple(both)))
    for listener in node.health.listeners:
        assert listener.listening.wait(10), listener.name
    assert (node.get(port)[0], node.get(port, "::1")[0]) == (200, 503)
    assert node.told.empty()


def test_rules_that_are_not_current_recommend_the_node_for_nothing(node: Node) -> None:
    port = free_port()
    node.update(HealthCheck(WEB, port, 1))
    node.healthy = False
    code, body, _ = node.get(port)
    assert (code, body["serviceProxyHealthy"]) == (503, False)


def test_a_service_that_goes_or_changes_its_port_frees_the_old_one(node: Node) -> None:
    first, second = free_port(), free_port()
    node.update(HealthCheck(WEB, first, 1))
    node.update(HealthCheck(WEB, second, 1))
    assert node.get(second)[0] == 200
    with pytest.raises(ConnectionError):
        node.get(first)
    node.update()
    with pytest.raises(ConnectionError):
        node.get(second)


def test_a_port_can_pass_from_one_service_to_another(node: Node) -> None:
    port = free_port()
    node.update(HealthCheck(WEB, port, 1))
    node.update(HealthCheck(API, port, 2))
    assert node.get(port)[1]["service"] == {"namespace": "default", "name": "api"}


def test_a_port_that_somebody_else_has_is_taken_when_it_is_free(node: Node) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        node.health.update(status(HealthCheck(WEB, port, 1)))
        (listener,) = node.health.listeners
        assert not listener.listening.wait(0.1)
    assert listener.listening.wait(10)
    assert node.get(port)[0] == 200


def test_hundreds_of_services_are_answered_by_one_thread(node: Node) -> None:
    ports = {free_port() for _ in range(200)}
    checks = [HealthCheck(ServiceKey("default", f"s{n}"), port, n % 2) for n, port in enumerate(ports)]
    node.update(*checks)
    assert [node.get(each.port)[0] for each in checks] == [200 if each.local_endpoints else 503 for each in checks]


def test_a_port_that_is_taken_is_told_with_its_service_and_had_later(node: Node) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node.health.update(status(HealthCheck(WEB, port, 1)))
        service, problem = node.told.get(timeout=10)
        assert service == WEB
        assert problem.startswith(f"cannot listen on 127.0.0.1:{port}: ")
    node.update(HealthCheck(WEB, port, 1))
    assert node.get(port)[0] == 200
    assert node.told.empty()
