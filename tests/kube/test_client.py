"""The way to the API server: configuration from files, credentials and certificates that change, errors, aborting."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxyd.kube import events
from proxyd.kube.client import ApiError, Client, ClientError, Response, TransportError, connect
from tests.fakes import apiserver as fake
from tests.fakes.apiserver import ApiServer, service

DEADLINE = 30.0


@pytest.fixture
def api() -> Iterator[ApiServer]:
    with ApiServer() as server:
        server.put(fake.SERVICES, service("a", "10.0.0.1"))
        yield server


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def kubeconfig(path: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any) -> str:
    """Writes a kubeconfig with one cluster and one user."""
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def get(client: Client) -> bytes:
    response = client.get(fake.SERVICES, {"limit": "1"}, read_timeout=DEADLINE)
    body = response.read()
    response.close()
    return body


def replace(path: Path, text: str) -> None:
    """Replaces a file as mounted secrets are: a new one takes the name."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


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
        api.fail(fake.status(429, "TooManyRequests", retry_after=7))
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
        api.fail(fake.mute)
        with pytest.raises(TransportError) as caught:
            connect("", api.url).get(fake.SERVICES, {}, read_timeout=0.1)
        assert caught.value.reason == "timeout"

    def test_silence_in_the_body(self, api: ApiServer) -> None:
        api.fail(fake.stalled)
        response = connect("", api.url).get(fake.SERVICES, {}, read_timeout=0.1)
        with pytest.raises(TransportError) as caught:
            response.read1()
        assert caught.value.reason == "timeout"

    def test_a_timeout_set_later(self, api: ApiServer) -> None:
        api.fail(fake.stalled)
        response = connect("", api.url).get(fake.SERVICES, {}, read_timeout=3600)
        response.set_read_timeout(0.1)
        with pytest.raises(TransportError):
            response.read1()
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
            (fake.stalled if exchange.request.kind == "watch" else fake.Exchange.serve)(exchange)

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


def aborted_read(response: Response) -> None:
    """Reads in a thread, aborts from this one, and expects the read to end."""
    ended: list[object] = []

    def read() -> None:
        try:
            ended.append(response.read1())
        except TransportError as error:
            ended.append(error.reason)

    reading = threading.Thread(target=read)
    reading.start()
    response.abort()
    reading.join(DEADLINE)
    assert ended in ([b""], ["stream"], ["tls"])
    response.close()


class Asked:
    """A RequestObserver that keeps what it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []
        self.seconds: list[float] = []

    def answered(self, method: str, host: str, status: int, seconds: float) -> None:
        self.requests.append((method, host, status))
        self.seconds.append(seconds)


class TestWriting:
    EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
    EVENT = events.event(events.starting("n1", "it starts", "now"), "n1", "n1", 0.0)

    def test_an_object_is_created_and_changed_on_one_connection(self, api: ApiServer, tmp_path: Path) -> None:
        api.token = "s3cret"
        client = connect(kubeconfig(tmp_path / "config", api.url, {"token": "s3cret"}), "")
        client.post(self.EVENTS, self.EVENT)
        [path] = api.events.events
        client.patch(path, events.series(2, 1.0))
        post, patch = api.requests
        assert (post.kind, post.headers["Content-Type"]) == ("post", "application/json")
        assert (patch.kind, patch.headers["Content-Type"]) == ("patch", "application/merge-patch+json")
        assert post.headers["User-Agent"].startswith("proxyd/")
        assert api.events.events[path]["series"]["count"] == 2
        assert len(api.connections) == 1

    @pytest.mark.parametrize("code", [403, 409, 422, 503])
    def test_what_the_server_refuses_is_an_error_and_is_not_tried_again(self, api: ApiServer, code: int) -> None:
        api.fail(fake.status(code, "Because", retry_after=7))
        with pytest.raises(ApiError) as caught:
            connect("", api.url).post(self.EVENTS, self.EVENT)
        assert (caught.value.status, caught.value.reason, caught.value.retry_after) == (code, "Because", 7)
        assert api.count() == 1

    def test_no_answer_is_an_error(self, api: ApiServer) -> None:
        api.fail(fake.Exchange.cut)
        with pytest.raises(TransportError):
            connect("", api.url).patch(f"{self.EVENTS}/e", b"{}")
        assert api.count() == 1

    def test_every_request_is_counted_with_what_became_of_it(self, api: ApiServer) -> None:
        asked = Asked()
        client = connect("", api.url, observer=asked)
        get(client)
        client.post(self.EVENTS, self.EVENT)
        with pytest.raises(ApiError):
            client.post(self.EVENTS, self.EVENT)
        api.fail(fake.Exchange.cut)
        with pytest.raises(TransportError):
            get(client)
        host = api.url.removeprefix("http://")
        assert asked.requests == [("GET", host, 200), ("POST", host, 201), ("POST", host, 409), ("GET", host, 0)]
        assert all(seconds > 0 for seconds in asked.seconds)


def test_abort_from_another_thread(api: ApiServer) -> None:
    api.fail(fake.stalled)
    aborted_read(connect("", api.url).get(fake.SERVICES, {}, read_timeout=3600))


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def serving(cert: Path, key: Path, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if clients:
        context.load_verify_locations(clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes this process look like one in a pod; gives the folder of the service account."""

    def make(url: str) -> Path:
        host, _, port = url.removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        (tmp_path / "token").write_text("one\n")
        return tmp_path

    return make


class TestTls:
    def test_in_a_pod_with_everything_rotating(self, tmp_path: Path, pod: Callable[[str], Path]) -> None:
        cert, key = make_certificate(tmp_path, "server")
        context = serving(cert, key)
        with ApiServer(context) as api:
            folder, clock = pod(api.url), Clock()
            replace(folder / "ca.crt", cert.read_text())
            client = connect("", "", service_account=str(folder), clock=clock)
            get(client)
            assert api.requests[-1].headers["Authorization"].split() == ["bearer", "one"]
            new_cert, new_key = make_certificate(tmp_path, "renewed")
            context.load_cert_chain(new_cert, new_key)
            replace(folder / "ca.crt", cert.read_text() + new_cert.read_text())
            replace(folder / "token", "two\n")
            clock.now += 61
            get(client)
            assert api.requests[-1].headers["Authorization"].split() == ["bearer", "two"]

    def test_a_stranger_is_refused(self, tmp_path: Path) -> None:
        server, other = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "other")
        with ApiServer(serving(*server)) as api:
            config = kubeconfig(tmp_path / "config", api.url, **{"certificate-authority": str(other[0])})
            with pytest.raises(TransportError) as caught:
                get(connect(config, ""))
            assert caught.value.reason == "tls"
            assert api.requests == []

    def test_client_certificate(self, tmp_path: Path) -> None:
        server, ours = make_certificate(tmp_path, "server"), make_certificate(tmp_path, "ours")
        with ApiServer(serving(*server, ours[0])) as api:
            user = {"client-certificate": "ours.crt", "client-key": "ours.key"}
            config = kubeconfig(tmp_path / "config", api.url, user, **{"certificate-authority": "server.crt"})
            get(connect(config, ""))
            assert api.count() == 1

    def test_abort(self, tmp_path: Path) -> None:
        cert, key = make_certificate(tmp_path, "server")
        with ApiServer(serving(cert, key)) as api:
            api.fail(fake.stalled)
            config = kubeconfig(tmp_path / "config", api.url, **{"certificate-authority": "server.crt"})
            aborted_read(connect(config, "").get(fake.SERVICES, {}, read_timeout=3600))


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
