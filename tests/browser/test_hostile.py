"""Names and texts from the cluster and from the kernel are text on the status page, whatever is in them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxyd.kernel.surroundings import Surroundings
from proxyd.model import Action, Event, Finding, Origin, Reason, ServiceKey, ServicePort, SlicePort
from proxyd.serve.health import Moment
from proxyd.serve.report import Detected, Identity
from proxyd.sync.status import Writing
from proxyd.sync.traffic import ServiceTraffic, Traffic
from tests import build
from tests.browser.chromium import Browser, BrowserError
from tests.browser.node import V4, V6, PageNode, Watch, well, write
from tests.browser.test_states import check, visit

# Each would set ``owned`` if any part of the page took it for markup or script, or load something from elsewhere.
HOSTILE = (
    "<script>window.owned=1</script>",
    '"><img src=x onerror="window.owned=1">',
    "'><svg onload=window.owned=1>",
    "javascript:window.owned=1",
    "</script><script>window.owned=1</script>",
    "</style><script>window.owned=1</script>",
    "<!--<script>",
    "{{constructor.constructor('window.owned=1')()}}",
    "<iframe src=https://example.com/></iframe>",
    "\u202eevil\u0000\u2028name",
    "a" * 500,
)


def hostile_node(text: str) -> PageNode:
    """Every text that can come from outside is this one."""
    key = ServiceKey(text.replace("/", "_").replace(":", "_"), text.replace("/", "_").replace(":", "_"))
    service = build.service(
        key.name,
        namespace=key.namespace,
        ports=(ServicePort(text, "tcp", 80, 30080),),
        external_ips=(text,),
        ingress_ips=("203.0.113.1", text),
        source_ranges=(text,),
        uid=text,
        created=text,
    )
    pods = [
        build.endpoint(node=text),
        build.endpoint("10.244.1.3", node=text, zone_hints=(text,), node_hints=(text,)),
        build.endpoint("10.244.1.4", node=text, **build.NOT_SERVING),
    ]
    piece = build.endpoint_slice(
        key.name, *pods, name=text, namespace=key.namespace, ports=(SlicePort(text, "tcp", 8080),), refused=(text,)
    )
    identity = Identity(text, text, text, text, text, text, (Detected(text, text, text),))
    watch = Watch(connected=False)
    watch.errors = {text: 1}
    families = (
        well(V4, settings=build.settings(zone=text), last_error=text, owed_since=Moment.now().monotonic - 900),
        well(V6, settings=build.settings(V6, zone=text, node_ip=text), last_failure=text, last_failure_time=1.0),
    )
    node = PageNode(
        service,
        piece,
        families=families,
        findings=(
            *(Finding(text, about, reason, text) for about in (text, str(key)) for reason in Reason),
            Finding("Service", str(key), Reason.FRONTEND_CONFLICT, text),
        ),
        watches={text: watch},
        identity=identity,
        around=Surroundings(tables=(text,), unknown=(text,)),
        traffic={V4: Traffic((ServiceTraffic(key.namespace, key.name, text, "tcp", 3, {}),))},
    )
    node.family(V4, writing=Writing(1, 2, Moment.now().monotonic))
    event = Event(Origin.ENDPOINTS, text, Action.MODIFIED)
    node.history.record(1.0, 1.0, (event,), 0, (key,), (write(error=text), write(V6)))
    return node


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_text_stays_a_text(browser: Browser, text: str) -> None:
    with hostile_node(text) as node:
        tab = visit(browser, node, (375, 3000))
        kinds = "script, style, iframe, img, object, embed, link, [onload], [onerror]"
        tags = f"document.querySelectorAll('{kinds}').length"
        before = tab.js(tags)
        tab.js("document.querySelector('.open').click()")
        tab.wait("!!document.querySelector('.detail td').textContent.replace('Asking…', '')")
        tab.wait("document.querySelectorAll('#entries li').length")
        assert tab.js("window.owned ?? null") is None
        assert tab.js(tags) == before == 3, "its own script, style and icon"
        seen = tab.js("document.body.textContent")
        assert seen.count(text) > 10
        check(tab, node)


@pytest.mark.parametrize(
    "sink",
    [
        "document.body.innerHTML = '<p>x</p>'",
        "document.body.insertAdjacentHTML('beforeend', '<p>x</p>')",
        "document.write('<p>x</p>')",
        "Object.assign(document.createElement('iframe'), {srcdoc: '<p>x</p>'})",
    ],
)
def test_the_browser_refuses_to_make_markup_of_text(browser: Browser, sink: str) -> None:
    """What keeps a mistake in the page from being a hole."""
    with PageNode() as node:
        tab = visit(browser, node)
        with pytest.raises(BrowserError, match="TrustedHTML"):
            tab.js(sink)


def test_nothing_is_fetched_from_elsewhere(browser: Browser) -> None:
    with PageNode() as node:
        tab = visit(browser, node)
        tab.js("""window.blocked = [];
            document.addEventListener('securitypolicyviolation', (event) => blocked.push(event.effectiveDirective));
            const image = document.createElement('img'), style = document.createElement('link');
            document.body.append(Object.assign(image, {src: 'https://example.com/x.png'}));
            document.body.append(Object.assign(style, {rel: 'stylesheet', href: '/x.css'}));
            fetch('https://example.com/').catch(() => 0);""")
        tab.wait("blocked.length === 3")
        assert set(tab.js("blocked")) == {"img-src", "style-src-elem", "connect-src"}


def test_a_page_of_somebody_else_cannot_read_it(browser: Browser) -> None:
    with PageNode() as node, PageNode() as other:
        tab = visit(browser, other)
        tab.call("Page.setBypassCSP", enabled=True)
        tab.go(other.url)
        tab.wait("!!document.getElementById('updated')")
        answer: Any = tab.js(f"fetch({json.dumps(node.url)} + 'status.json').then((r) => r.text(), () => 'kept out')")
        assert answer == "kept out"
        named = node.url.replace("127.0.0.1", "localhost")
        tab.go(named + "status.json")
        tab.wait("document.body.innerText.includes('identity')")
