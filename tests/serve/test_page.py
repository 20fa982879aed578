"""The address of the status page: who gets an answer, with which headers, and what the JSON says."""

from __future__ import annotations

import base64
import hashlib
import http.client
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from proxyd.explain.answer import Answer
from proxyd.explain.answering import Words
from proxyd.kernel.surroundings import Surroundings
from proxyd.model import Family, Finding, Reason
from proxyd.serve.health import Moment
from proxyd.serve.http import Request, Response
from proxyd.serve.page.details import MOST_LISTED
from proxyd.serve.page.document import read_document
from proxyd.serve.page.routes import LOOK_AROUND, MOST_FINDINGS, PageSources, may_be_named, page_routes
from proxyd.serve.page.services import MOST_ENDPOINTS, MOST_ROWS, SEVERITY
from tests import build
from tests.browser.node import PageNode
from tests.serve.web import port_of

PATHS = ("/", "/status.json", "/services.json", "/service.json?name=default/web", "/history.json")


@pytest.fixture
def node() -> Iterator[PageNode]:
    with PageNode(build.service(), build.endpoint_slice("web", "10.244.1.2")) as running:
        yield running


def get(node: PageNode, path: str, host: str = "127.0.0.1", method: str = "GET") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(node.listener), timeout=10)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host)
    connection.endheaders()
    return connection.getresponse()


def told(node: PageNode, path: str, **query: str) -> Any:
    response = get(node, f"{path}?{urlencode(query)}" if query else path)
    body = response.read()
    assert response.status == 200, body
    assert response.headers["Content-Type"] == "application/json"
    return msgspec.json.decode(body)


# -- who gets an answer ------------------------------------------------------------------------------------------------

OURS = ("127.0.0.1", "127.0.0.1:10253", "127.1.2.3:80", "localhost", "LOCALHOST:1", "[::1]", "[::1]:10253")
THEIRS = (
    *("example.com", "example.com:10253", "127.0.0.1.example.com", "localhost.example.com", "10.0.0.1", ""),
    *("[::2]:1", "[::1", "127.0.0.1:80:80", "localhost:x", "0x7f.1", "127.0.0.1@example.com"),
)


@pytest.mark.parametrize("host", OURS)
def test_loopback_names_are_ours(host: str) -> None:
    assert may_be_named(host)


@pytest.mark.parametrize("host", THEIRS)
def test_names_that_somebody_else_can_have_are_not(host: str) -> None:
    assert not may_be_named(host)


@pytest.mark.parametrize("path", PATHS)
def test_on_loopback_nothing_is_told_under_another_name(node: PageNode, path: str) -> None:
    assert get(node, path, "localhost").status == 200
    refused = get(node, path, "example.com")
    assert (refused.status, b"node1" in refused.read()) == (403, False)


def test_elsewhere_any_name_will_do(node: PageNode) -> None:
    routes = page_routes(sources(node), "192.0.2.11")
    assert routes["/"](Request("GET", "/", host="node1.example.com")).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", PATHS)
def test_it_can_only_be_read(node: PageNode, path: str, method: str) -> None:
    assert get(node, path, method=method).status == 405


