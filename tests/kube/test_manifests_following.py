"""The embedded source: what happens as files change, come and go."""

from __future__ import annotations

import os
import shutil

from proxyd.model import Endpoint, ServiceKey
from tests.fakes.apiobjects import endpoint_slice, service
from tests.kube.folder import Folder, documents, until


def test_changes(folder: Folder) -> None:
    folder.write("a.yaml", documents(service("a", "10.0.0.1"), endpoint_slice("s", "a", ["192.0.2.1"])))
    folder.source.start()
    folder.store.take()
    folder.write("a.yaml", documents(service("a", "10.0.0.1"), endpoint_slice("s", "a", ["192.0.2.2"])))
    key = ServiceKey("default", "a")
    until(lambda: folder.store.service(key)[1][0].endpoints == (Endpoint("192.0.2.2"),))
    assert folder.store.take().services == {key}
    folder.write("b.yaml", documents(service("b", "10.0.0.2")))
    until(lambda: folder.names() == ["a", "b"])
    assert folder.store.take().services == {ServiceKey("default", "b")}
    (folder.path / "a.yaml").unlink()
    until(lambda: folder.names() == ["b"])
    assert folder.store.service(key) == (None, ())


def test_written_in_place(folder: Folder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(documents(service("a", "10.0.0.1")))
    folder.source.start()
    for number in range(2, 20):
        path.write_text(documents(service("a", f"10.0.0.{number}")))
        until(lambda ip=f"10.0.0.{number}": folder.ip("a") == ip)  # type: ignore[misc]


def test_nothing_is_lost_while_a_file_is_being_written(folder: Folder) -> None:
    path = folder.path / "a.yaml"
    path.write_text(documents(service("a", "10.0.0.1"), service("b", "10.0.0.2")))
    folder.source.start()
    folder.store.take()
    path.write_text("")
    until(lambda: "a.yaml" in folder.source._unsettled)
    path.write_text(documents(service("a", "10.0.0.9"), service("b", "10.0.0.2")))
    until(lambda: folder.ip("a") == "10.0.0.9")
    assert folder.store.take().services == {ServiceKey("default", "a")}


def test_nothing_is_lost_while_a_file_is_renamed_and_written_anew(folder: Folder) -> None:
    """As vim saves: the old file gets another name, then one with the name is made, then it is written."""
    path, look = folder.path / "a.yaml", folder.source._look
    path.write_text(documents(service("a", "10.0.0.1"), service("b", "10.0.0.2")))
    assert folder.source.read()
    folder.store.take()
    path.rename(folder.path / "a.yaml~")
    look(settled=False)
    assert folder.names() == ["a", "b"]
    path.touch()
    look(settled=True)  # what is settled is that it was missing, not that it is empty
    assert folder.names() == ["a", "b"]
    path.write_text(documents(service("a", "10.0.0.9"), service("b", "10.0.0.2")))
    look(settled=True)
    assert folder.ip("a") == "10.0.0.9"
    assert folder.store.take().services == {ServiceKey("default", "a")}
    assert not folder.source._unsettled


def test_a_file_that_stays_missing(folder: Folder) -> None:
    folder.write("a.yaml", documents(service("a", "10.0.0.1")))
    assert folder.source.read()
    (folder.path / "a.yaml").unlink()
    folder.source._look(settled=False)
    assert folder.names() == ["a"]
    folder.source._look(settled=True)
    assert folder.names() == []


def test_a_file_that_only_gets_another_name_is_no_trouble(folder: Folder) -> None:
    folder.write("a.yaml", documents(service("a", "10.0.0.1")))
    assert folder.source.read()
    folder.store.take()
    (folder.path / "a.yaml").rename(folder.path / "b.yaml")
    for settled in (False, True):
        folder.source._look(settled=settled)
        assert (folder.names(), folder.complaints()) == (["a"], {})
    assert folder.store.take().services == set()


def test_a_file_that_stays_empty(folder: Folder) -> None:
    folder.write("a.yaml", documents(service("a", "10.0.0.1")))
    folder.source.start()
    folder.write("a.yaml", "")
    until(lambda: folder.names() == [])


def test_a_mounted_config_map_turns_its_link(folder: Folder) -> None:
    for version, ip in (("v1", "10.0.0.1"), ("v2", "10.0.0.2")):
        (folder.path / f"..{version}").mkdir()
        (folder.path / f"..{version}" / "a.yaml").write_text(documents(service("a", ip)))
    (folder.path / "..data").symlink_to("..v1")
    (folder.path / "a.yaml").symlink_to("..data/a.yaml")
    folder.source.start()
    assert folder.ip("a") == "10.0.0.1"
    (folder.path / "..new").symlink_to("..v2")
    os.replace(folder.path / "..new", folder.path / "..data")
    until(lambda: folder.ip("a") == "10.0.0.2")


def test_a_folder_that_goes_and_comes_back(folder: Folder) -> None:
    folder.write("a.yaml", documents(service("a", "10.0.0.1")))
    folder.source.start()
    aside = folder.path.with_name("aside")
    folder.path.rename(aside)
    until(lambda: str(folder.path) in folder.complaints())
    assert folder.names() == ["a"]
    folder.path.mkdir()
    folder.write("b.yaml", documents(service("b", "10.0.0.2")))
    until(lambda: folder.names() == ["b"] and folder.complaints() == {})
    folder.write("c.yaml", documents(service("c", "10.0.0.3")))
    until(lambda: folder.names() == ["b", "c"])
    shutil.rmtree(aside)


def test_what_changes_while_nobody_reports_it(folder: Folder) -> None:
    """Right after the start, before the kernel's reports are asked for."""
    folder.source.start()
    folder.write("a.yaml", documents(service("a", "10.0.0.1")))
    until(lambda: folder.names() == ["a"])
