"""Troubles that only time ends: all of them begin together, each at a node of its own, and pass at the same time."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster_api.steps import TRIES, TRIES_WITH_OLD, Offers, break_streams, calm, noticed, right_again
from tests.controlplane import objects
from tests.controlplane.api import ApiRefusedError, Object, path_of
from tests.controlplane.outpost import ENDPOINT, LOOK, RESOURCES, Footprint, Outpost, outpost
from tests.controlplane.plane import PROXYD_NAMESPACE, Plane, replace
from tests.program import until
from tests.topology import V4

ROUNDS = 50
# Rounds after which everything that is loaded or built once has been.
WARM_UP = 10
# What the allocator may take and give (KiB), far below what 40 leaked answers or threads would come to.
NOISE = 2048
# A watch that ends sooner than this counts as one that did not work.
SHORT = 1.1

# A token that is bound to it ends with it.
SECRET: Object = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "short-lived", "namespace": PROXYD_NAMESPACE},
}


@pytest.fixture(scope="module")
def web(plane: Plane) -> Iterator[str]:
    """A Service that is served during all of this, at this address."""
    offers = Offers(plane.admin)
    yield offers("patience")
    offers.withdraw()


class Patient(NamedTuple):
    """A node in trouble, how it was before, and its token."""

    here: Outpost
    before: Footprint
    token: str

    def right_again(self, offer: Offers, *reasons: str) -> None:
        """Waits for the end of the trouble; what has to be so in every kind of it is so (see ``steps.trouble``)."""
        right_again(self.here, offer)
        noticed(self.here, *reasons)
        for resource in RESOURCES:
            assert self.here.errors(resource=resource) <= TRIES
            assert len(self.here.weather.asked(resource)) <= TRIES
        calm(self.here, self.before)


@contextlib.contextmanager
def under_traffic(plane: Plane, folder: Path, web: str, token: str = "") -> Iterator[Patient]:
    """A node whose connections must all be answered, from now to the end."""
    with outpost(plane, folder, token=token) as here:
        here.serves(web)
        with here.traffic(web):
            yield Patient(here, here.footprint(), token)


@pytest.fixture(scope="module")
def frozen(plane: Plane, web: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """Its streams stay open, but nothing comes any more; before that bookmarks came as often as they should."""
    version = plane.admin.get("/api/v1/services", limit="1")["metadata"]["resourceVersion"]
    bookmark = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}).encode() + b"\n"
    with under_traffic(plane, tmp_path_factory.mktemp("frozen"), web) as patient:
        for stream in patient.here.weather.streams():
            stream.say(bookmark)
            stream.say(bookmark)
            stream.freeze()
        yield patient


@pytest.fixture(scope="module")
def unknown(plane: Plane, web: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """Its token ends, which the API server takes some seconds to notice."""
    plane.admin.create(SECRET)
    token = plane.token(secret=SECRET["metadata"]["name"])
    with under_traffic(plane, tmp_path_factory.mktemp("unknown"), web, token) as patient:
        plane.admin.delete(path_of(SECRET))
        yield patient


@pytest.fixture(scope="module")
def unanswered(plane: Plane, web: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    """Its requests are taken, and no answer comes."""
    with under_traffic(plane, tmp_path_factory.mktemp("unanswered"), web) as patient:
        patient.here.weather.delay(40)
        break_streams(patient.here)
        yield patient


@pytest.fixture(scope="module", autouse=True)
def together(frozen: Patient, unknown: Patient, unanswered: Patient) -> None:
    """Has all of these begin before the first test waits for any."""


def test_memory_is_flat_over_many_ended_streams_and_each_is_opened_once_again(
    plane: Plane, web: str, offer: Offers, tmp_path: Path
) -> None:
    churn = objects.endpoint_slice("churn", [ENDPOINT[V4]])
    offer.keep(objects.service("churn"), churn)
    with under_traffic(plane, tmp_path, web) as patient:
        here = patient.here
        for number in range(ROUNDS):
            until(lambda: settled(here), "streams that were open for a while", every=LOOK)
            for stream in here.weather.streams():
                stream.end()
            addresses = ["10.244.9.1", "10.244.9.2"] if number % 2 else ["10.244.9.1"]
            plane.admin.apply(objects.endpoint_slice("churn", addresses))
            if number == WARM_UP:
                warm = here.footprint()
        right_again(here, offer)
        calm(here, patient.before)
        assert here.footprint().memory - warm.memory < NOISE
        assert here.errors() == 0
        for resource in RESOURCES:
            assert len(here.weather.asked(resource)) == ROUNDS + 1


def settled(here: Outpost) -> bool:
    streams = here.weather.streams()
    return len(streams) == len(RESOURCES) and all(time.monotonic() - each.opened > SHORT for each in streams)


def test_no_answer_is_waited_for_without_end(unanswered: Patient, offer: Offers) -> None:
    noticed(unanswered.here, "timeout")
    unanswered.here.weather.delay(0)
    unanswered.right_again(offer, "timeout")
    for resource in RESOURCES:
        assert unanswered.here.errors(resource=resource) <= 3, "the stream that we broke, and what came of it"


def test_the_token_ends_and_another_one_is_in_its_file(unknown: Patient, plane: Plane, offer: Offers) -> None:
    until(lambda: is_unknown(plane, unknown.token), "the token is worth nothing any more", every=LOOK)
    break_streams(unknown.here)
    noticed(unknown.here, "http-401")
    asked = len(unknown.here.weather.asked())
    replace(unknown.here.token_file, plane.token())
    unknown.right_again(offer, "http-401")
    refused = Counter(each.resource for each in unknown.here.weather.asked()[asked:] if each.status == 401)
    assert all(count <= TRIES_WITH_OLD for count in refused.values()), f"the file is read at once: {refused}"


def is_unknown(plane: Plane, token: str) -> bool:
    try:
        plane.somebody(token).get("/api/v1/services")
    except ApiRefusedError as error:
        return error.status == 401
    return False


def test_a_stream_that_is_frozen_is_given_up(frozen: Patient, offer: Offers) -> None:
    frozen.right_again(offer, "timeout")
    for resource in RESOURCES:
        assert len(frozen.here.weather.asked(resource)) == 2, "one watch, and one that goes on where it was"
    assert frozen.here.metric("proxyd_watch_relists_total") == 0
