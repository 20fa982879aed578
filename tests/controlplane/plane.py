"""A real control plane on the loopback of a namespace: etcd, kube-apiserver with RBAC on, and, where pods and selectors
are to drive what happens, kube-controller-manager with the controllers of EndpointSlices and of service accounts.

The programs come from tools/controlplane.sh. Each can be stopped, killed and started again by itself.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.controlplane.api import Api, ApiRefusedError
from tests.controlplane.certificates import Authority, key_pair
from tests.controlplane.namespaces import connect, start
from tests.deployment import DAEMON_SET
from tests.program import DEADLINE, until
from tests.topology import Host

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "controlplane.sh"

ETCD, APISERVER, CONTROLLERS = "etcd", "kube-apiserver", "kube-controller-manager"
ETCD_PORT, ETCD_PEER_PORT, PORT = 2379, 2380, 6443
URL = f"https://127.0.0.1:{PORT}"
SERVICE_RANGES = "10.96.0.0/12,fd00:10:96::/112"
ADMIN_TOKEN = "tests-admin"
PROXYD = "proxyd"
PROXYD_NAMESPACE = "kube-system"
TOKEN_SECONDS = 3600

# Who asked for what and what became of it, of service accounts only: the proxies.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}


def programs() -> Path:
    """The folder of the programs. Raises ``LookupError`` that says what to do where there is none."""
    done = subprocess.run([SCRIPT, "--where"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookupError(done.stderr.strip())
    return Path(done.stdout.strip())


class Plane:
    """A running control plane. A context manager: all of its processes have ended after it."""

    def __init__(self, host: Host, folder: Path, found: Path, *more: str) -> None:
        """Starts etcd and the API server and waits until that is ready.

        ``found`` is the folder of the programs, ``more`` are further arguments of the API server, this first time.
        """
        self.host = host
        self._folder = folder
        self.programs = found
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._lines: dict[str, list[str]] = {}
        self.authority = Authority(folder, "authority")
        self._prepare()
        self.admin = Api(host, PORT, self.authority.client_context(), ADMIN_TOKEN)
        try:
            self.start(ETCD)
            self.start(APISERVER, *more)
            self.wait_ready()
            self.admin.apply_file(DAEMON_SET)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends everything, without ceremony."""
        for name in tuple(self._processes):
            self.stop(name, signal.SIGKILL)

    # -- its parts -----------------------------------------------------------------------------------------------------

    def start(self, name: str, *more: str) -> None:
        """Starts a part; ``more`` are further arguments, for this time only."""
        words = [str(self.programs / name), *self._lines[name], *more]
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = start(self.host, words, stdout=log, stderr=log, cwd=self._folder)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> None:
        """Ends a part, and waits until it has ended."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(DEADLINE)

    def restart_apiserver(self, *more: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends the API server and starts it again; it is ready then."""
        if APISERVER in self._processes:
            self.stop(APISERVER, number)
        self.start(APISERVER, *more)
        self.wait_ready()

    def wait_ready(self) -> None:
        """Waits until the API server says that it is ready, with all its own roles and namespaces there."""
        until(self._ready, f"API server ready, see {self._folder}", 3 * DEADLINE)

    def _ready(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ChildProcessError(f"{name} ended:\n{(self._folder / f'{name}.log').read_text()[-3000:]}")
        try:
            self.admin.get("/readyz")
            self.admin.get(f"/api/v1/namespaces/{PROXYD_NAMESPACE}")
        except (OSError, http.client.HTTPException, ApiRefusedError):
            return False
        return True

    @contextlib.contextmanager
    def controllers(self) -> Iterator[None]:
        """Runs the controller manager for a while. Raises ``LookupError`` where there is none."""
        if not (self.programs / CONTROLLERS).exists():
            raise LookupError(f"no {CONTROLLERS} in {self.programs} (make controlplane builds one, with Go)")
        self.start(CONTROLLERS)
        try:
            yield
        finally:
            self.stop(CONTROLLERS, signal.SIGKILL)

    def compact(self) -> None:
        """Has etcd forget everything but the present: whoever wants to go on from an older version gets a 410."""
        key = base64.b64encode(b"/registry").decode()
        revision = self._etcd("/v3/kv/range", {"key": key, "limit": 1})["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def _etcd(self, path: str, body: dict[str, Any]) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", ETCD_PORT)
        connection.sock = connect(self.host, ETCD_PORT, DEADLINE)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        if response.status != 200:
            raise RuntimeError(f"etcd {path}: {response.status} {text.decode()}")
        return json.loads(text)

    def events(self, reason: str) -> list[dict[str, Any]]:
        """The Events (events.k8s.io/v1) of all namespaces that have this reason."""
        items: list[dict[str, Any]] = self.admin.get("/apis/events.k8s.io/v1/events")["items"]
        return [each for each in items if each["reason"] == reason]

    # -- who may talk to it --------------------------------------------------------------------------------------------

    def token(self, account: str = PROXYD, *, secret: str = "") -> str:
        """A token of a service account beside proxyd's; bound to a Secret it ends with that."""
        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Secret", "name": secret}} if secret else {}
        path = f"/api/v1/namespaces/{PROXYD_NAMESPACE}/serviceaccounts/{account}/token"
        answer = self.admin.call("POST", path, {"spec": {"expirationSeconds": TOKEN_SECONDS, **bound}})
        token: str = answer["status"]["token"]
        return token

    def somebody(self, token: str) -> Api:
        """The API as seen with a token."""
        return Api(self.host, PORT, self.authority.client_context(), token)

    def audit(self) -> list[dict[str, Any]]:
        """What service accounts have asked for so far, and what became of it (audit.k8s.io/v1 Events)."""
        lines = (self._folder / "audit.log").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    # -- how it is set up ----------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        folder = self._folder
        certificate, key = self.authority.sign("apiserver")
        key_pair(folder / "tokens.key", folder / "tokens.pub")
        (folder / "users.csv").write_text(f'{ADMIN_TOKEN},admin,1,"system:masters"\n')
        (folder / "audit.json").write_text(json.dumps(AUDIT_POLICY))
        admin = kubeconfig(folder / "admin.conf", URL, self.authority.certificate, token=ADMIN_TOKEN)
        clients, peers = (f"http://127.0.0.1:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
        self._lines[ETCD] = _arguments(
            data_dir=folder / "etcd",
            listen_client_urls=clients,
            advertise_client_urls=clients,
            listen_peer_urls=peers,
            initial_advertise_peer_urls=peers,
            initial_cluster=f"default={peers}",
            unsafe_no_fsync="true",
        )
        self._lines[APISERVER] = _arguments(
            etcd_servers=clients,
            etcd_compaction_interval="0",  # only when told to: see compact
            bind_address="127.0.0.1",
            secure_port=PORT,
            advertise_address="192.0.2.100",  # loopback is refused; nobody connects to it
            endpoint_reconciler_type="none",
            tls_cert_file=certificate,
            tls_private_key_file=key,
            token_auth_file=folder / "users.csv",
            authorization_mode="RBAC",
            allow_privileged="true",  # as kubeadm and others start it
            service_account_issuer="https://kubernetes.default.svc",
            service_account_signing_key_file=folder / "tokens.key",
            service_account_key_file=folder / "tokens.pub",
            service_cluster_ip_range=SERVICE_RANGES,
            audit_policy_file=folder / "audit.json",
            audit_log_path=folder / "audit.log",
        )
        self._lines[CONTROLLERS] = _arguments(
            kubeconfig=admin,
            authentication_kubeconfig=admin,
            authorization_kubeconfig=admin,
            controllers="endpointslice-controller,serviceaccount-controller",
            leader_elect="false",
            secure_port="0",
        )


def _arguments(**values: object) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


def kubeconfig(file: Path, server: str, authority: Path, *, token: str = "", token_file: Path | None = None) -> Path:
    """Writes a kubeconfig, with a token or with the name of the file that has it."""
    user = {"tokenFile": str(token_file)} if token_file else {"token": token}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "contexts": [{"name": "only", "context": {"cluster": "only", "user": "only"}}],
        "clusters": [{"name": "only", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        "users": [{"name": "only", "user": user}],
    }
    file.write_text(json.dumps(content))
    return file


def replace(file: Path, text: str) -> None:
    """Gives a file another content in one step, as mounted Secrets change."""
    hidden: Path = file.with_name(f".{file.name}")
    hidden.write_text(text)
    os.replace(hidden, file)
