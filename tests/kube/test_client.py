"""The way to the API server: configuration from files, credentials and certificates that change, errors, aborting."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxyd.kube import client as client_module
from proxyd.kube.client import ApiError, TransportError, connect
from proxyd.kube.kubeconfig import ClientError
from tests.fakes import apifaults as faults
from tests.fakes import apiserver as fake
from tests.fakes.apiobjects import service
from tests.fakes.apiserver import ApiServer
from tests.kube.access import DEADLINE, Clock, aborted_read, get, kubeconfig, replace


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.put(fake.SERVICES, service("a", "10.0.0.1"))
        yield server


class TestConfiguration:
    def test_master_only(self, api: ApiServer) -> None:
        client = connect("", api.url + "/")
        assert client.host == api.url
        assert b'"name":"a"' in get(client)

    def test_master_wins_over_the_kubeconfig(self, api: ApiServer, tmp_path: Path) -> None:
        api.token = "s3cret"
        config = kubeconfig(tmp_path / "config", "http://192.0.2.1:1", {"token": "s3cret"})
        assert b'"name":"a"' in get(connect(config, api.url))

    def test_master_without_a_scheme(self, api: ApiServer) -> None:
        assert connect("", api.url.removeprefix("http://")).host == api.url

    def test_headers(self, api: ApiServer, tmp_path: Path) -> None:
        get(connect(kubeconfig(tmp_path / "config", api.url, {"token": "s3cret"}), ""))
        headers = api.requests[-1].headers
        assert headers["User-Agent"].startswith("proxyd/")
        assert headers["Accept"] == "application/json"
        assert headers["Accept-Encoding"] == "identity"
        assert headers["Authorization"] == "Bearer s3cret"

    def test_no_credentials(self, api: ApiServer, tmp_path: Path) -> None:
        get(connect(kubeconfig(tmp_path / "config", api.url), ""))
        assert "Authorization" not in api.requests[-1].headers

    def test_user_and_password(self, api: ApiServer, tmp_path: Path) -> None:
        get(connect(kubeconfig(tmp_path / "config", api.url, {"username": "u", "password": "p"}), ""))
        assert api.requests[-1].headers["Authorization"] == "Basic dTpw"

    def test_exec_plugin(self, api: ApiServer, tmp_path: Path) -> None:
        plugin = tmp_path / "plugin"
        status = (
            '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"of-plugin"}}'
        )
        plugin.write_text(f"#!/bin/sh\necho '{status}'\n")
        plugin.chmod(0o755)
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "args": []}}
        get(connect(kubeconfig(tmp_path / "config", api.url, user), ""))
        assert api.requests[-1].headers["Authorization"] == "Bearer of-plugin"

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            ("", "invalid"),
            ("{", "invalid"),
            ("- a\n- b\n", "invalid"),
            ("just words", "invalid"),
            ("current-context: none\ncontexts: []\nclusters: []\nusers: []\n", "invalid"),
            ("users: [{name: u, user: 17}]", "invalid"),
            ("\x00", "invalid"),
        ],
    )
    def test_invalid_kubeconfig_is_one_line(self, tmp_path: Path, content: str, said: str) -> None:
        path = tmp_path / "config"
        path.write_text(content)
        with pytest.raises(ClientError, match=said) as caught:
            connect(str(path), "")
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_missing_kubeconfig(self, tmp_path: Path) -> None:
        with pytest.raises(ClientError, match="No such file"):
            connect(str(tmp_path / "none"), "")

    def test_missing_token_file(self, tmp_path: Path) -> None:
        config = kubeconfig(tmp_path / "config", "https://192.0.2.1", {"tokenFile": "token"})
        with pytest.raises(ClientError, match="token: No such file"):
            connect(config, "")

    def test_cluster_without_a_server(self, tmp_path: Path) -> None:
        path = Path(kubeconfig(tmp_path / "config", "x"))
        path.write_text(path.read_text().replace("server: x", "other: x"))
        with pytest.raises(ClientError, match="no server"):
            connect(str(path), "")

    def test_a_certificate_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "ca.crt").write_text("nothing of the kind")
        config = kubeconfig(tmp_path / "config", "https://192.0.2.1", **{"certificate-authority": "ca.crt"})
        with pytest.raises(ClientError, match=r"certificate .*ca\.crt"):
            connect(config, "")

    def test_not_in_a_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        with pytest.raises(ClientError, match="not in a pod"):
            connect("", "")


class TestRotation:
    def test_a_token_file_is_read_again_once_a_minute(self, api: ApiServer, tmp_path: Path) -> None:
        token, clock = tmp_path / "token", Clock()
        token.write_text("one\n")
        client = connect(kubeconfig(tmp_path / "config", api.url, {"tokenFile": "token"}), "", clock=clock)
        seen = []
        for wait in (0.0, 59.0, 2.0, 0.0):
            clock.now += wait
            get(client)
            seen.append(api.requests[-1].headers["Authorization"])
            replace(token, "two\n")
        assert seen == ["Bearer one", "Bearer one", "Bearer two", "Bearer two"]

    def test_refresh_reads_at_once(self, api: ApiServer, tmp_path: Path) -> None:
        token = tmp_path / "token"
        token.write_text("one")
        client = connect(kubeconfig(tmp_path / "config", api.url, {"tokenFile": "token"}), "", clock=Clock())
        api.token = "two"
        replace(token, "two")
        with pytest.raises(ApiError) as caught:
            get(client)
        assert caught.value.status == 401
        client.refresh()
        assert b'"name":"a"' in get(client)

    def test_what_worked_stays_while_the_files_are_bad(self, api: ApiServer, tmp_path: Path) -> None:
        clock = Clock()
        config = Path(kubeconfig(tmp_path / "config", api.url, {"token": "one"}))
        client = connect(str(config), "", clock=clock)
        replace(config, "{")
        clock.now += 61
        get(client)
        assert api.requests[-1].headers["Authorization"] == "Bearer one"
        kubeconfig(config, api.url, {"token": "two"})
        clock.now += 61
        get(client)
        assert api.requests[-1].headers["Authorization"] == "Bearer two"
        config.unlink()
        client.refresh()
        get(client)
        assert api.requests[-1].headers["Authorization"] == "Bearer two"


class TestErrors:
    def test_status(self, api: ApiServer) -> None:
        api.fail(faults.status(429, "TooManyRequests", retry_after=7))
        with pytest.raises(ApiError) as caught:
            get(connect("", api.url))
        error = caught.value
        assert (error.status, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)
        assert str(error) == "429 TooManyRequests: on demand"

    @pytest.mark.parametrize("code", [302, 410, 500, 503])
    def test_never_retried_and_never_redirected(self, api: ApiServer, code: int) -> None:
        api.fail(lambda exchange: exchange.reply(code, b"no JSON", Location="/elsewhere", Retry_After="soon"))
        client = connect("", api.url)
        with pytest.raises(ApiError) as caught:
            get(client)
        assert (caught.value.status, caught.value.retry_after) == (code, 0.0)
        assert api.count() == 1
        assert b'"name":"a"' in get(client)

    def test_nobody_listens(self) -> None:
        with ApiServer() as gone:
            pass
        with pytest.raises(TransportError) as caught:
            get(connect("", gone.url))
        assert caught.value.reason == "connect"
        assert "\n" not in str(caught.value)

    def test_no_answer(self, api: ApiServer) -> None:
        api.fail(faults.mute)
        with pytest.raises(TransportError) as caught:
            connect("", api.url).get(fake.SERVICES, {}, read_timeout=0.1)
        assert caught.value.reason == "timeout"

    def test_silence_in_the_body(self, api: ApiServer) -> None:
        api.fail(faults.stalled)
        response = connect("", api.url).get(fake.SERVICES, {}, read_timeout=0.1)
        with pytest.raises(TransportError) as caught:
            response.read1()
        assert caught.value.reason == "timeout"

    @pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["kept", "to be closed"])
    def test_a_body_may_be_silent_for_longer_than_the_head(
        self, api: ApiServer, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Proxies in between may say that the connection will be closed; a watch must not be cut short for it."""
        monkeypatch.setattr(client_module, "HEADER_SECONDS", 0.2)

        def slow(exchange: fake.Exchange) -> None:
            exchange.begin(**headers)
            time.sleep(0.5)  # nothing to wait for: that nothing happens is the point
            exchange.send(b"late")
            exchange.end()

        api.fail(slow)
        assert connect("", api.url).get(fake.SERVICES, {}, read_timeout=DEADLINE).read() == b"late"

    def test_a_timeout_set_later(self, api: ApiServer) -> None:
        api.fail(faults.stalled)
        response = connect("", api.url).get(fake.SERVICES, {}, read_timeout=3600)
        response.set_read_timeout(0.1)
        with pytest.raises(TransportError) as caught:
            response.read1()
        assert caught.value.reason == "timeout"
        response.close()
        response.set_read_timeout(1.0)
        response.abort()

    def test_a_body_that_breaks_off(self, api: ApiServer) -> None:
        def breaks_off(exchange: fake.Exchange) -> None:
            exchange.begin()
            exchange.send(b"some")
            exchange.cut()

        api.fail(breaks_off)
        with pytest.raises(TransportError) as caught:
            get(connect("", api.url))
        assert caught.value.reason == "stream"


