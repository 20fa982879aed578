"""The real kube-proxy on a node of its own, to compare with."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.controlplane.namespaces import own_namespace, start
from tests.controlplane.plane import ADMIN_TOKEN, PORT, Plane, kubeconfig
from tests.controlplane.weather import Weather
from tests.program import CLUSTER_CIDR, DEADLINE, until
from tests.topology import Host

KUBE_PROXY = "kube-proxy"
# It changes what belongs to the whole machine unless told not to, and gives up where a namespace may not.
LEAVE_ALONE = ("--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0")
LEAVE_ALONE += ("--conntrack-tcp-timeout-close-wait=0",)


class Peer:
    """A running kube-proxy in nftables mode. Made by ``peer``."""

    def __init__(self, host: Host, process: subprocess.Popen[str], log: Path) -> None:
        self.host = host
        self._process = process
        self._log = log

    def get(self, path: str, port: int) -> tuple[int, str]:
        """Fetches a page from it; status 0 where nobody answers."""
        status, body = self.host.call("http_get", host="127.0.0.1", port=port, path=path)
        return status, body

    def healthy(self) -> bool:
        """Whether it has written its rules. Raises ``ChildProcessError`` where it has ended."""
        if self._process.poll() is not None:
            raise ChildProcessError(f"kube-proxy ended:\n{self._log.read_text()[-3000:]}")
        return self.get("/healthz", 10256)[0] == 200


@contextlib.contextmanager
def peer(plane: Plane, folder: Path, node_name: str, *more: str) -> Iterator[Peer]:
    """Runs kube-proxy in a namespace of its own, healthy; ``more`` are arguments. Raises ``LookupError`` without one."""
    program = plane.programs / KUBE_PROXY
    if not program.exists():
        raise LookupError(f"no {KUBE_PROXY} in {plane.programs} (make controlplane builds one, with Go)")
    context = plane.authority.server_context("peer")
    with own_namespace() as host, Weather(host, (plane.host, PORT), context, plane.authority.client_context()) as way:
        config = kubeconfig(folder / "peer.conf", way.url, plane.authority.certificate, token=ADMIN_TOKEN)
        words = [str(program), "--proxy-mode=nftables", f"--kubeconfig={config}", f"--hostname-override={node_name}"]
        # JSON: what lies between passes streams on line by line.
        words += [f"--cluster-cidr={CLUSTER_CIDR}", "--kube-api-content-type=application/json", *LEAVE_ALONE, *more]
        log = folder / "peer.log"
        with log.open("ab") as stream:
            process = start(host, words, stdout=stream, stderr=stream)
        try:
            made = Peer(host, process, log)
            until(made.healthy, f"kube-proxy healthy, see {log}", 3 * DEADLINE)
            yield made
        finally:
            process.kill()
            process.wait(DEADLINE)
