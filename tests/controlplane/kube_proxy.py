"""The real kube-proxy on a node, in a mode and with a backend of iptables; and the way from there to the API server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.namespaces import connect, listen
from tests.controlplane.plane import ADMIN_TOKEN, PORT, Plane, kubeconfig, programs
from tests.program import CLUSTER_CIDR, DEADLINE, Place, until

NAME = "kube-proxy"
# Not those of proxyd: both may run.
HEALTH_PORT, METRICS_PORT = 10356, 10349
NEAR_PORT = 8443
MODES = ("nftables", "iptables-nft", "iptables-legacy")


def program() -> Path:
    """The program: of $KUBE_PROXY, or beside the control plane's. Raises ``LookupError``."""
    named = os.environ.get("KUBE_PROXY")
    found = Path(named) if named else programs() / NAME
    if not os.access(found, os.X_OK):
        raise LookupError(f"no {NAME} in {found.parent} (make controlplane builds one, with Go; or set KUBE_PROXY)")
    return found


@contextlib.contextmanager
def way_to(plane: Plane, world: Place, folder: Path, port: int = NEAR_PORT) -> Iterator[Path]:
    """Lets programs on the node reach the API server, and gives a kubeconfig for them."""
    with listen(world.node, port) as listener:
        threading.Thread(target=_relay, args=(listener, plane), daemon=True).start()
        url = f"https://127.0.0.1:{port}"
        yield kubeconfig(folder / "relayed.conf", url, plane.authority.certificate, token=ADMIN_TOKEN)
        listener.shutdown(socket.SHUT_RDWR)


def _relay(listener: socket.socket, plane: Plane) -> None:
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        far = connect(plane.host, PORT, DEADLINE)
        far.settimeout(None)
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=_pass_on, args=(one, other), daemon=True).start()


def _pass_on(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
    for each in (one, other):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


class KubeProxy:
    """A running kube-proxy. A context manager: it has ended after it, and its rules stay."""

    def __init__(
        self, world: Place, folder: Path, config: Path, mode: str, more: Mapping[str, Any] | None = None
    ) -> None:
        """Starts it in one of ``MODES``, with ``more`` in its configuration, and waits until its rules are written."""
        self._world = world
        self._log = folder / f"{NAME}.log"
        file = folder / f"{NAME}.yaml"
        file.write_text(yaml.safe_dump(configuration(config, mode.split("-", maxsplit=1)[0]) | (more or {})))
        words = [str(program()), f"--config={file}", "--hostname-override=node1"]
        path = os.environ["PATH"]
        if backend := mode.partition("-")[2]:
            path = f"{_tools(folder, backend)}:{path}"
        with self._log.open("ab") as log:
            self.process = world.start(words, stdout=log, stderr=log, env={**os.environ, "PATH": path})
        try:
            until(self._healthy, f"kube-proxy healthy:\n{self.output()}", 2 * DEADLINE)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> KubeProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE)

    def output(self) -> str:
        """Its log."""
        return self._log.read_text()

    def _healthy(self) -> bool:
        if self.process.poll() is not None:
            raise ChildProcessError(f"kube-proxy ended:\n{self.output()}")
        status, _ = self._world.node.call("http_get", host="127.0.0.1", port=HEALTH_PORT, path="/healthz")
        return bool(status == 200)


def configuration(config: Path, mode: str) -> dict[str, Any]:
    """A KubeProxyConfiguration that leaves alone what belongs to the whole machine."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": CLUSTER_CIDR,
        "clientConnection": {"kubeconfig": str(config)},
        "healthzBindAddress": f"127.0.0.1:{HEALTH_PORT}",
        "metricsBindAddress": f"127.0.0.1:{METRICS_PORT}",
        # These limits are the machine's, not the namespace's.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
        # How often it looks for its canary.
        "iptables": {"syncPeriod": "2s", "minSyncPeriod": "1s"},
    }


def _tools(folder: Path, backend: str) -> Path:
    """A folder in which the names of iptables' tools are of one backend."""
    made = folder / f"tools-{backend}"
    if not made.exists():
        made.mkdir()
        for program_name in ("iptables", "ip6tables"):
            for suffix in ("", "-save", "-restore"):
                real = shutil.which(f"{program_name}-{backend}{suffix}")
                assert real is not None
                (made / f"{program_name}{suffix}").symlink_to(real)
    return made