# -- headers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*PATHS, "/service.json?name=a/b/c", "/services.json?limit=x"])
def test_no_answer_is_kept_framed_or_read_by_others(node: PageNode, path: str) -> None:
    headers = get(node, path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers


def test_the_policy_allows_this_script_and_style_alone() -> None:
    page = read_document()
    policy = dict(each.strip().split(" ", 1) for each in dict(page.headers)["Content-Security-Policy"].split(";"))
    text = page.body.decode()
    for tag in ("script", "style"):
        [body] = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert policy[f"{tag}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert (policy["require-trusted-types-for"], policy["trusted-types"]) == ("'script'", "'none'")
    assert "unsafe" not in str(policy)


def test_the_page_names_nothing_outside_itself_and_makes_no_markup() -> None:
    text = read_document().body.decode()
    assert re.findall(r"""(?:src|href)="(?!data:|#)""", text) == []
    assert set(re.findall(r"https?://[^\s\"'`]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|\son\w+=", text) == []
    )


# -- the data ----------------------------------------------------------------------------------------------------------


def sources(node: PageNode, **changes: Any) -> PageSources:
    def explain(_words: Words) -> Answer:
        raise AssertionError

    def history(_request: Request) -> Response:
        raise AssertionError

    given: dict[str, Any] = {
        "report": node.report,
        "around": Surroundings,
        "store": node.store,
        "status": lambda: node.status,
        "explain": explain,
        "traffic": dict,
        "history": history,
    }
    return PageSources(**(given | changes))


def test_the_report_has_the_worst_findings_and_counts_all(node: PageNode) -> None:
    findings = [Finding("Service", f"default/s{at:03}", Reason.FRONTEND_CONFLICT, "lost") for at in range(150)]
    findings.append(Finding("Service", "default/z", Reason.KERNEL_REFUSED, "no room"))
    node.status = msgspec.structs.replace(node.status, findings=tuple(findings))
    state = told(node, "/status.json")
    assert len(state["report"]["findings"]) == MOST_FINDINGS
    assert state["report"]["findings"][0]["reason"] == "kernel-refused"
    assert (state["findings"], state["reasons"]) == (151, {"frontend-conflict": 150, "kernel-refused": 1})
    assert state["report"]["ready"] is True


def test_every_reason_has_its_severity() -> None:
    assert sorted(SEVERITY) == sorted(Reason)


def test_what_is_around_the_node_is_read_seldom(node: PageNode) -> None:
    looks: list[int] = []
    clock = [Moment(100.0, 0.0)]

    def around() -> Surroundings:
        looks.append(1)
        return Surroundings()

    route = page_routes(sources(node, around=around), "127.0.0.1", lambda: clock[0])["/status.json"]
    for seconds, expected in ((0.0, 1), (LOOK_AROUND - 1, 1), (LOOK_AROUND, 2), (LOOK_AROUND + 1, 2)):
        clock[0] = Moment(100.0 + seconds, 0.0)
        assert route(Request("GET", "/status.json", host="localhost")).status == 200
        assert len(looks) == expected


def test_a_row_says_what_is_used_and_what_is_wrong(node: PageNode) -> None:
    pods = [build.endpoint("10.244.1.2"), build.endpoint("10.244.1.3"), build.endpoint("10.244.1.4", node="node2")]
    node.store.services.put(
        build.decoded(build.service("local", ip="10.96.0.2", internal_local=True, ports=(build.port(node_port=30080),)))
    )
    node.store.slices.put(build.decoded(build.endpoint_slice("local", *pods[:1], pods[2])))
    node.store.slices.put(
        build.decoded(build.endpoint_slice("local", build.endpoint("10.244.1.9", **build.NOT_SERVING), name="more"))
    )
    found = [
        Finding("Service", "default/local", reason, "x") for reason in (Reason.INVALID_PORT, Reason.KERNEL_REFUSED)
    ]
    node.status = msgspec.structs.replace(node.status, findings=tuple(found))
    [row] = told(node, "/services.json", search="LOCAL")["rows"]
    assert (row["namespace"], row["name"], row["type"]) == ("default", "local", "NodePort")
    # The node port is for everybody; without it only the endpoint here would be used.
    assert (row["used"], row["ready"], row["endpoints"]) == (2, 2, 3)
    assert (row["finding"], row["findings"]) == ("kernel-refused", 2)
    assert row["ports"] == [{"name": "http", "protocol": "tcp", "port": 80, "nodePort": 30080}]


def test_traffic_that_stays_here_uses_what_is_here(node: PageNode) -> None:
    node.store.services.put(build.decoded(build.service(internal_local=True)))
    node.store.slices.put(
        build.decoded(build.endpoint_slice("web", "10.244.1.2", build.endpoint("10.244.2.2", node="node2")))
    )
    [row] = told(node, "/services.json")["rows"]
    assert (row["used"], row["ready"]) == (1, 2)


@pytest.mark.parametrize(
    ("search", "names"),
    [
        ("", ["a", "b", "web"]),
        ("a", ["a", "b", "web"]),  # default
        ("default/a", ["a"]),
        ("10.96.0.9", ["b"]),
        (":8443", ["b"]),
        (":30123", ["b"]),
        ("default 10.96 :80", ["a", "b", "web"]),
        ("web nothing", []),
    ],
)
def test_all_words_of_a_search_count(node: PageNode, search: str, names: list[str]) -> None:
    ports = (build.port(), build.port(8443, "s", node_port=30123))
    for each in (build.service("b", ip="10.96.0.9", ports=ports), build.service("a", ip="10.96.0.2")):
        node.store.services.put(build.decoded(each))
    listing = told(node, "/services.json", search=search)
    assert [each["name"] for each in listing["rows"]] == names
    assert (listing["total"], listing["matching"], listing["next"]) == (3, len(names), "")


def test_a_list_is_paged_in_order(node: PageNode) -> None:
    for at in range(120):
        node.store.services.put(build.decoded(build.service(f"s{at:03}", ip=f"10.96.1.{at}", namespace="n")))
    seen: list[str] = []
    after, pages = "", 0
    while (after or not pages) and pages < 5:
        listing = told(node, "/services.json", after=after, search="n/")
        seen += [each["name"] for each in listing["rows"]]
        after, pages = listing["next"], pages + 1
    assert (seen, pages) == ([f"s{at:03}" for at in range(120)], 3)


def test_a_list_ends_early_where_services_are_large(node: PageNode) -> None:
    many = [build.endpoint(f"10.{at >> 16}.{at >> 8 & 255}.{at & 255}") for at in range(MOST_ENDPOINTS + 1)]
    for name in ("a", "b"):
        node.store.services.put(build.decoded(build.service(name, ip="10.96.2.1")))
    node.store.slices.put(build.decoded(build.endpoint_slice("a", *many)))
    first = told(node, "/services.json")
    assert [each["name"] for each in first["rows"]] == ["a"]
    assert [each["name"] for each in told(node, "/services.json", after=first["next"])["rows"]] == ["b", "web"]


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/services.json?limit=0", "limit: must be 1..200, got '0'"),
        (f"/services.json?limit={MOST_ROWS + 1}", "limit: must be 1..200, got '201'"),
        ("/services.json?limit=-1", "limit: must be 1..200, got '-1'"),
        (f"/services.json?search={'x' * 201}", "search: at most 200 characters"),
        ("/service.json", "say either a Service"),
        ("/service.json?name=a/b/c", "a Service must be like default/web"),
        ("/history.json?after=x", "after: must be a number"),
    ],
)
def test_what_cannot_be_asked_is_said(node: PageNode, path: str, problem: str) -> None:
    response = get(node, path)
    body = response.read().decode()
    assert (response.status, body.startswith(problem)) == (400, True), body


def test_details_are_bounded_and_counted(node: PageNode) -> None:
    node.store.slices.put(
        build.decoded(build.endpoint_slice("web", *(f"10.244.{at >> 8}.{at & 255}" for at in range(MOST_LISTED + 5))))
    )
    answer = told(node, "/service.json", name="default/web")
    [service] = answer["answer"]["services"]
    assert len(service["ports"][0]["cluster"]) == MOST_LISTED
    assert answer["cut"] == [{"port": "80/tcp", "family": "IPv4", "list": "cluster", "all": MOST_LISTED + 5}]
    assert (answer["counts"], answer["connections"]) == (False, [])


def test_before_anything_is_written_nothing_can_be_explained(node: PageNode) -> None:
    for family in Family:
        node.family(family, settings=None)
    assert get(node, "/service.json?name=default/web").status == 503
    assert told(node, "/services.json")["rows"][0]["used"] == 0


def test_history_goes_on_after_a_number(node: PageNode) -> None:
    for _ in range(3):
        node.passed()
    assert [each["sequence"] for each in told(node, "/history.json", after="1")["entries"]] == [2, 3]
