"""The rules of proxyd in iptables mode and those of the real kube-proxy, of the same objects: chain by chain, rule by rule."""

from __future__ import annotations

import contextlib
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.controlplane import catalogue, objects
from tests.controlplane.api import Api, path_of
from tests.controlplane.kube_proxy import KubeProxy, configuration, program, way_to
from tests.controlplane.namespaces import own_namespace
from tests.controlplane.plane import Plane
from tests.program import Proxyd, until
from tests.topology import NODE, Host, V4, V6

BACKENDS = ("nft", "legacy")
TOOLS = ("iptables", "ip6tables")
# Whose rules kube-proxy writes in the order of a hash: which of them is first means nothing.
UNORDERED = {"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"}
HINT = "KUBE-KUBELET-CANARY"

Chains = Mapping[str, Sequence[str]]


class Lone(NamedTuple):
    """A node without neighbours: a ``tests.program.Place``."""

    node: Host

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        command = ["setpriv", "--pdeathsig", "TERM", *self.node.command(*words)]
        return subprocess.Popen(command, text=True, start_new_session=True, **options)

    def chains(self, backend: str) -> Chains:
        """All chains of both families, each with its rules; those of ``UNORDERED`` in an order of their own."""
        found: dict[str, list[str]] = {}
        for tool in TOOLS:
            table = ""
            for line in self.node.run(f"{tool}-{backend}-save").stdout.splitlines():
                if line.startswith("*"):
                    table = f"{tool} {line[1:]} "
                elif line.startswith(":"):
                    found[table + line[1:].split()[0]] = []
                elif line.startswith("-A "):
                    _, chain, rule = line.split(" ", 2)
                    found[table + chain].append(rule)
        return {chain: _ordered(chain, rules) for chain, rules in found.items()}


def _ordered(chain: str, rules: list[str]) -> list[str]:
    """The rules to node ports stay last, where they have to be."""
    if chain.rsplit(" ", 1)[1] not in UNORDERED:
        return rules
    last = [each for each in rules if each.endswith("-j KUBE-NODEPORTS")]
    assert rules[len(rules) - len(last) :] == last, "node ports are not last"
    return sorted(rules[: len(rules) - len(last)]) + sorted(last)


@contextlib.contextmanager
def lone(backend: str) -> Iterator[Lone]:
    with own_namespace() as host:
        host.run("ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        for link in ("eth0", "eth1"):
            host.run("ip", "link", "set", link, "up")
        for address in NODE.values():
            host.run("ip", "address", "add", address, "dev", "eth0", *(("nodad",) if ":" in address else ()))
        host.run(f"iptables-{backend}", "-t", "mangle", "-N", HINT)
        yield Lone(host)


def differences(theirs: Chains, ours: Chains) -> str:
    """What is only in one of them, as a diff."""
    lines = []
    for chain in sorted(theirs.keys() | ours.keys()):
        one, other = theirs.get(chain), ours.get(chain)
        if one != other:
            lines.append(f"{chain}:")
            if one is None or other is None:
                lines.append(f"  only {'kube-proxy' if other is None else 'proxyd'} has it")
            lines += [f"  - {each}" for each in one or () if each not in (other or ())]
            lines += [f"  + {each}" for each in other or () if each not in (one or ())]
            if one and other and sorted(one) == sorted(other):
                lines += ["  another order:", *(f"  - {each}" for each in one), *(f"  + {each}" for each in other)]
    return "\n".join(lines)


# What shapes rules beside the objects.
SYNC = {"syncPeriod": "2s", "minSyncPeriod": "0s"}
CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "usual": {"iptables": SYNC},
    "all-masqueraded": {
        "iptables": {**SYNC, "masqueradeAll": True, "masqueradeBit": 20},
        "nodePortAddresses": ["192.0.2.0/24", "2001:db8:2::/64"],
    },
    "no-detector": {"iptables": {**SYNC, "localhostNodePorts": False}, "clusterCIDR": ""},
    "by-interface": {
        "iptables": SYNC,
        "detectLocalMode": "InterfaceNamePrefix",
        "detectLocal": {"interfaceNamePrefix": "veth"},
        "nodePortAddresses": ["127.0.0.0/8", "192.0.2.0/24"],
    },
}
THIS_NODE = path_of(objects.node("node1"))


@pytest.fixture(scope="module")
def objects_there(plane: Plane) -> Iterator[list[objects.Manifest]]:
    """The whole catalogue, and a Node with addresses and a zone."""
    try:
        program()
    except LookupError as missing:
        pytest.skip(str(missing))
    api, services = plane.admin, list(catalogue.services())
    made = [*services, *catalogue.slices(services)]
    zone = {"topology.kubernetes.io/zone": catalogue.ZONE}
    addresses = [{"type": "InternalIP", "address": ip} for ip in NODE.values()]
    with contextlib.ExitStack() as stack:
        stack.callback(api.create, objects.node("node1"))
        stack.callback(api.delete, THIS_NODE)
        api.patch(THIS_NODE, {"metadata": {"labels": zone}})
        api.patch(f"{THIS_NODE}/status", {"status": {"addresses": addresses}})
        stack.callback(api.delete_all, made)
        for each in made:
            api.create(each)
        catalogue.give_addresses(api, services)
        yield made


class Pair(NamedTuple):
    """A node with the real kube-proxy and one with proxyd, of the same name, configuration and cluster."""

    theirs: Lone
    ours: Lone
    proxyd: Proxyd
    backend: str

    def differences(self) -> str:
        return differences(self.theirs.chains(self.backend), self.ours.chains(self.backend))

    def assert_same(self, *names: str) -> None:
        """Waits for the rules to be the same, and to have ``names`` in them."""
        with contextlib.suppress(TimeoutError):
            until(lambda: not self.differences(), "the same rules", 10, 0.5)
        found = self.differences()
        if found:
            pytest.fail(f"rules differ (-: kube-proxy, +: proxyd)\n{found}")


@contextlib.contextmanager
def pair(plane: Plane, folder: Path, backend: str, more: Mapping[str, Any]) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        theirs, ours = (stack.enter_context(lone(backend)) for _ in range(2))
        config = stack.enter_context(way_to(plane, theirs, folder))
        stack.enter_context(KubeProxy(theirs, folder, config, f"iptables-{backend}", more))
        config = stack.enter_context(way_to(plane, ours, folder))
        file = folder / "proxyd.yaml"
        file.write_text(yaml.safe_dump({**configuration(config, "iptables"), **more, "healthzBindAddress": "127.0.0.1:10256"}))
        flags = ("--config", str(file), "--hostname-override", "node1")
        proxyd = stack.enter_context(Proxyd(ours, None, folder / "proxyd.log", flags=flags))
        yield Pair(theirs, ours, proxyd, backend)


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_rules_are_kube_proxys(
    plane: Plane, objects_there: object, tmp_path: Path, backend: str, configuration: str
) -> None:
    with pair(plane, tmp_path, backend, CONFIGURATIONS[configuration]) as both:
        both.assert_same()
