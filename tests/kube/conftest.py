"""A stub API server, a reflector that follows it, and a folder of manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import service
from tests.fakes.apiserver import ApiServer
from tests.kube.folder import DEADLINE, Folder
from tests.kube.rig import Rig


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


@pytest.fixture
def rig(api: ApiServer) -> Iterator[Rig]:
    rig = Rig(api)
    api.put(fake.SERVICES, service("a", "10.0.0.1"), service("b", "10.0.0.2"))
    yield rig
    rig.end()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    path = tmp_path / "manifests"
    path.mkdir()
    folder = Folder(path)
    yield folder
    assert folder.source.stop(DEADLINE)
