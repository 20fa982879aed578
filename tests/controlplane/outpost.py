"""A node of the cluster in a namespace of its own: a proxyd, an endpoint, and the weather on the way to the API server."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.controlplane.namespaces import inside, own_namespace, start
from tests.controlplane.plane import PORT, Plane, kubeconfig
from tests.controlplane.weather import Weather
from tests.netns import forget_flows
from tests.program import Proxyd, until
from tests.topology import POD_RANGE, V4, V6, Host

METRICS_PORT = 10249
# What an endpoint here listens on, and the address it has.
ENDPOINT = {V4: "10.244.1.11", V6: "fd00:10:244:1::11"}
ENDPOINT_PORT = 8080
# Longer than two of the longest delays between retries (60 s), and all that can come on top.
PATIENCE = 180.0
RESOURCES = ("nodes", "services", "endpointslices")


# How often a test may look at something that costs proxyd work: a page of its metrics.
LOOK = 0.1


class Footprint(NamedTuple):
    """What a process has used up, or holds, at a moment (monotonic seconds)."""

    at: float
    cpu: float
    """Seconds of one core, since it was started."""
    memory: int
    """Resident, in KiB."""
    files: int
    threads: int


class Outpost:
    """See the module. Made by ``outpost``."""

    def __init__(self, host: Host, plane: Plane, weather: Weather, folder: Path, token: str) -> None:
        self.node = host
        self.weather = weather
        self.token_file = folder / "token"
        self.token_file.write_text(token)
        self.authority_file = folder / "authority.crt"
        self.authority_file.write_bytes(plane.authority.certificate.read_bytes())
        self._folder = folder
        self.proxyd: Proxyd

    def run(self) -> Proxyd:
        """Starts proxyd, and waits until all its rules are written."""
        self.proxyd = Proxyd(self, None, self._folder / "proxyd.log", "--kubeconfig", str(self.kubeconfig()))
        until(self.connected, "all watches open", every=LOOK)
        return self.proxyd

    def kubeconfig(self) -> Path:
        """Writes what a proxyd here needs to find the API server."""
        file = self._folder / "kubeconfig"
        return kubeconfig(file, self.weather.url, self.authority_file, token_file=self.token_file)

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """See ``tests.program.Place``."""
        return start(self.node, words, **options)

    # -- what it does --------------------------------------------------------------------------------------------------

    def reaches(self, address: str, port: int = 80) -> bool:
        """Whether a connection from this node is answered, and soon."""
        return self._outcome(address, port, 0.5) == "node"

    def serves(self, address: str) -> None:
        """Waits until connections to a Service are answered, however long a proxyd may put its retries off."""
        until(lambda: self.reaches(address), f"{address} served; the log:\n{self.proxyd.output()}", PATIENCE)

    def forgets(self, address: str) -> None:
        """Waits until connections to a Service are not answered any more."""
        until(lambda: not self.reaches(address), f"{address} gone; the log:\n{self.proxyd.output()}", PATIENCE)

    def _outcome(self, address: str, port: int, timeout: float = 5.0) -> str:
        answers: list[str] = self.node.call("ask", ip=address, port=port, timeout=timeout)
        return answers[0].split(" ")[0]

    @contextlib.contextmanager
    def traffic(self, address: str, port: int = 80) -> Iterator[None]:
        """Connects over and over meanwhile, and fails at the end if a single connection was not answered."""
        outcomes: list[tuple[str, str]] = []
        enough = threading.Event()

        def connect() -> None:
            while not enough.wait(0.03):
                outcomes.append((f"{time.time():.2f}", self._outcome(address, port)))

        with inside(self.node):
            # A try that came before the rules is tracked untranslated, and spoils its source port for two minutes.
            forget_flows()
        thread = threading.Thread(target=connect)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()
        others = [each for each in outcomes if each[1] != "node"]
        assert outcomes, "no connection was made"
        assert not others, (
            f"of {len(outcomes)} connections some came to something else: {others}\n{self.proxyd.output()}"
        )

    # -- what it says --------------------------------------------------------------------------------------------------

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of a metric that have these labels."""
        status, text = self.proxyd.get("/metrics", METRICS_PORT)
        assert status == 200, text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def errors(self, reason: str = "", resource: str = "") -> int:
        """How many errors of watches it has counted."""
        labels = {name: value for name, value in (("reason", reason), ("resource", resource)) if value}
        return int(self.metric("proxyd_watch_errors_total", **labels))

    def connected(self) -> bool:
        """Whether all its watches are open."""
        return self.metric("proxyd_watch_connected") == len(RESOURCES)

    def footprint(self) -> Footprint:
        """What it has used up, and what it holds now."""
        process = Path(f"/proc/{self.proxyd.process.pid}")
        status = (process / "status").read_text()
        user, system = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
        return Footprint(
            time.monotonic(),
            (int(user) + int(system)) / os.sysconf("SC_CLK_TCK"),
            int(status.split("VmRSS:")[1].split()[0]),
            len(os.listdir(process / "fd")),
            int(status.split("Threads:")[1].split()[0]),
        )


@contextlib.contextmanager
def outpost(
    plane: Plane, folder: Path, *, host: Host | None = None, token: str = "", streaming_lists: bool = True
) -> Iterator[Outpost]:
    """A node with its proxyd at work: in ``host``, or in a namespace of its own with an endpoint."""
    folder.mkdir(exist_ok=True)
    context = plane.authority.server_context("weather")
    with contextlib.ExitStack() as stack:
        if host is None:
            host = stack.enter_context(own_namespace())
            _settle(host)
        weather = stack.enter_context(
            Weather(host, (plane.host, PORT), context, plane.authority.client_context(), streaming_lists)
        )
        made = Outpost(host, plane, weather, folder, token or plane.token())
        with made.run():
            yield made


def _settle(host: Host) -> None:
    """Gives the namespace an endpoint, and a way for packets that have yet to be led to it."""
    for family, address in ENDPOINT.items():
        length = POD_RANGE[family].split("/")[1]
        host.ip(family, [f"address add {address}/{length} dev lo", "route add default dev lo"])
    host.call("serve", tcp=(ENDPOINT_PORT,))
