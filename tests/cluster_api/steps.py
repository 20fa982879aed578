"""What tests of proxyd at a real API server do again and again."""

from __future__ import annotations

from tests.controlplane import objects
from tests.controlplane.api import Api, Object
from tests.controlplane.outpost import ENDPOINT, PATIENCE, RESOURCES, Outpost
from tests.program import until
from tests.topology import V4

# Tries of one watch in a trouble of some seconds: 0.8 s between the first two, and each time twice as long.
TRIES = 10


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
    """Waits until each of the watches has failed for one of these reasons, by the metric, and the log says so."""

    def all_failed() -> bool:
        return all(any(here.errors(reason, resource) for reason in reasons) for resource in RESOURCES)

    until(all_failed, f"errors {reasons}")
    lost = {(each["resource"], each["reason"]) for each in here.proxyd.events() if "reason" in each}
    assert all(any((resource, reason) in lost for reason in reasons) for resource in RESOURCES), here.proxyd.output()


def right_again(here: Outpost, offer: Offers) -> None:
    """Waits until a change that is made now has arrived and all watches are open; proxyd is healthy then."""
    here.serves(offer("afterwards"))
    until(here.connected, f"all watches open:\n{here.proxyd.output()}", PATIENCE)
    assert here.proxyd.get("/healthz")[0] == 200
    assert here.proxyd.process.poll() is None
