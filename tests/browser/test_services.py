"""The list of Services on the status page: searched and opened by keyboard, also among thousands."""

from __future__ import annotations

import json

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.model import Finding, Reason
from proxyd.sync.traffic import ServiceTraffic, Traffic
from tests import build
from tests.browser.chromium import Browser, Tab
from tests.browser.node import V4, PageNode
from tests.browser.test_states import NARROW, check, visit

ROWS = "[...document.querySelectorAll('#service-rows .open')].map((each) => each.textContent)"
FOCUSED = "document.activeElement.textContent || document.activeElement.id"


def search(tab: Tab, text: str, *finds: str) -> None:
    """Types into the search, and waits for exactly these rows."""
    tab.js("document.getElementById('search').select()")
    tab.type(text)
    tab.wait(f"JSON.stringify({ROWS}) === {json.dumps(json.dumps(finds, separators=(',', ':')))}")


def one(**fields: object) -> PageNode:
    """A node with one Service that has an endpoint in use and three that are left out."""
    pods = (
        build.endpoint("10.244.1.2"),
        build.endpoint("10.244.1.3", **build.NOT_SERVING),
        build.endpoint("10.244.2.4", node="node2", **build.SERVING_TERMINATING),
    )
    counted = Traffic((ServiceTraffic("default", "web", "http", "tcp", 12, {Backend("10.244.1.2", 8080): 12}),))
    return PageNode(
        build.service(),
        build.endpoint_slice("web", *pods),
        build.endpoint_slice("web", name="web-2", refused=("10.0.0.999",)),
        traffic={V4: counted},
        **fields,  # type: ignore[arg-type]
    )


def test_everything_can_be_done_by_keyboard(browser: Browser) -> None:
    objects = [build.service(name, ip=f"10.96.0.{at}") for at, name in enumerate(("web", "api", "apiary"), 1)]
    with PageNode(*objects) as node:
        tab = visit(browser, node)
        tab.press("Tab")
        assert "Skip to" in tab.js(FOCUSED)
        tab.press("Tab", 2)
        assert tab.js(FOCUSED) == "search"
        tab.type("api")
        tab.wait(f"{ROWS}.length === 2")
        assert tab.text("#matching") == "2 of 3 Services"
        tab.press("ArrowDown", 2)
        assert tab.js(FOCUSED) == "default/apiary"
        tab.press("ArrowUp")
        assert tab.js(FOCUSED) == "default/api"
        tab.press("Enter")
        tab.wait("!!document.querySelector('.detail h3')")
        assert tab.js("document.activeElement.getAttribute('aria-expanded')") == "true"
        assert "10.96.0.2:80/tcp" in tab.text(".detail")
        tab.press("Escape")
        assert tab.js(FOCUSED) == "search"
        assert tab.js("document.querySelectorAll('.detail').length") == 0
        tab.press("Tab", 2)
        tab.press("/")
        assert tab.js(FOCUSED) == "search"


def test_a_slash_in_the_search_is_typed(browser: Browser) -> None:
    with PageNode(build.service()) as node:
        tab = visit(browser, node)
        tab.press("/")
        tab.press("/")
        assert tab.js("document.getElementById('search').value") == "/"


def test_focus_stays_where_it_is_when_the_page_refreshes(browser: Browser) -> None:
    with one() as node:
        tab = visit(browser, node)
        tab.js("document.querySelector('.open').focus()")
        tab.press("Enter")
        tab.wait("!!document.querySelector('.detail h3')")
        ticks = tab.js("page.ticks")
        node.store.services.put(build.decoded(build.service("earlier", ip="10.96.0.9")))
        tab.js("refresh()")
        tab.wait(f"page.ticks > {ticks} && {ROWS}.length === 2")
        assert tab.js(FOCUSED) == "default/web"
        assert tab.js("document.querySelector('.detail').previousElementSibling.textContent").startswith("default/web")


@pytest.mark.parametrize("size", [(1280, 1400), (375, 2400)], ids=["wide", "narrow"])
def test_an_open_service_says_why_each_endpoint_is_used_or_not(browser: Browser, size: tuple[int, int]) -> None:
    with one() as node:
        tab = visit(browser, node, size)
        assert "1 used" in tab.text("#service-rows .count")
        tab.js("document.querySelector('.open').click()")
        tab.wait("!!document.querySelector('.left-out')")
        assert "10.244.1.2:8080 on node1, 12 connections" in tab.text(".used")
        left_out = tab.text(".left-out")
        assert "10.244.1.3:8080 on node1: not-ready" in left_out
        assert "10.244.2.4:8080 on node2: terminating (it serves still" in left_out
        assert "10.0.0.999: refused" in left_out
        assert "invalid-endpoint" in tab.text(".detail")
        check(tab, node)


def test_only_those_with_findings(browser: Browser) -> None:
    found = Finding("Service", "default/b", Reason.FRONTEND_CONFLICT, "lost")
    objects = [build.service(name, ip=f"10.96.0.{at}") for at, name in enumerate("abc", 1)]
    with PageNode(*objects, findings=(found, found)) as node:
        tab = visit(browser, node, NARROW)
        assert tab.js(f"{ROWS}.length") == 3
        tab.js("document.getElementById('only').focus()")
        tab.press("Space")
        tab.wait(f"{ROWS}.length === 1")
        assert tab.js(ROWS) == ["default/b"]
        assert "frontend-conflict" in tab.text("#service-rows")
        assert "and 1 more" in tab.text("#service-rows")
        check(tab, node)


def test_thousands_of_services(browser: Browser) -> None:
    objects: list[object] = []
    for index in range(5000):
        name, net = f"s{index:04}", f"{index // 250}.{index % 250 + 1}"
        objects.append(build.service(name, ip=f"10.96.{net}"))
        objects.append(build.endpoint_slice(name, *(f"10.{244 + pod}.{net}" for pod in range(10))))
    with PageNode(*objects) as node:
        tab = visit(browser, node)
        assert tab.text("#matching") == "5,000 Services"
        assert tab.js(f"{ROWS}.length") == 50
        tab.js("document.getElementById('next').click()")
        tab.wait(f"{ROWS}[0] === 'default/s0050'")
        tab.js("document.getElementById('previous').click()")
        tab.wait(f"{ROWS}[0] === 'default/s0000'")
        search(tab, "s4999", "default/s4999")
        search(tab, "10.96.7.250", "default/s1999")
        assert tab.js("document.getElementById('next').hidden") is True
        search(tab, "nothing")
        assert tab.text("#matching") == "0 of 5,000 Services"
        check(tab, node)
