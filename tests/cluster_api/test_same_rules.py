"""The rules of iptables mode are those of the real kube-proxy of the same objects: chain by chain, rule by rule."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from proxyd.ipt.ownership import OWN_MARK
from tests.controlplane import catalogue, objects
from tests.controlplane.api import path_of
from tests.controlplane.exposition import shapes
from tests.controlplane.kube_proxy import METRICS_PORT, KubeProxy, configuration, program, way_to
from tests.controlplane.namespaces import own_namespace
from tests.controlplane.plane import Plane
from tests.program import DEADLINE, HEALTH_PORT, Proxyd, until
from tests.topology import NODE, Host

BACKENDS = ("nft", "legacy")
TOOLS = ("iptables", "ip6tables")
# Whose rules kube-proxy writes in the order of a hash: which of them is first means nothing.
UNORDERED = {"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"}
HINT = "KUBE-KUBELET-CANARY"
LOOPBACK, COUNTED = "-d 127.0.0.0/8 ", " -m nfacct --nfacct-name  localhost_nps_accepted_pkts"

# Which rules may differ, as a pattern, and why. See docs/iptables.md.
EXCEPTIONS = {
    r'"default/balanced-merged:\w+ loadbalancer IP" -j KUBE-EXT-': "source ranges that overlap become one, and an address"
    " that they hold is not repeated",
    r'"default/balanced-twice:\w+ external IP"': "an address that a Service has twice leads to it once, as the load"
    " balancer's",
}

Chains = Mapping[str, Sequence[str]]


class Lone(NamedTuple):
    """A node without neighbours: a ``tests.program.Place``."""

    node: Host

    def start(self, words: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        command = ["setpriv", "--pdeathsig", "TERM", *self.node.command(*words)]
        return subprocess.Popen(command, text=True, start_new_session=True, **options)

    def chains(self, backend: str) -> dict[str, list[str]]:
        """All chains of both families, each with its rules."""
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
        return found


def excepted(rule: str) -> bool:
    return any(re.search(each, rule) for each in EXCEPTIONS)


def comparable(chains: Mapping[str, list[str]]) -> Chains:
    """Without what may differ, the mark that is proxyd's alone, and chains of many Services in an order of their own."""
    return {
        chain: _ordered(chain.rsplit(" ", 1)[1], [each for each in rules if not excepted(each)])
        for chain, rules in chains.items()
        if not chain.endswith(f" nat {OWN_MARK}")
    }


def _ordered(chain: str, rules: list[str]) -> list[str]:
    """Keeps what means something: rules to node ports are last, and what counts comes before what does not."""
    if chain not in UNORDERED:
        return rules
    last = [each for each in rules if each.endswith("-j KUBE-NODEPORTS")]
    assert rules[len(rules) - len(last) :] == last, "node ports are not last"
    for index, rule in enumerate(rules):
        if rule.startswith(LOOPBACK):
            assert LOOPBACK + rules[index + 1].replace(" -j", COUNTED + " -j") == rule, "what counts is not before it"
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
ZONE_LABEL = "topology.kubernetes.io/zone"
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


@pytest.fixture(autouse=True)
def _kube_proxy() -> None:
    try:
        program()
    except LookupError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def objects_there(plane: Plane) -> Iterator[list[objects.Manifest]]:
    """The whole catalogue, and a Node with addresses and a zone."""
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
        return differences(*(comparable(each.chains(self.backend)) for each in (self.theirs, self.ours)))

    def assert_same(self, has: str = "", has_not: str = "nowhere") -> None:
        """Waits until the rules are the same, with ``has`` in those of kube-proxy and without ``has_not``."""

        def same() -> bool:
            text = str(self.theirs.chains(self.backend))
            return has in text and has_not not in text and not self.differences()

        with contextlib.suppress(TimeoutError):
            until(same, "the same rules", DEADLINE, 0.5)
        assert same(), f"rules differ (-: kube-proxy, +: proxyd)\n{self.differences()}"


