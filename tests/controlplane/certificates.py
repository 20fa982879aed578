"""Certificates for one run, made by openssl: an authority, and what it signs for servers on loopback."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
DAYS = "30"
NAMES = "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc"


def openssl(*words: str | Path) -> None:
    """Runs openssl. Raises ``RuntimeError`` with what it says."""
    done = subprocess.run(["openssl", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(map(str, words))}: {done.stderr}")


def key_pair(private: Path, public: Path) -> None:
    """Makes a key to sign tokens with, and the one to check them."""
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", private)
    openssl("ec", "-in", private, "-pubout", "-out", public)


class Authority:
    """Signs certificates; whoever trusts ``certificate`` trusts them."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.certificate = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        subject = ("-subj", f"/CN={name}", "-days", DAYS)
        openssl("req", "-x509", *CURVE, "-keyout", self._key, "-out", self.certificate, *subject)

    def sign(self, name: str) -> tuple[Path, Path]:
        """A certificate for a server on loopback, and its key."""
        request, certificate, key = (self._folder / f"{name}.{suffix}" for suffix in ("csr", "crt", "key"))
        extensions = self._folder / "names"
        extensions.write_text(NAMES)
        openssl("req", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        by = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *by, "-out", certificate, "-days", DAYS, "-extfile", extensions)
        return certificate, key

    def server_context(self, name: str) -> ssl.SSLContext:
        """What a server needs to present a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.sign(name))
        return context

    def client_context(self) -> ssl.SSLContext:
        """What a client needs to trust this authority, and nobody else."""
        return ssl.create_default_context(cafile=str(self.certificate))
