"""What other programs write for kube-proxy is accepted as it is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from proxyd.config import Config, Conntrack, Document, Parsed, parse_file, resolve
from proxyd.config.schema import leaves
from proxyd.model import Family
from tests.config.support import by_flags, flags, plain

EXAMPLES = Path(__file__).with_name("examples")


def by_example(name: str) -> Config:
    """The configuration of a file, or of a command line, with the flags that kubeadm's DaemonSet gives beside a file."""
    text = (EXAMPLES / name).read_text()
    if name.endswith(".yaml"):
        return plain(resolve(parse_file(text), flags("--config=/config.conf", "--hostname-override=Node-1")))
    words = [line for line in text.splitlines() if not line.startswith("#")]
    return plain(resolve(Parsed(Document()), flags(*words)))


def default(**changes: object) -> Config:
    return msgspec.structs.replace(by_flags(), **changes)


def test_kubeadm() -> None:
    assert by_example("kubeadm.yaml") == default(
        kubeconfig="/var/lib/kube-proxy/kubeconfig.conf",
        hostname_override="node-1",
        cluster_cidrs={Family.IPV4: "10.244.0.0/16"},
    )


def test_kind() -> None:
    config = by_example("kind.yaml")
    assert config == default(
        kubeconfig="/var/lib/kube-proxy/kubeconfig.conf",
        hostname_override="node-1",
        cluster_cidrs={Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/56"},
        conntrack=Conntrack(max_per_core=0),
        unused=config.unused,
    )
    assert "clusterCIDR" not in config.unused


def test_k3s() -> None:
    config = by_example("k3s.args")
    assert config == default(
        mode="iptables",
        kubeconfig="/var/lib/rancher/k3s/agent/kubeproxy.kubeconfig",
        hostname_override="worker-1",
        cluster_cidrs={Family.IPV4: "10.42.0.0/16"},
        conntrack=Conntrack(max_per_core=0, tcp_close_wait_timeout=0.0, tcp_established_timeout=0.0),
        healthz_address=("127.0.0.1", 10256),
        node_port_addresses=(),
        unused=config.unused,
        warnings=config.warnings,
    )
    assert [warning.partition(":")[0] for warning in config.warnings] == ["nodePortAddresses"]


def test_kops() -> None:
    config = by_example("kops.args")
    assert config == default(
        kubeconfig="/var/lib/kube-proxy/kubeconfig",
        master="https://127.0.0.1",
        hostname_override="i-0123456789abcdef0",
        cluster_cidrs={Family.IPV4: "100.96.0.0/11"},
        conntrack=Conntrack(max_per_core=131072),
        oom_score_adj=-998,
        verbosity=2,
        unused=config.unused,
    )
    assert {"--logtostderr", "--alsologtostderr", "--log-file"} <= set(config.unused)


def test_a_command_line_that_has_seen_many_releases() -> None:
    config = by_example("old.args")
    assert config == default(
        cluster_cidrs={Family.IPV4: "10.244.0.0/16"},
        node_port_addresses=("192.0.2.0/24", "2001:db8::/64"),
        verbosity=4,
        unused=(
            "--logtostderr",
            "--stderrthreshold",
            "--log-dir",
            "--resource-container",
            "--cleanup-ipvs",
            "--conntrack-max",
            "--udp-timeout",
            "--kube-api-qps",
            "--kube-api-burst",
            "--proxy-port-range",
        ),
        warnings=(
            "featureGates.EndpointSlice: unknown to proxyd, ignored",
            "featureGates.SupportIPVSProxyMode: unknown to proxyd, ignored",
        ),
    )


# kubeadm leaves these out where they are empty (omitempty in Go).
OMITTED = {
    "featureGates",
    "logging.format",
    "logging.vmodule",
    "logging.options.json.splitStream",
    "logging.options.text.splitStream",
    "windowsRunAsService",
}


def paths(value: object, at: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {at}
    return set().union(*(paths(item, f"{at}.{key}" if at else key) for key, item in value.items()))


@pytest.mark.parametrize("name", ["kubeadm.yaml", "kind.yaml"])
def test_an_example_says_every_field_that_there_is(name: str) -> None:
    said = paths(yaml.safe_load((EXAMPLES / name).read_text())) - {"apiVersion", "kind"}
    assert said == {path for path, _ in leaves(Document())} - OMITTED
