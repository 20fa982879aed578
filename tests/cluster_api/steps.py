"""What tests of proxyd at a real API server do again and again."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from proxyd.kube.reflector import LOG_AGAIN_SECONDS
from tests.controlplane import objects
from tests.controlplane.api import Api, Object
from tests.controlplane.outpost import ENDPOINT, LOOK, PATIENCE, RESOURCES, Footprint, Outpost
from tests.program import until
from tests.topology import V4

# Tries of one watch in a trouble of some seconds: 0.8 s between the first two, and each time twice as long.
TRIES = 10
# Tries of one watch with what has been replaced in a file: the one that was under way, and the one that has it read anew.
TRIES_WITH_OLD = 2
# What a trouble may cost: a share of the time of one core (a loop without a rest takes all that it gets), and beside that
# seconds of work that has to be done. What it may leave behind: KiB, and less than a connection for each watch.
CPU_SHARE = 0.1
CPU_ONCE = 0.75
MEMORY = 8192
FILES = len(RESOURCES) - 1


class Offers:
    """Services and their endpoints, made while a test runs and gone after it."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._made: list[Object] = []

    def __call__(self, name: str, *endpoints: str) -> str:
        """A Service, served by the endpoint of every outpost unless told otherwise; gives its address."""
        return self.keep(objects.service(name), objects.endpoint_slice(name, endpoints or (ENDPOINT[V4],)))

    def keep(self, *manifests: Object) -> str:
        """Creates objects; gives the address of the first."""
        self._made += manifests
        made = [self._api.create(manifest) for manifest in manifests]
        address: str = made[0].get("spec", {}).get("clusterIP", "")
        return address

    def withdraw(self) -> None:
        """Deletes all of it."""
        self._api.delete_all(self._made)
        self._made.clear()


def break_streams(here: Outpost) -> None:
    """Breaks all watches in the middle of an event."""
    for stream in here.weather.streams():
        stream.break_off()


def noticed(here: Outpost, *reasons: str) -> None:
    """Waits until the log says that each of the watches has failed for one of these reasons; the metric says it too."""

    def lost() -> bool:
        said = set(_lost(here))
        return all(any((resource, reason) in said for reason in reasons) for resource in RESOURCES)

    until(lost, f"{reasons} in the log", PATIENCE, LOOK)
    for resource in RESOURCES:
        assert any(here.errors(reason, resource) for reason in reasons), (resource, here.proxyd.output())


def _lost(here: Outpost) -> list[tuple[str, str]]:
    """The resource and the reason of each line about a watch that failed."""
    events = [*here.proxyd.events("watch lost"), *here.proxyd.events("forbidden")]
    return [(each["resource"], each["reason"]) for each in events]


def right_again(here: Outpost, offer: Offers) -> None:
    """Waits until a change that is made now has arrived and all watches are open; proxyd is healthy then."""
    here.serves(offer("afterwards"))
    until(here.connected, f"all watches open:\n{here.proxyd.output()}", PATIENCE, LOOK)
    assert here.proxyd.get("/healthz")[0] == 200
    assert here.proxyd.process.poll() is None


@contextlib.contextmanager
def trouble(here: Outpost, address: str, offer: Offers, *reasons: str) -> Iterator[Callable[[], None]]:
    """A trouble on the way to the API server, from fair weather to fair weather.

    What has to be so in each kind of it: connections to a Service go on, a metric and a log line say it, all is right
    again after, and meanwhile it neither asks more than some times for each resource, nor works, nor grows. Gives what
    waits until it has been noticed, for one of ``reasons``.
    """
    before, asked, errors = here.footprint(), _asked(here), _errors(here)
    with here.traffic(address):
        yield lambda: noticed(here, *reasons)
        right_again(here, offer)
    noticed(here, *reasons)
    for resource in RESOURCES:
        assert _asked(here)[resource] - asked[resource] <= TRIES, resource
        assert _errors(here)[resource] - errors[resource] <= TRIES, resource
    calm(here, before)


def _asked(here: Outpost) -> dict[str, int]:
    return {resource: len(here.weather.asked(resource)) for resource in RESOURCES}


def _errors(here: Outpost) -> dict[str, int]:
    return {resource: here.errors(resource=resource) for resource in RESOURCES}


def calm(here: Outpost, before: Footprint) -> None:
    """It was no work since then, nothing of it is left behind (memory, connections, threads), and no log was flooded."""
    now = here.footprint()
    changes = f"{before} became {now}"
    assert now.cpu - before.cpu < CPU_SHARE * (now.at - before.at) + CPU_ONCE, changes
    assert now.memory - before.memory < MEMORY, changes
    assert now.files <= before.files + FILES, changes
    assert now.threads <= before.threads, changes
    said = Counter(_lost(here))
    assert max(said.values(), default=0) <= 1 + (now.at - before.at) / LOG_AGAIN_SECONDS, said
