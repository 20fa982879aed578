"""The status page of the running program, on the node, in a real browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Browser, program
from tests.browser.looks import SHOWN
from tests.cluster.manifests import VIP, endpoint_slice, manifest, text
from tests.cluster.namespaces import inside
from tests.program import Proxyd, until, write
from tests.topology import NODE, V4, Topology

PORT = 10253
OPEN = "[...document.querySelectorAll('.open')].find((each) => each.textContent === '%s').click()"
URL = f"http://127.0.0.1:{PORT}/"


@pytest.fixture
def browser(node: Topology, tmp_path: Path) -> Iterator[Browser]:
    """A browser on the node; skips where there is none."""
    try:
        program()
    except LookupError as missing:
        pytest.skip(str(missing))
    with Browser(tmp_path / "profile", node.node.command()) as running:
        yield running


def test_it_follows_what_happens_on_the_node(node: Topology, folder: Path, log: Path, browser: Browser) -> None:
    with Proxyd(node, folder, log) as proxyd:
        tab = browser.open()
        tab.go(URL)
        tab.wait(SHOWN)
        assert (tab.text("#state"), tab.text("#node")) == ("Ready", "node1")
        assert "1 Service, 2 endpoints" in tab.text(".card")
        # A Service that takes the address of another, and an endpoint that is not ready.
        write(folder, "twin.yaml", manifest("twin"))
        tab.wait("document.querySelector('#finding-list li')?.textContent.includes('frontend-conflict')")
        write(folder, "late.yaml", text(endpoint_slice("twin", "pod2", name="twin-2", ready=False)))
        tab.wait("[...document.querySelectorAll('#entries li')].some((each) => each.textContent.includes('twin-2'))")
        tab.js(OPEN % "default/web")
        tab.wait("document.querySelector('.detail')?.textContent.includes('conflict lost')")
        tab.js(OPEN % "default/twin")
        tab.wait("document.querySelector('.left-out')?.textContent.includes('not-ready')")
        assert tab.complaints() == []
        assert proxyd.stop() == 0
        tab.wait("document.getElementById('state').textContent === 'No news'")


def test_connections_to_endpoints_are_counted(node: Topology, folder: Path, log: Path, browser: Browser) -> None:
    write(folder, "web.yaml", manifest())
    with Proxyd(node, folder, log):
        node.ask("client1", VIP, 80, count=20)
        tab = browser.open()
        tab.go(URL)
        tab.wait(SHOWN)
        tab.js("document.querySelector('.open').click()")
        tab.wait("document.querySelector('.detail')?.textContent.includes('20 new connections since the start')")
        tab.wait("/node1, [0-9]+ connection/.test(document.querySelector('.used').textContent)")


def test_a_port_that_is_taken_is_a_warning(node: Topology, folder: Path, log: Path) -> None:
    taken = inside(node.node, lambda: socket.create_server(("127.0.0.1", PORT)))
    with taken, Proxyd(node, folder, log, "--bind-address-hard-fail") as proxyd:
        told = proxyd.wait_event("cannot listen yet", address=f"127.0.0.1:{PORT}")
        assert told["level"] == "warning"
        assert proxyd.get("/healthz")[0] == 200
        taken.close()
        until(lambda: proxyd.get("/", PORT)[0] == 200, "the page is there")


def test_it_is_off_beyond_loopback_and_where_it_is_switched_off(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log) as proxyd:
        assert proxyd.get("/", PORT)[0] == 200
        assert proxyd.get("/", PORT, NODE[V4])[0] == 0
    with Proxyd(node, folder, log, "--page-bind-address=") as proxyd:
        assert proxyd.get("/", PORT)[0] == 0


def test_an_operator_can_open_it(node: Topology, folder: Path, log: Path) -> None:
    with Proxyd(node, folder, log, f"--page-bind-address={NODE[V4]}:8099") as proxyd:
        until(lambda: proxyd.get("/status.json", 8099, NODE[V4])[0] == 200, "the page is there")
        assert any("whoever reaches" in each["event"] for each in proxyd.events(level="warning"))
