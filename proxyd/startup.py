"""What was found when the process started, and why: for the start-up line, for decisions and for the node report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from proxyd import __version__
from proxyd.config import Config
from proxyd.desired.checks import Mismatch, check_families
from proxyd.desired.settings import NodePolicy
from proxyd.errors import UserError
from proxyd.kernel import host
from proxyd.kernel.host_settings import Outcome
from proxyd.model import Family, Node
from proxyd.serve.health import Moment, timestamp
from proxyd.serve.report import Detected, Identity

log = structlog.get_logger("proxyd")


def policy_of(config: Config) -> NodePolicy:
    """The part of the configuration that decisions need."""
    return NodePolicy(
        node_name=config.hostname_override or host.hostname(),
        detect_local_mode=config.detect_local_mode,
        cluster_cidrs=config.cluster_cidrs,
        bridge_interface=config.bridge_interface,
        interface_name_prefix=config.interface_name_prefix,
        node_port_addresses=config.node_port_addresses,
        bind_address=config.bind_address,
        masquerade_all=config.masquerade_all,
        masquerade_mark=config.masquerade_mark,
        reset_gone_tcp=config.reset_gone_tcp,
        # Where conntrack is liberal, no segment is invalid for its place in the window.
        drop_invalid=not host.tcp_be_liberal(),
        # In iptables mode rules do that, and not this process.
        localhost_node_ports=config.localhost_node_ports and config.mode == "nftables",
    )


def check_host(config: Config, families: Sequence[Family]) -> None:
    """Raises ``UserError`` where a configuration is valid, and still nothing can come of it on this host."""
    hopeless = [each.message for each in mismatches(config, policy_of(config), families, None) if each.hopeless]
    if hopeless:
        raise UserError("\n".join(hopeless))


def mismatches(
    config: Config, policy: NodePolicy, families: Sequence[Family], node: Node | None
) -> tuple[Mismatch, ...]:
    """What of the configuration does not fit the families of the host and of the Node."""
    servers = {"healthzBindAddress": config.healthz_address, "metricsBindAddress": config.metrics_address}
    hosts = {field: address[0] for field, address in servers.items() if address}
    return check_families(policy, hosts, families, node)


def identity(
    config: Config,
    policy: NodePolicy,
    nft_version: str,
    families: Sequence[Family],
    settings: Outcome,
    of_mode: Sequence[Detected] = (),
) -> Identity:
    """Who we are and what was found. ``nft_version`` is that of libnftables ("": not used here); ``families`` those of
    this kernel; ``of_mode`` what was found for the mode alone.
    """
    return Identity(
        version=__version__,
        mode=config.mode,
        node=policy.node_name,
        started=timestamp(Moment.now().unix),
        kernel=host.kernel_release(),
        nftables=nft_version,
        detected=(
            *_detected(config, policy, families),
            Detected("host settings", settings.summary, "conntrack, oomScoreAdj; before->now where written"),
            *of_mode,
        ),
    )


def announce(me: Identity, config: Config, settings: Outcome) -> None:
    """The start-up line, and what is odd about the configuration or could not be set."""
    found = {each.name.replace(" ", "_"): each.value for each in me.detected}
    nft = {"nftables": me.nftables} if me.nftables else {}
    log.info("proxyd starts", version=me.version, mode=me.mode, node=me.node, kernel=me.kernel, **nft, **found)
    if settings.failed:
        told = log.warning if settings.is_serious else log.info
        told("host settings not as configured", problem=settings.problem)
    for warning in config.warnings:
        log.warning(warning)
    if config.unused:
        log.warning("settings without effect", names=", ".join(config.unused))


def _detected(config: Config, policy: NodePolicy, families: Sequence[Family]) -> Iterator[Detected]:
    yield Detected("node name", policy.node_name, "hostnameOverride" if config.hostname_override else "host name")
    yield _source(config)
    without_ipv6 = "" if len(families) > 1 else "; the kernel has no IPv6"
    yield Detected("ip families", ",".join(families), f"/proc/net/if_inet6{without_ipv6}")
    pods = ",".join(policy.cluster_cidrs.values()) or policy.bridge_interface or policy.interface_name_prefix
    yield Detected("detect local mode", policy.detect_local_mode, "detectLocalMode")
    yield Detected("pod networks", pods, "clusterCIDR, detectLocal or the Node")
    yield Detected("node port addresses", ",".join(policy.node_port_addresses) or "all", "nodePortAddresses")
    liberal = host.tcp_be_liberal()
    value = "not loaded" if liberal is None else str(int(liberal))
    yield Detected("nf_conntrack_tcp_be_liberal", value, "sysctl, as read at start")
    drops = "of Services" if policy.drop_invalid else "none"
    yield Detected("drop invalid segments", drops, "unless nf_conntrack_tcp_be_liberal is on")


def _source(config: Config) -> Detected:
    if config.manifests is not None:
        return Detected("source", f"manifests in {config.manifests}", "--manifests")
    if config.kubeconfig:
        return Detected("source", config.kubeconfig, "clientConnection.kubeconfig")
    if config.master:
        return Detected("source", config.master, "--master")
    return Detected("source", "in-cluster", "neither a kubeconfig nor --master")
