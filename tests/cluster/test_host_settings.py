"""Settings of the node's kernel, made by the running program where it may, and told where it may not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.cluster.manifests import answers
from tests.program import Proxyd
from tests.topology import Host, Topology

FILES = "/proc/sys/net/netfilter/nf_conntrack_"


class ReadOnly:
    """A node whose programs see /proc/sys read-only, as containers do that are not privileged."""

    def __init__(self, world: Topology) -> None:
        self._world = world
        self.node: Host = world.node

    def start(self, words: Sequence[str], **options: Any) -> Popen[str]:
        protect = 'mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec "$@"'
        return self._world.start(["unshare", "--mount", "--", "sh", "-c", protect, "sh", *words], **options)


def value(host: Host, name: str) -> str:
    return host.run("cat", f"{FILES}{name}").stdout.strip()


def reset(host: Host) -> None:
    host.run("sh", "-c", f"echo 432000 >{FILES}tcp_timeout_established; echo 0 >{FILES}tcp_be_liberal")


def test_timeouts_are_set_before_the_rules_and_the_start_says_so(node: Topology, folder: Path, log: Path) -> None:
    reset(node.node)
    config = folder.with_name("config.yaml")
    config.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"
        "conntrack: {tcpBeLiberal: true}\n"
    )
    with Proxyd(node, folder, log, flags=("--config", str(config), "--hostname-override", "node1")) as proxyd:
        (started,) = proxyd.events("proxyd starts")
        assert "nf_conntrack_tcp_timeout_established=432000->86400" in started["host_settings"]
        assert started["nf_conntrack_tcp_be_liberal"] == "1"
        assert (value(node.node, "tcp_timeout_established"), value(node.node, "tcp_be_liberal")) == ("86400", "1")
        assert not [each for each in proxyd.events("host settings not as configured") if each["level"] != "info"]
    with Proxyd(node, folder, log):
        assert "nf_conntrack_tcp_timeout_established=86400 " in proxyd.events("proxyd starts")[1]["host_settings"]


def test_where_settings_are_read_only_one_line_names_them_and_all_is_served(
    node: Topology, folder: Path, log: Path
) -> None:
    reset(node.node)
    with Proxyd(ReadOnly(node), folder, log) as proxyd:
        (told,) = proxyd.events("host settings not as configured")
        assert told["level"] == "warning"
        assert (
            "net.netfilter.nf_conntrack_tcp_timeout_established should be =86400 (conntrack.tcpEstablishedTimeout)"
            " but is 432000: Read-only file system"
        ) in told["problem"]
        assert "--init-only" in told["problem"]
        assert answers(node) == {"pod1", "pod3"}
        assert value(node.node, "tcp_timeout_established") == "432000"
