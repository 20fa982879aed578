"""The embedded source: what files give, and what one bad file may not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from proxyd.kube.manifests import ManifestError, ManifestSource
from proxyd.kube.store import Store
from proxyd.model import Endpoint, Family, Node, Reason, Service, ServiceKey, ServicePort
from tests.fakes.apiobjects import deep_service, service
from tests.kube.folder import Folder, documents, typed, until


class TestReading:
    def test_a_complete_set(self, folder: Folder) -> None:
        folder.write(
            "all.yaml",
            """
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.0.0.1
  ports: [{port: 80, name: http}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-1
  labels: {kubernetes.io/service-name: web}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1]}]
ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: z1}, creationTimestamp: 2026-01-01T00:00:00Z}
---
apiVersion: v1
kind: Node
metadata: {name: n2}
---
""",
        )
        folder.source.start()
        assert folder.store.complete
        assert folder.store.nodes.synced
        found, [endpoints] = folder.store.service(ServiceKey("default", "web"))
        assert found == Service(ServiceKey("default", "web"), (ServicePort("http", "tcp", 80),), ("10.0.0.1",))
        assert endpoints.family is Family.IPV4
        assert endpoints.endpoints == (Endpoint("192.0.2.1"),)
        assert folder.store.node() == Node("n1", zone="z1")
        assert folder.complaints() == {}

    def test_lists_json_and_both_suffixes(self, folder: Folder) -> None:
        items = [typed(service(name, "10.0.0.1")) for name in ("a", "b")]
        folder.write("list.yml", yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
        untyped = [service("c", "10.0.0.3")]
        folder.write("typed.yaml", yaml.safe_dump({"apiVersion": "v1", "kind": "ServiceList", "items": untyped}))
        folder.write(
            "one.json", '{"apiVersion":"v1","kind":"Service","metadata":{"name":"d"},"spec":{"clusterIP":"10.0.0.4"}}'
        )
        folder.write("empty.json", " \n")
        folder.write("empty.yaml", "# nothing\n")
        folder.source.start()
        assert folder.names() == ["a", "b", "c", "d"]
        assert folder.complaints() == {}

    def test_an_empty_folder_is_complete(self, folder: Folder) -> None:
        folder.source.start()
        assert folder.store.complete

    @pytest.mark.parametrize("name", [".a.yaml", "#a.yaml", "~a.yaml", "a.yaml~", "a.yaml.swp", "a.txt", "a"])
    def test_other_files_do_not_count(self, folder: Folder, name: str) -> None:
        (folder.path / name).write_text(documents(service("a", "10.0.0.1")))
        (folder.path / "below.yaml").mkdir()
        folder.source.start()
        assert folder.names() == []
        assert folder.complaints() == {}

    def test_other_kinds_are_ignored(self, folder: Folder) -> None:
        other = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n---\n"
        beta = "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: y}\n---\n"
        folder.write("a.yaml", other + beta + documents(service("a", "10.0.0.1")))
        folder.source.start()
        assert folder.names() == ["a"]
        assert folder.complaints() == {}

    def test_a_link_to_nowhere_is_no_file(self, folder: Folder) -> None:
        (folder.path / "a.yaml").symlink_to("nowhere")
        folder.source.start()
        assert folder.names() == []

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ManifestError, match="No such file"):
            ManifestSource(str(tmp_path / "none"), Store(), "n1").start()

    def test_a_file_for_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(ManifestError, match="Not a directory"):
            ManifestSource(str(tmp_path / "file"), Store(), "n1").start()

    def test_asked_to_end_while_it_reads_it_ends_and_nothing_counts_as_complete(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(documents(*(service(f"s{n}", f"10.96.0.{n + 1}") for n in range(5))))
        asked = iter([False, False, True])
        store = Store()
        source = ManifestSource(str(tmp_path), store, "n1", lambda: next(asked))
        source.start()
        assert not store.complete
        assert not store.services.objects
        assert source.stop()
        assert next(asked, None) is None

    def test_once(self, folder: Folder) -> None:
        folder.write("a.yaml", documents(service("a", "10.96.0.1")))
        assert folder.source.read()
        assert folder.store.complete
        assert folder.ip("a") == "10.96.0.1"

    def test_stop_without_start(self, folder: Folder) -> None:
        assert folder.source.stop()


class TestBadFiles:
    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("bad.yaml", "a: [", "invalid YAML"),
            ("bad.yaml", "just words", "no kind"),
            ("bad.yaml", "kind: 17", "no kind"),
            ("bad.yaml", "- 1\n", "no kind"),
            ("bad.yaml", "!!python/object:os.system {}", "invalid YAML"),
            ("bad.yaml", "kind: !!bool maybe", "not a valid bool"),
            ("bad.yaml", 'kind: !!int ""', "not a valid int"),
            ("bad.yaml", 'kind: !!float ""', "not a valid float"),
            ("bad.yaml", "kind: " + "1:" * 300 + "1.5", "not a valid float"),
            ("bad.yaml", "kind: !!timestamp foo", "not a valid timestamp"),
            ("bad.yaml", "kind: Service\nmetadata: {creationTimestamp: 2026-13-45}", "line 2"),
            ("bad.json", "{", "truncated"),
            ("bad.json", '{"kind": "Service"}{}', ""),
            ("bad.yaml", "kind: List\napiVersion: v1\nitems: [17]", "no kind"),
        ],
    )
    def test_harms_no_other(self, folder: Folder, name: str, text: str, said: str) -> None:
        folder.write("a.yaml", documents(service("a", "10.0.0.1")))
        folder.write(name, text)
        folder.source.start()
        assert folder.names() == ["a"]
        [(file, message)] = folder.complaints().items()
        assert file == name
        assert said in message
        [finding] = folder.store.unreadable.values()
        assert (finding.kind, finding.reason) == ("Manifest", Reason.UNREADABLE_OBJECT)

    def test_keeps_what_it_gave_before(self, folder: Folder) -> None:
        folder.write("a.yaml", documents(service("a", "10.0.0.1"), service("b", "10.0.0.2")))
        folder.source.start()
        folder.store.take()
        folder.write("a.yaml", documents(service("a", "10.0.0.9")) + "---\nb: [")
        until(lambda: "a.yaml" in folder.complaints())
        assert folder.names() == ["a", "b"]
        changes = folder.store.take()
        # No rule has to change, but somebody has to report it.
        assert (changes.services, changes.since is None) == (set(), False)
        folder.write("a.yaml", documents(service("a", "10.0.0.9")))
        until(lambda: folder.names() == ["a"] and folder.complaints() == {})
        assert folder.ip("a") == "10.0.0.9"

    def test_an_object_that_is_refused_harms_no_other(self, folder: Folder) -> None:
        folder.write("a.yaml", documents(service("a", "10.0.0.1"), service("b", "10.0.0.2")))
        folder.source.start()
        folder.write("a.yaml", documents(service("a", "10.0.0.1", ports=17), service("b", "10.0.0.9")))
        until(lambda: folder.ip("b") == "10.0.0.9")
        assert folder.ip("a") == "10.0.0.1"
        assert list(folder.complaints()) == ["default/a"]

    def test_a_file_whose_name_is_no_text_is_told_as_text(self, folder: Folder) -> None:
        folder.write(os.fsdecode(b"caf\xe9.yaml"), "{")
        folder.source.start()
        assert list(folder.complaints()) == [r"caf\xe9.yaml"]

    def test_an_object_without_a_readable_name(self, folder: Folder) -> None:
        folder.write("a.yaml", documents(service("a", "10.0.0.1"), service("b", "10.0.0.2")))
        folder.source.start()
        nameless = typed(service("a", "10.0.0.1"))
        nameless["metadata"]["name"] = 17
        folder.write("a.yaml", documents(nameless, service("b", "10.0.0.9")))
        until(lambda: "a.yaml" in folder.complaints())
        assert folder.ip("b") == "10.0.0.9"
        assert folder.ip("a") == "10.0.0.1"  # perhaps it is the one whose name cannot be read
        assert "Service without a readable name" in folder.complaints()["a.yaml"]

    def test_a_service_that_waits_for_its_address(self, folder: Folder) -> None:
        text = documents(service("a", ""), service("b", "None"), service("c", "", type="ExternalName", clusterIPs=None))
        folder.write("a.yaml", text.replace("clusterIPs:\n  - ''\n", "clusterIPs: []\n"))
        folder.source.start()
        assert folder.names() == []
        assert "no spec.clusterIP" in folder.complaints().pop("default/a")
        assert list(folder.complaints()) == ["default/a"]

    def test_json_nested_deeper_than_the_json_reader_goes(self, folder: Folder) -> None:
        deep = deep_service("deep", "10.0.0.9", 5_000)[1:]
        folder.write("all.json", f'{{"kind": "ServiceList", "apiVersion": "v1", "items": [{{{deep}]}}')
        folder.source.start()
        assert (folder.names(), folder.complaints()) == (["deep"], {})

    def test_loops_within_yaml(self, folder: Folder) -> None:
        folder.write("a.yaml", "apiVersion: v1\nkind: Service\nmetadata: &m {name: a, annotations: *m}\n")
        folder.source.start()
        assert folder.names() == []
        assert list(folder.complaints()) == ["a.yaml"]


class TestTwoFiles:
    def test_the_first_by_name_counts_and_the_other_takes_over(self, folder: Folder) -> None:
        folder.write("b.yaml", documents(service("a", "10.0.0.2")))
        folder.write("a.yaml", documents(service("a", "10.0.0.1")))
        folder.source.start()
        assert folder.ip("a") == "10.0.0.1"
        assert folder.complaints() == {"b.yaml": "Service default/a is in a.yaml already"}
        (folder.path / "a.yaml").unlink()
        until(lambda: folder.ip("a") == "10.0.0.2" and folder.complaints() == {})
        folder.write("a.yaml", documents(service("a", "10.0.0.3")))
        until(lambda: folder.ip("a") == "10.0.0.3" and list(folder.complaints()) == ["b.yaml"])
        (folder.path / "b.yaml").unlink()
        until(lambda: folder.complaints() == {})
        assert folder.ip("a") == "10.0.0.3"

    def test_twice_in_one_file(self, folder: Folder) -> None:
        folder.write("a.yaml", documents(service("a", "10.0.0.1"), service("a", "10.0.0.2")))
        folder.source.start()
        assert folder.ip("a") == "10.0.0.1"
        assert folder.complaints() == {"a.yaml": "Service default/a is in this file twice"}