@contextlib.contextmanager
def pair(plane: Plane, folder: Path, backend: str, more: Mapping[str, Any]) -> Iterator[Pair]:
    with contextlib.ExitStack() as stack:
        theirs, ours = (stack.enter_context(lone(backend)) for _ in range(2))
        config = stack.enter_context(way_to(plane, theirs, folder))
        stack.enter_context(KubeProxy(theirs, folder, config, f"iptables-{backend}", more))
        config = stack.enter_context(way_to(plane, ours, folder))
        file = folder / "proxyd.yaml"
        document = {**configuration(config, "iptables"), **more, "healthzBindAddress": f"127.0.0.1:{HEALTH_PORT}"}
        file.write_text(yaml.safe_dump(document))
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_rules_are_kube_proxys_after_changes_and_every_exception_is_one(
    plane: Plane, objects_there: list[objects.Manifest], tmp_path: Path, backend: str
) -> None:
    api, by_name = plane.admin, {path_of(each): each for each in objects_there}

    def slice_path(name: str) -> str:
        return path_of(objects.endpoint_slice(name, ["10.0.0.1"])) + "-ipv4"

    def service_path(name: str) -> str:
        return path_of(objects.service(name))

    with pair(plane, tmp_path, backend, CONFIGURATIONS["usual"]) as both:
        both.assert_same(has="default/plain:http")
        for pattern in EXCEPTIONS:
            theirs, ours = (
                {rule for rules in each.chains(backend).values() for rule in rules if re.search(pattern, rule)}
                for each in (both.theirs, both.ours)
            )
            assert theirs != ours, f"nothing differs any more: {pattern}"
        marked = [any(chain.endswith(OWN_MARK) for chain in each.chains(backend)) for each in (both.theirs, both.ours)]
        assert marked == [False, True]
        # One more, one less, other conditions; a Service goes, one gets node ports, one loses its endpoints, one its zone.
        plain = by_name[slice_path("plain")]
        more = [*plain["endpoints"][1:], catalogue.Place(77, "node2").manifest("10.244.1.")]
        api.patch(slice_path("plain"), {"endpoints": more})
        api.delete(service_path("sticky"))
        api.patch(service_path("single"), {"spec": {"type": "NodePort", "externalTrafficPolicy": "Local"}})
        api.patch(slice_path("ports"), {"endpoints": []})
        api.patch(service_path("node-port-local"), {"spec": {"externalTrafficPolicy": "Cluster"}})
        api.patch(service_path("balanced-ranges"), {"spec": {"loadBalancerSourceRanges": None}})
        both.assert_same(has="10.244.1.77:8080", has_not="default/sticky:http")
        # kube-proxy was seen to keep the rules of the zone before; another change of it brings it to.
        move = [{"metadata": {"labels": {ZONE_LABEL: zone}}} for zone in (catalogue.ZONE, catalogue.OTHER_ZONE)]
        api.patch(THIS_NODE, move[1])
        with contextlib.suppress(TimeoutError):
            until(lambda: not both.differences(), "the other zone", DEADLINE, 0.5)
        if both.differences():
            for each in move:
                api.patch(THIS_NODE, each)
        both.assert_same()


def test_metrics_of_this_mode_are_kube_proxys(plane: Plane, objects_there: object, tmp_path: Path) -> None:
    with pair(plane, tmp_path, "nft", CONFIGURATIONS["usual"]) as both:
        both.assert_same()
        theirs, ours = (
            shapes(each.node.call("http_get", host="127.0.0.1", port=METRICS_PORT, path="/metrics")[1])
            for each in (both.theirs, both.ours)
        )
        expected = {name: shape for name, shape in theirs.items() if name.startswith("kubeproxy_")}
        assert {name for name in expected if "_iptables_" in name}, "nothing of this mode came to be seen"
        assert {name: ours.get(name) for name in expected} == expected


def test_rules_of_endpoints_have_no_comments_where_kube_proxys_have_none(plane: Plane, tmp_path: Path) -> None:
    api, service = plane.admin, objects.service("large")
    addresses = [f"10.245.{number // 250}.{number % 250 + 1}" for number in range(1001)]
    parts = [objects.endpoint_slice("large", part) for part in (addresses[:600], addresses[600:])]
    parts[1]["metadata"]["name"] = "large-2"
    with contextlib.ExitStack() as stack:
        stack.callback(api.delete_all, [service, *parts])
        for each in (service, *parts):
            api.create(each)
        both = stack.enter_context(pair(plane, tmp_path, "nft", CONFIGURATIONS["usual"]))
        both.assert_same(has="default/large:http")
        (rule,) = (each for rules in both.ours.chains("nft").values() for each in rules if "10.245.0.1:8080" in each)
        assert "comment" not in rule
