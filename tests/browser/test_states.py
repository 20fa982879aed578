"""What the status page shows of a node in each of its states, in a real browser."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxyd.desired.endpoints import Backend
from proxyd.model import Finding, Origin, Reason
from proxyd.serve.health import Moment
from proxyd.sync.status import Writing
from proxyd.sync.traffic import ServiceTraffic, Traffic
from tests import build
from tests.browser.chromium import Browser, Tab
from tests.browser.looks import OVERLAPS, SHOWN, TOO_FAINT, UNNAMED
from tests.browser.node import V4, V6, PageNode, well, write

WIDE, NARROW = (1280, 900), (375, 812)
DOCS = Path(__file__).parents[2] / "docs"
NO_ROOM = "nft: Could not process rule: No space left on device"
NAMES = ("api", "cart", "checkout", "files", "login", "mail", "orders", "payments", "search", "shop")


def visit(browser: Browser, node: PageNode, size: tuple[int, int] = WIDE, *, dark: bool = False) -> Tab:
    tab = browser.open(*size, dark=dark)
    tab.go(node.url)
    tab.wait(SHOWN)
    return tab


def check(tab: Tab, node: PageNode) -> None:
    """What holds in every state: nothing from elsewhere, no complaint, readable, in order, as wide as the window."""
    assert tab.complaints() == []
    assert {urlsplit(each).netloc for each in tab.requests() if not each.startswith("data:")} == {
        urlsplit(node.url).netloc
    }
    assert tab.js(OVERLAPS) == []
    contrast = tab.js(TOO_FAINT)
    assert contrast["looked"] > 20
    assert contrast["faint"] == []
    assert tab.js(UNNAMED) == []
    assert tab.js("document.documentElement.scrollWidth") <= tab.js("innerWidth")
    picture = tab.picture()
    assert picture.startswith(b"\x89PNG")
    # A window of one colour is some hundred bytes.
    assert len(picture) > 8_000


def shop() -> PageNode:
    """A small shop that is well."""
    objects = []
    for index, name in enumerate(NAMES):
        ports = (build.port(node_port=30080 if index == 2 else 0),)
        objects.append(build.service(name, ip=f"10.96.0.{index + 1}", ports=ports))
        pods = [build.endpoint(f"10.244.{pod}.{index + 1}", node=f"node{pod}") for pod in (1, 2)]
        pods.append(build.endpoint(f"10.244.3.{index + 1}", node="node3", **build.NOT_SERVING))
        objects.append(build.endpoint_slice(name, *pods))
    counted = {Backend("10.244.1.1", 8080): 700, Backend("10.244.2.1", 8080): 534}
    traffic = {V4: Traffic((ServiceTraffic("default", "api", "http", "tcp", 1234, counted),))}
    node = PageNode(*objects, families=(well(V4, services=10, endpoints=20), well(V6, services=0, endpoints=0)))
    node.traffic = traffic
    node.passed(write(full=True, seconds=0.4, operations=120), origin=Origin.START, about="")
    for index in range(40):
        node.passed(write(seconds=0.0006 * (1 + index * 7 % 13)), about=f"default/{NAMES[index % 10]}-1")
    return node


def trouble(node: PageNode) -> None:
    """IPv6 cannot be written, and two Services are not as they should be."""
    findings = (
        Finding(
            "Service", "default/cart", Reason.FRONTEND_CONFLICT, "10.96.0.1:80/tcp is served for default/api instead"
        ),
        Finding("Service", "default/mail", Reason.KERNEL_REFUSED, f"the kernel refuses it: {NO_ROOM}"),
    )
    node.family(V6, last_error=NO_ROOM, owed_since=Moment.now().monotonic - 100)
    node.status = type(node.status)("nftables", node.status.families, findings)
    node.passed(write(V6, seconds=0.3, error=NO_ROOM))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_node_that_is_well(
    browser: Browser, size: tuple[int, int], dark: bool, request: pytest.FixtureRequest
) -> None:
    with shop() as node:
        tab = visit(browser, node, size, dark=dark)
        tab.wait("document.querySelectorAll('#entries li').length")
        assert tab.text("#state") == "Ready"
        assert tab.js("document.title") == "✓ Ready: node1"
        assert tab.js("document.querySelectorAll('#problems li').length") == 0
        assert tab.js("document.querySelectorAll('.card.good').length") == 2
        assert "10 Services, 20 endpoints" in tab.text(".card")
        assert "Last 41 passes" in tab.text("#history-summary")
        assert tab.js("document.querySelectorAll('#chart rect').length") == 41
        assert tab.text("#matching") == "10 Services"
        check(tab, node)
        if request.config.getoption("--pictures") and (size, dark) == (WIDE, False):
            tab.resize(1120, 720)
            (DOCS / "page-light.png").write_bytes(tab.picture())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_family_that_fails(
    browser: Browser, size: tuple[int, int], dark: bool, request: pytest.FixtureRequest
) -> None:
    with shop() as node:
        trouble(node)
        tab = visit(browser, node, size, dark=dark)
        tab.wait("document.querySelectorAll('#entries li').length")
        assert tab.text("#state") == "Not ready"
        assert NO_ROOM in tab.text("#problems")
        assert NO_ROOM in tab.text(".card.bad")
        assert tab.text("#found") == "2 findings"
        assert "kernel-refused" in tab.text("#finding-list li")
        assert tab.js("document.querySelectorAll('#chart .failed').length") == 1
        assert "failed" in tab.text("#entries li")
        check(tab, node)
        if request.config.getoption("--pictures") and (size, dark) == (NARROW, True):
            (DOCS / "page-dark.png").write_bytes(tab.picture())


def test_light_and_dark_differ(browser: Browser) -> None:
    with shop() as node:
        tab = visit(browser, node)
        colours = "['color', 'backgroundColor'].map((each) => getComputedStyle(document.body)[each])"
        light = tab.js(colours)
        tab.prefer(dark=True)
        dark = tab.js(colours)
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_an_empty_cluster(browser: Browser) -> None:
    with PageNode(families=(well(V4, services=0, endpoints=0),)) as node:
        tab = visit(browser, node)
        assert tab.text("#state") == "Ready"
        assert tab.text("#matching") == "0 Services"
        assert tab.text("#finding-summary") == "Nothing is refused or in conflict."
        tab.wait("document.getElementById('history-summary').textContent === 'Nothing has been written yet.'")
        check(tab, node)


def test_a_first_sync_shows_how_far_it_is(browser: Browser) -> None:
    with shop() as node:
        new = {"last_success": None, "last_success_time": None, "last_pass": None}
        since = Moment.now().monotonic - 3
        node.family(V4, **new, writing=Writing(1800, 5000, since))
        node.family(V6, **new, writing=Writing(0, 5000, since))
        tab = visit(browser, node)
        assert tab.text("#state") == "Coming up"
        assert "1,800 of 5,000 Services written" in tab.text(".card")
        assert tab.js("document.querySelector('progress').value / document.querySelector('progress').max") == 0.36
        check(tab, node)
        for family in (V4, V6):
            node.family(family, **{name: getattr(well(family), name) for name in new}, writing=None)
        tab.wait("document.getElementById('state').textContent === 'Ready'")
        assert tab.js("document.querySelectorAll('progress').length") == 0
        assert tab.text("#announced") == "Ready"


def test_a_proxyd_that_is_gone_is_told_at_the_top(browser: Browser) -> None:
    with shop() as node:
        tab = visit(browser, node)
    tab.wait("document.getElementById('state').textContent === 'No news'")
    assert "it does not answer" in tab.text("#problems")
    assert tab.js("document.querySelectorAll('.card').length") == 2, "what is known stays"


def test_nobody_looks_nothing_is_asked(browser: Browser) -> None:
    hide = "Object.defineProperty(document, 'visibilityState', {configurable: true, get: () => '%s'});"
    with shop() as node:
        tab = visit(browser, node)
        tab.wait("!page.running")
        tab.js(hide % "hidden" + "document.dispatchEvent(new Event('visibilitychange'))")
        before = len(tab.requests())
        # Longer than the interval, by the browser's own clock.
        tab.js("new Promise((done) => setTimeout(done, EVERY + 1000))")
        assert len(tab.requests()) == before
        tab.js(hide % "visible" + "document.dispatchEvent(new Event('visibilitychange'))")
        tab.wait("page.ticks > 1")
        assert len(tab.requests()) > before
