"""Objects that a command needs once, from the API server."""

from __future__ import annotations

import pytest

from proxyd import objects
from proxyd.config import load, read_arguments
from proxyd.explain.answering import NoAnswerError
from proxyd.objects import listed
from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import endpoint_slice
from tests.fakes.apiserver import ApiServer
from tests.kube.rig import Rig


def test_everything_is_listed_once(rig: Rig, api: ApiServer) -> None:
    assert rig is not None
    api.put(fake.SLICES, endpoint_slice("a-1", "a", ["10.244.1.1"]))
    store = listed(load(read_arguments(["--master", api.url])), "node1")
    assert sorted(each.key.name for each in store.all_services()) == ["a", "b"]
    assert [each.name for each in store.all_slices()] == ["a-1"]
    assert store.node() is None


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PATIENCE", 0.5)
    with pytest.raises(NoAnswerError, match="has not listed all objects"):
        listed(load(read_arguments(["--master", "http://127.0.0.1:9"])), "node1")
