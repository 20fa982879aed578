"""What goes wrong on the way to an API server and in it: connections are led on meanwhile, and all is right again after.

Each test makes one kind of trouble, waits until proxyd has noticed and ends it. What has to be so in every kind,
``trouble`` asserts.
"""

from __future__ import annotations

import re
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster_api.steps import TRIES, TRIES_WITH_OLD, Offers, break_streams, trouble
from tests.controlplane import objects
from tests.controlplane.api import Api
from tests.controlplane.certificates import Authority
from tests.controlplane.outpost import RESOURCES, Outpost
from tests.controlplane.plane import APISERVER, PROXYD, Plane, replace
from tests.deployment import DAEMON_SET
from tests.program import until


@pytest.fixture
def web(here: Outpost, offer: Offers) -> str:
    """A Service that is served, at this address."""
    address = offer("web")
    here.serves(address)
    return address


def test_the_api_server_is_killed_and_comes_back(here: Outpost, plane: Plane, offer: Offers, web: str) -> None:
    with trouble(here, web, offer, "stream") as noticed:
        plane.stop(APISERVER, signal.SIGKILL)
        noticed()
        assert not here.connected()
        assert here.proxyd.get("/livez")[0] == 200
        plane.restart_apiserver()


def test_nobody_listens_at_the_api_servers_address(here: Outpost, api: Api, offer: Offers, web: str) -> None:
    gone = Offers(api)
    vanishing = gone("vanishing")
    here.serves(vanishing)
    with trouble(here, web, offer, "connect") as noticed:
        here.weather.shut_out()
        noticed()
        gone.withdraw()
        assert here.reaches(vanishing), "rules are kept while nothing is known"
        here.weather.let_in()
        here.forgets(vanishing)


def test_etcd_is_compacted_while_the_watches_are_away(here: Outpost, plane: Plane, offer: Offers, web: str) -> None:
    """What they would go on from is no more (410): everything is listed anew, and only what differs changes."""
    gone = Offers(plane.admin)
    vanishing = gone("vanishing")
    here.serves(vanishing)
    with trouble(here, web, offer, "connect") as noticed:
        here.weather.shut_out()
        noticed()
        gone.withdraw()
        meanwhile = offer("meanwhile")
        plane.compact()
        plane.restart_apiserver()  # its memory of what happened goes with it
        here.weather.let_in()
        here.serves(meanwhile)
        here.forgets(vanishing)
    assert here.errors("expired", "services") == 1
    assert here.proxyd.events("watch lost", resource="services", reason="expired")
    assert here.metric("proxyd_watch_relists_total", resource="services") == 1


def test_streams_break_off_in_the_middle_of_an_event(here: Outpost, offer: Offers, web: str) -> None:
    with trouble(here, web, offer, "stream") as noticed:
        break_streams(here)
        noticed()
    for resource in RESOURCES:
        assert len(here.weather.asked(resource)) == 2, "one watch, and one that goes on where it was"
    assert here.metric("proxyd_watch_relists_total") == 0


def test_answers_come_slowly(here: Outpost, offer: Offers, web: str) -> None:
    with trouble(here, web, offer, "stream") as noticed:
        here.weather.delay(3)
        break_streams(here)
        noticed()
    assert here.errors() == len(RESOURCES), "slowness alone is no error"


def test_the_server_asks_for_patience_and_gets_it(here: Outpost, offer: Offers, web: str) -> None:
    """429 with Retry-After."""
    patience = 4  # seconds; of itself it would wait for 3.2 s at most between the first two
    with trouble(here, web, offer, "http-429") as noticed:
        here.weather.refuse(429, Retry_After=str(patience))
        break_streams(here)
        noticed()
        until(lambda: all(len(refused(here, each)) >= 2 for each in RESOURCES), "two tries of each")
        here.weather.refuse(0)
    for resource in RESOURCES:
        times = refused(here, resource)
        assert all(later - earlier >= patience for earlier, later in pairwise(times)), times


def refused(here: Outpost, resource: str) -> list[float]:
    """When requests were answered with 429."""
    return [each.at for each in here.weather.asked(resource) if each.status == 429]


def test_permissions_are_taken_away_and_given_back(here: Outpost, plane: Plane, offer: Offers, web: str) -> None:
    with trouble(here, web, offer, "http-403") as noticed:
        plane.admin.delete(f"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{PROXYD}")
        break_streams(here)
        noticed()
        assert here.proxyd.events("forbidden", reason="http-403")
        plane.admin.apply_file(DAEMON_SET)


def test_a_certificate_is_not_trusted_until_its_authority_is(
    here: Outpost, offer: Offers, web: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger")
    with trouble(here, web, offer, "tls") as noticed:
        here.weather.present(stranger.server_context("strange"))
        noticed()
        assert not here.connected()
        replace(here.authority_file, stranger.certificate.read_text())
        refused = here.weather.refused_certificates
    assert refused <= TRIES * len(RESOURCES)
    assert here.weather.refused_certificates - refused <= TRIES_WITH_OLD * len(RESOURCES), "the file is read at once"


YEAR = re.compile(rb"\b(20\d\d)(-\d\d-\d\dT| \d\d:\d\d:\d\d GMT)")


@pytest.mark.parametrize("years", [5, -5], ids=["ahead", "behind"])
def test_the_clock_of_the_server_is_off(here: Outpost, offer: Offers, web: str, years: int) -> None:
    offset = here.metric("proxyd_watch_clock_offset_seconds", resource="services")
    assert abs(offset) < 30, "both clocks are this machine's"
    with trouble(here, web, offer, "stream") as noticed:
        here.weather.rewrite(lambda data: YEAR.sub(lambda found: b"%d%s" % (int(found[1]) + years, found[2]), data))
        break_streams(here)
        noticed()
        trigger = {"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-01T00:00:00Z"}
        triggered = objects.endpoint_slice("triggered", ["10.244.1.11"], annotations=trigger)
        here.serves(offer.keep(objects.service("triggered"), triggered))
    assert here.errors() == len(RESOURCES), "no error but the streams that we broke"
    offset = here.metric("proxyd_watch_clock_offset_seconds", resource="services")
    assert offset / years > 300 * 86400
    for resource in RESOURCES:
        assert here.proxyd.events("the API server's clock differs", resource=resource)
    assert 0 <= here.metric("kubeproxy_network_programming_duration_seconds_sum") < 3600
