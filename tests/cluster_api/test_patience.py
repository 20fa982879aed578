"""Troubles that only time ends: all of them begin together, each at a node of its own, and pass at the same time."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster_api.steps import TRIES, Offers, break_streams, noticed, right_again
from tests.controlplane import objects
from tests.controlplane.api import ApiRefusedError, Object, path_of
from tests.controlplane.outpost import ENDPOINT, RESOURCES, Outpost, outpost
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


@contextlib.contextmanager
def under_traffic(plane: Plane, folder: Path, web: str, token: str = "") -> Iterator[Outpost]:
    """A node whose connections must all be answered, from now to the end."""
    with outpost(plane, folder, token=token) as here:
        here.serves(web)
        with here.traffic(web):
            yield here


@pytest.fixture(scope="module")
def frozen(plane: Plane, web: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outpost]:
    """Its streams stay open, but nothing comes any more; before that bookmarks came as often as they should."""
    version = plane.admin.get("/api/v1/services", limit="1")["metadata"]["resourceVersion"]
    bookmark = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version}}}).encode() + b"\n"
    with under_traffic(plane, tmp_path_factory.mktemp("frozen"), web) as here:
        for stream in here.weather.streams():
            stream.say(bookmark)
            stream.say(bookmark)
            stream.freeze()
        yield here


@pytest.fixture(scope="module")
def unknown(plane: Plane, web: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Outpost, str]]:
    """Its token ends, which the API server takes some seconds to notice; gives that too."""
    plane.admin.create(SECRET)
    token = plane.token(secret=SECRET["metadata"]["name"])
    with under_traffic(plane, tmp_path_factory.mktemp("unknown"), web, token) as here:
        plane.admin.delete(path_of(SECRET))
        yield here, token


@pytest.fixture(scope="module")
def unanswered(plane: Plane, web: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outpost]:
    """Its requests are taken, and no answer comes."""
    with under_traffic(plane, tmp_path_factory.mktemp("unanswered"), web) as here:
        here.weather.delay(40)
        break_streams(here)
        yield here


@pytest.fixture(scope="module", autouse=True)
def together(frozen: Outpost, unknown: tuple[Outpost, str], unanswered: Outpost) -> None:
    """Has all of these begin before the first test waits for any."""


def test_memory_is_flat_over_many_ended_streams_and_each_is_opened_once_again(
    plane: Plane, web: str, offer: Offers, tmp_path: Path
) -> None:
    churn = objects.endpoint_slice("churn", [ENDPOINT[V4]])
    offer.keep(objects.service("churn"), churn)
    memory = 0
    with under_traffic(plane, tmp_path, web) as here:
        for number in range(ROUNDS):
            until(lambda: settled(here), "streams that were open for a while")
            for stream in here.weather.streams():
                stream.end()
            addresses = ["10.244.9.1", "10.244.9.2"] if number % 2 else ["10.244.9.1"]
            plane.admin.apply(objects.endpoint_slice("churn", addresses))
            if number == WARM_UP:
                memory = here.memory()
        right_again(here, offer)
        assert here.memory() - memory < NOISE
        assert here.errors() == 0
        for resource in RESOURCES:
            assert len(here.weather.asked(resource)) == ROUNDS + 1


def settled(here: Outpost) -> bool:
    streams = here.weather.streams()
    return len(streams) == len(RESOURCES) and all(time.monotonic() - each.opened > SHORT for each in streams)


def test_no_answer_is_waited_for_without_end(unanswered: Outpost, offer: Offers) -> None:
    noticed(unanswered, "timeout")
    unanswered.weather.delay(0)
    right_again(unanswered, offer)
    for resource in RESOURCES:
        assert unanswered.errors(resource=resource) <= 3, "the stream that we broke, and what came of it"


def test_the_token_ends_and_another_one_is_in_its_file(
    unknown: tuple[Outpost, str], plane: Plane, offer: Offers
) -> None:
    here, token = unknown
    until(lambda: is_unknown(plane, token), "the token is worth nothing any more")
    break_streams(here)
    noticed(here, "http-401")
    replace(here.token_file, plane.token())
    right_again(here, offer)
    for resource in RESOURCES:
        assert len(here.weather.asked(resource)) <= TRIES


def is_unknown(plane: Plane, token: str) -> bool:
    try:
        plane.somebody(token).get("/api/v1/services")
    except ApiRefusedError as error:
        return error.status == 401
    return False


def test_a_stream_that_is_frozen_is_given_up(frozen: Outpost, offer: Offers) -> None:
    right_again(frozen, offer)
    noticed(frozen, "timeout")
    for resource in RESOURCES:
        assert len(frozen.weather.asked(resource)) == 2, "one watch, and one that goes on where it was"