class TestConnections:
    def test_keepalive_is_on(self, api: ApiServer) -> None:
        response = connect("", api.url).get(fake.SERVICES, {}, read_timeout=DEADLINE)
        raw: Any = response._raw
        sock = raw.connection.sock
        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert [sock.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [30, 15, 9]

    def test_a_finished_one_is_used_again_and_an_open_one_is_not(self, api: ApiServer) -> None:
        client = connect("", api.url)
        ports = []

        def note(exchange: fake.Exchange) -> None:
            ports.append(exchange._handler.client_address[1])
            (faults.stalled if exchange.request.kind == "watch" else fake.Exchange.serve)(exchange)

        api.fail(note, times=4)
        get(client)
        get(client)
        watches = [client.get(fake.SERVICES, {"watch": "true"}, read_timeout=DEADLINE) for _ in range(2)]
        assert ports[0] == ports[1]
        assert ports[2] != ports[3]
        for watch in watches:
            watch.close()

    def test_events_come_as_they_are_sent(self, api: ApiServer) -> None:
        go_on = threading.Event()

        def one_by_one(exchange: fake.Exchange) -> None:
            exchange.begin()
            exchange.send(b"first\n")
            go_on.wait(DEADLINE)
            exchange.send(b"second\n")
            exchange.end()

        api.fail(one_by_one)
        response = connect("", api.url).get(fake.SERVICES, {}, read_timeout=DEADLINE)
        assert response.read1() == b"first\n"
        go_on.set()
        assert (response.read1(), response.read1()) == (b"second\n", b"")


@pytest.mark.parametrize(
    ("date", "least", "most"),
    [
        ("Fri, 01 Jan 2100 00:00:00 GMT", 1e9, 1e10),
        ("Mon, 01 Jan 2001 00:00:00 GMT", -1e10, -1e8),
    ],
)
def test_the_clock_of_the_server(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, date: str, least: float, most: float
) -> None:
    monkeypatch.setattr(fake._Handler, "date_time_string", lambda _: date)
    offset = connect("", api.url).get(fake.SERVICES, {}, read_timeout=DEADLINE).clock_offset
    assert offset is not None
    assert least < offset < most


@pytest.mark.parametrize("date", ["", "yesterday", "Fri, 99 Jan 2100 00:00:00 GMT"])
def test_a_clock_that_the_server_does_not_tell(api: ApiServer, monkeypatch: pytest.MonkeyPatch, date: str) -> None:
    monkeypatch.setattr(fake._Handler, "date_time_string", lambda _: date)
    assert connect("", api.url).get(fake.SERVICES, {}, read_timeout=DEADLINE).clock_offset is None


def test_abort_from_another_thread(api: ApiServer) -> None:
    api.fail(faults.stalled)
    aborted_read(connect("", api.url).get(fake.SERVICES, {}, read_timeout=3600))


def test_the_costly_parts_of_the_kubernetes_package_are_not_loaded(api: ApiServer) -> None:
    """Models, CoreV1Api, watch.Watch and the informer's cache would cost several times the memory of all objects."""
    script = f"""
import sys
from proxyd.kube.reflector import Reflector
from proxyd.kube.resources import SERVICES
from proxyd.kube.manifests import ManifestSource
from proxyd.kube.store import Store
assert not [name for name in sys.modules if name.split(".")[0] in ("kubernetes", "watchfiles", "yaml")]
from proxyd.kube.client import connect
store = Store()
reflector = Reflector(connect("", "{api.url}"), SERVICES, store.services)
reflector.start()
with store.lock:
    assert store.lock.wait_for(lambda: store.services.synced, {DEADLINE})
assert reflector.stop({DEADLINE})
costly = ("kubernetes.client.api.", "kubernetes.client.models.", "kubernetes.aio")
print([name for name in sys.modules if name.startswith(costly)])
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]"
