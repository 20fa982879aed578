"""Objects that a command needs once, from the API server."""

from __future__ import annotations

import pytest

from proxyd.config import load, read_arguments
from proxyd.kube.once import NotListedError
from proxyd.objects import given
from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import endpoint_slice
from tests.fakes.apiserver import ApiServer
from tests.kube.rig import Rig


def test_everything_is_listed_once(rig: Rig, api: ApiServer) -> None:
    assert rig is not None
    api.put(fake.SLICES, endpoint_slice("a-1", "a", ["10.244.1.1"]))
    store, notes = given(load(read_arguments(["--master", api.url])), "node1")
    assert sorted(each.key.name for each in store.all_services()) == ["a", "b"]
    assert [each.name for each in store.all_slices()] == ["a-1"]
    assert store.node() is None
    assert notes == ()


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(NotListedError, match=r"127\.0\.0\.1:9"):
        given(load(read_arguments(["--master", "http://127.0.0.1:9"])), "node1")
