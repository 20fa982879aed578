"""Lists for one answer, from the stub API server: pages, what is refused, and what cannot be read."""

from __future__ import annotations

import json

import pytest

from proxyd.kube import once
from proxyd.kube.client import connect
from proxyd.kube.once import NotListedError, list_once
from proxyd.kube.store import Store
from tests.fakes import apiserver as fake
from tests.fakes.apifaults import status
from tests.fakes.apiobjects import deep_service, endpoint_slice, service
from tests.fakes.apiserver import ApiServer, Exchange


def listed(api: ApiServer) -> tuple[list[str], tuple[str, ...]]:
    store = Store()
    notes = list_once(connect("", api.url), store, "node1")
    return sorted(each.key.name for each in store.all_services()), notes


@pytest.fixture
def names(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Five Services, on three pages."""
    monkeypatch.setattr(once, "PAGE", 2)
    found = [f"s{number}" for number in range(5)]
    api.put(fake.SERVICES, *(service(name, f"10.0.0.{number}") for number, name in enumerate(found, 1)))
    return found


def test_all_pages_of_all_kinds(api: ApiServer, names: list[str]) -> None:
    api.put(fake.SLICES, *(endpoint_slice(name, name, ["10.244.1.1"]) for name in names))
    api.put(fake.NODES, {"metadata": {"name": "node1"}}, {"metadata": {"name": "node2"}})
    store = Store()
    assert list_once(connect("", api.url), store, "node1") == ()
    assert sorted(each.key.name for each in store.all_services()) == names
    assert sorted(each.name for each in store.all_slices()) == names
    node = store.node()
    assert node is not None
    assert node.name == "node1"
    assert [each.kind for each in api.requests if each.path == fake.SERVICES] == ["list", "page", "page"]


def test_a_page_that_expires_is_listed_anew(api: ApiServer, names: list[str]) -> None:
    api.fail(status(410, "Expired"), kind="page", path=fake.SERVICES)
    assert listed(api) == (names, ())
    assert [each.kind for each in api.requests if each.path == fake.SERVICES] == ["list", "page", "list"]


@pytest.mark.parametrize(
    ("code", "path", "text"),
    [
        (403, fake.SERVICES, "a role must allow the verb list on services of the core API group"),
        (403, fake.SLICES, 'a role must allow the verb list on endpointslices of API group "discovery.k8s.io"'),
        (401, fake.NODES, "its credentials are not, or no longer, believed"),
        (410, fake.SERVICES, "cannot list services at http://127.0.0.1"),
        (500, fake.SLICES, "cannot list endpointslices at http://127.0.0.1"),
    ],
)
def test_what_is_refused_is_named(api: ApiServer, code: int, path: str, text: str) -> None:
    api.fail(status(code), path=path)
    with pytest.raises(NotListedError) as caught:
        listed(api)
    assert text in str(caught.value)
    assert str(code) in str(caught.value)


def test_objects_without_a_readable_name_are_told(api: ApiServer) -> None:
    def strange(exchange: Exchange) -> None:
        items = [{"metadata": {"name": 7}}, service("a", "10.0.0.1"), {"spec": {}}]
        exchange.reply(200, json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode())

    api.fail(strange, path=fake.SERVICES)
    assert listed(api) == (["a"], ("services left out, for they have no readable name: 2",))


def test_an_object_nested_deeper_than_the_json_reader_goes(api: ApiServer) -> None:
    def deep(exchange: Exchange) -> None:
        items = f"{deep_service('deep', '10.0.0.9', 5_000)},{json.dumps(service('a', '10.0.0.1'))}"
        exchange.reply(200, f'{{"metadata":{{"resourceVersion":"1"}},"items":[{items}]}}'.encode())

    api.fail(deep, path=fake.SERVICES)
    assert listed(api) == (["a", "deep"], ())
