"""The client over TLS: certificates that change, strangers, aborting."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from proxyd.kube.client import TransportError, connect
from tests.fakes import apifaults as faults
from tests.fakes import apiserver as fake
from tests.fakes.apiserver import ApiServer
from tests.kube.access import Clock, aborted_read, get, kubeconfig, replace


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    command += f" -addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def signed(folder: Path, name: str, issuer: tuple[Path, Path], extensions: str) -> tuple[Path, Path]:
    """A certificate with these extensions and no others (OpenSSL's words), signed by somebody, and its key."""
    cert, key, request, wanted = (folder / f"{name}.{suffix}" for suffix in ("crt", "key", "csr", "ext"))
    wanted.write_text(f"{extensions}\nsubjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n")
    ask = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
    ask += f" -subj /CN={name} -keyout {key} -out {request}"
    sign = f"openssl x509 -req -in {request} -CA {issuer[0]} -CAkey {issuer[1]} -days 2 -extfile {wanted} -out {cert}"
    for command in (ask, sign):
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

    def test_an_authority_without_key_usage_and_a_server_without_key_identifier(self, tmp_path: Path) -> None:
        # Python refuses both from 3.13 on, and kube-proxy does not.
        authority = make_certificate(tmp_path, "authority")
        server = signed(tmp_path, "server", authority, "subjectAltName=IP:127.0.0.1")
        with ApiServer(serving(*server)) as api:
            config = kubeconfig(tmp_path / "config", api.url, **{"certificate-authority": "authority.crt"})
            get(connect(config, ""))
            assert api.count() == 1

    def test_an_authority_that_another_one_has_signed(self, tmp_path: Path) -> None:
        above = make_certificate(tmp_path, "above")
        authority = signed(tmp_path, "authority", above, "basicConstraints=CA:TRUE")
        server = signed(tmp_path, "server", authority, "subjectAltName=IP:127.0.0.1")
        with ApiServer(serving(*server)) as api:
            config = kubeconfig(tmp_path / "config", api.url, **{"certificate-authority": "authority.crt"})
            get(connect(config, ""))
            assert api.count() == 1

    def test_a_name_that_is_not_in_the_certificate_is_refused(self, tmp_path: Path) -> None:
        authority = make_certificate(tmp_path, "authority")
        server = signed(tmp_path, "server", authority, "subjectAltName=IP:127.0.0.9")
        with ApiServer(serving(*server)) as api:
            config = kubeconfig(tmp_path / "config", api.url, **{"certificate-authority": "authority.crt"})
            with pytest.raises(TransportError) as caught:
                get(connect(config, ""))
            assert caught.value.reason == "tls"

    def test_insecure_skip_tls_verify(self, tmp_path: Path) -> None:
        with ApiServer(serving(*make_certificate(tmp_path, "server"))) as api:
            get(connect(kubeconfig(tmp_path / "config", api.url, **{"insecure-skip-tls-verify": True}), ""))
            assert api.count() == 1

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
            api.fail(faults.stalled)
            config = kubeconfig(tmp_path / "config", api.url, **{"certificate-authority": "server.crt"})
            aborted_read(connect(config, "").get(fake.SERVICES, {}, read_timeout=3600))
