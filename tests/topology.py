"""A small cluster out of network namespaces: real kernels' rules, real connections, and nothing outside touched.

::

    client1, client2 ---- other ---- node ---- pod1, pod2
                            |
                        pod3, pod4

``node`` is the node under test; ``other`` is another node, and the router between them all. Answers of pod3 and pod4 to the
clients go back through ``node``, so that a source that was not replaced shows as such and not as silence.

A namespace has no name outside: each is held by a process (tests.agent) that ends when we do, however we end, and the
kernel removes it then with all that is in it. So any number of topologies can exist at once. ``Host.command`` enters one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from proxyd.model import Family

V4, V6 = Family.IPV4, Family.IPV6
Addresses = dict[Family, str]

AGENT = Path(__file__).with_name("agent.py")
TCP_PORTS = (8080, 8081, 8443)
UDP_PORTS = (8053, 8080, 8081)
# Services of the node itself, for tests that must not reach them, or must.
NODE_PORTS = (80, 2222)

NODE = {V4: "192.0.2.11", V6: "2001:db8:2::11"}
OTHER = {V4: "192.0.2.1", V6: "2001:db8:2::1"}
# Where other routes these ranges: to the node.
SERVICE_RANGES = {V4: ("10.96.0.0/12", "203.0.113.0/24"), V6: ("fd00:10:96::/112", "2001:db8:113::/64")}
POD_RANGE = {V4: "10.244.1.0/24", V6: "fd00:10:244:1::/64"}
CLIENT_RANGE = {V4: "198.51.100.0/24", V6: "2001:db8:51::/64"}
POD_GATEWAY = {V4: "10.244.1.1", V6: "fd00:10:244:1::1"}
OTHER_POD_GATEWAY = {V4: "10.244.2.1", V6: "fd00:10:244:2::1"}
CLIENT_GATEWAY = {V4: "198.51.100.1", V6: "2001:db8:51::1"}


class Leaf(NamedTuple):
    """A host with one link, to ``router``."""

    router: str
    addresses: Addresses
    gateway: Addresses


PODS = {
    "pod1": Leaf("node", {V4: "10.244.1.11", V6: "fd00:10:244:1::11"}, POD_GATEWAY),
    "pod2": Leaf("node", {V4: "10.244.1.12", V6: "fd00:10:244:1::12"}, POD_GATEWAY),
    "pod3": Leaf("other", {V4: "10.244.2.13", V6: "fd00:10:244:2::13"}, OTHER_POD_GATEWAY),
    "pod4": Leaf("other", {V4: "10.244.2.14", V6: "fd00:10:244:2::14"}, OTHER_POD_GATEWAY),
}
CLIENTS = {
    "client1": Leaf("other", {V4: "198.51.100.7", V6: "2001:db8:51::7"}, CLIENT_GATEWAY),
    "client2": Leaf("other", {V4: "198.51.100.8", V6: "2001:db8:51::8"}, CLIENT_GATEWAY),
}
LEAVES = PODS | CLIENTS
ADDRESSES = {"node": NODE, "other": OTHER} | {name: leaf.addresses for name, leaf in LEAVES.items()}

_FORWARDING = {"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"}
# A pod forgets a connection with its end. Else it may take a new one that looks alike for the old one: the client gives up
# and begins again, and rules count it twice.
_SERVING = {"ipv4/tcp_max_tw_buckets": "0"}
_SETTINGS = {
    # Addresses can be used at once.
    "ipv6/conf/default/accept_dad": "0",
    # Every refusal is told, not only the first one in a second.
    "ipv4/icmp_ratemask": "0",
    "ipv6/icmp/ratelimit": "0",
    # Answers may come by another link, and nobody is told of shorter ways.
    "ipv4/conf/all/rp_filter": "0",
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/conf/all/send_redirects": "0",
    "ipv4/conf/default/send_redirects": "0",
    "ipv4/conf/all/accept_redirects": "0",
    "ipv4/conf/default/accept_redirects": "0",
    "ipv6/conf/all/accept_redirects": "0",
    "ipv6/conf/default/accept_redirects": "0",
}


class Answer(NamedTuple):
    """What came of one connection: who answered and which source address it saw.

    Where nobody did, ``by`` is "refused", "timeout", "unreachable", "reset" or "prohibited" and ``source`` empty.
    """

    by: str
    source: str = ""


class AgentError(Exception):
    """A request that an agent could not carry out."""


class Host:
    """One namespace and the process that holds it. Usable from several threads; requests wait for each other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses = ADDRESSES[name]
        self._lock = threading.Lock()
        # Not in our session: ^C is ours to handle, and must not take the namespace away before us.
        self._process = subprocess.Popen(
            ["unshare", "--net", "--", sys.executable, "-I", "-S", str(AGENT), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_ready(self) -> None:
        """Waits until the namespace is there."""
        self._read()

    def call(self, do: str, **arguments: Any) -> Any:
        """Makes a request (see tests.agent.Agent) and gives its result. Raises ``AgentError``."""
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            return self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AgentError(f"{self.name}: its process has ended (are we root?)")
        answer = json.loads(line)
        if "error" in answer:
            raise AgentError(f"{self.name}: {answer['error']}")
        return answer["result"]

    def command(self, *words: str) -> list[str]:
        """The command line that runs a command in this namespace, as the very process that is started."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *words]

    def run(self, *words: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command in this namespace to its end."""
        done = subprocess.run(self.command(*words), input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise AgentError(f"{self.name}: {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}\n{stdin}")
        return done

    def ip(self, family: Family, lines: Iterable[str]) -> None:
        """Carries out commands of ``ip`` in this namespace."""
        self.run("ip", f"-{family[-1]}", "-batch", "-", stdin="".join(f"{line}\n" for line in lines))

    def close(self) -> None:
        """Ends the process; the kernel then removes the namespace."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


class Topology:
    """The whole cluster. A context manager: everything is gone after it."""

    def __init__(self) -> None:
        """Builds it, and waits until every server answers. Needs root."""
        self.hosts: dict[str, Host] = {}
        try:
            for name in ADDRESSES:
                self.hosts[name] = Host(name)
            for host in self.hosts.values():
                host.wait_ready()
            self._settings()
            self._links()
            self._routes()
            self._servers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Removes everything. May be called twice."""
        while self.hosts:
            self.hosts.popitem()[1].close()

    @property
    def node(self) -> Host:
        """The node under test."""
        return self.hosts["node"]

    def ask(
        self,
        who: str,
        ip: str,
        port: int,
        protocol: str = "tcp",
        count: int = 1,
        *,
        source_port: int = 0,
        source_ip: str = "",
        timeout: float = 5.0,
    ) -> list[Answer]:
        """Lets a host connect ``count`` times, one after the other, and gives what came of each.

        ``timeout`` is for each; where silence is what is expected, a short one will do. After five silences the rest is
        not asked any more.
        """
        texts = self.hosts[who].call(
            "ask",
            ip=ip,
            port=port,
            protocol=protocol,
            count=count,
            source_port=source_port,
            source_ip=source_ip,
            timeout=timeout,
        )
        return [Answer(*text.split(" ", 1)) if _is_answer(text) else Answer(text) for text in texts]

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Starts a program on the node. It is asked to end (SIGTERM) when the thread that started it is gone."""
        command = ["setpriv", "--pdeathsig", "TERM", *self.node.command(*words)]
        return subprocess.Popen(command, text=True, start_new_session=True, **options)

    def _settings(self) -> None:
        for name, host in self.hosts.items():
            special = _SERVING if name in PODS else _FORWARDING if name not in LEAVES else {}
            host.call("sysctl", settings=_SETTINGS | special)

    def _links(self) -> None:
        pid = {name: host.pid for name, host in self.hosts.items()}
        pairs = [("node", "eth0", "other", "node")]
        pairs += [(name, "eth0", leaf.router, name) for name, leaf in LEAVES.items()]
        lines = [f"link add {a} netns {pid[x]} type veth peer name {b} netns {pid[y]}\n" for x, a, y, b in pairs]
        done = subprocess.run(["ip", "-batch", "-"], input="".join(lines), capture_output=True, text=True, check=False)
        if done.returncode:
            raise AgentError(f"links: {done.stderr}")

    def _routes(self) -> None:
        for name, host in self.hosts.items():
            up = ("lo", "eth0") if name != "other" else ("lo", "node")
            host.ip(
                V4, [f"link set {link} up" for link in (*up, *(n for n, leaf in LEAVES.items() if leaf.router == name))]
            )
        for family in Family:
            lines = self._routes_of(family)
            for name, host in self.hosts.items():
                host.ip(family, lines[name])

    def _routes_of(self, family: Family) -> dict[str, list[str]]:
        """Commands for the addresses and routes of each host."""
        single, network = (32, 24) if family is V4 else (128, 64)
        lines = {
            "node": [
                f"address add {NODE[family]}/{network} dev eth0",
                f"route add default via {OTHER[family]}",
            ],
            "other": [
                f"address add {OTHER[family]}/{network} dev node",
                *(f"route add {each} via {NODE[family]}" for each in (*SERVICE_RANGES[family], POD_RANGE[family])),
                f"route add {CLIENT_RANGE[family]} via {NODE[family]} table 100",
            ],
        }
        for name, leaf in LEAVES.items():
            address, gateway = leaf.addresses[family], leaf.gateway[family]
            lines[name] = [
                f"address add {address}/{single} dev eth0",
                f"route add {gateway} dev eth0",
                f"route add default via {gateway}",
            ]
            lines[leaf.router] += [f"address add {gateway}/{single} dev {name}", f"route add {address} dev {name}"]
            if name in PODS and leaf.router == "other":
                lines["other"].append(f"rule add iif {name} lookup 100")
        return lines

    def _servers(self) -> None:
        for name in PODS:
            self.hosts[name].call("serve", tcp=TCP_PORTS, udp=UDP_PORTS)
        self.node.call("serve", tcp=NODE_PORTS)
        for name in (*PODS, "node"):
            for who in ("node", "client1", "pod2"):
                for address in ADDRESSES[name].values():
                    port = NODE_PORTS[0] if name == "node" else TCP_PORTS[0]
                    answers = self.ask(who, address, port)
                    if answers[0].by != name:
                        raise AgentError(f"{who} to {name} at {address}: {answers[0].by}")


def _is_answer(text: str) -> bool:
    return text.split(" ", 1)[0] in ADDRESSES
