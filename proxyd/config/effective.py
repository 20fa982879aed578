"""File and flags to the one Config that the rest of proxyd uses."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from proxyd.addresses import canonical
from proxyd.config.flags import apply_flags, options
from proxyd.config.parse import Parsed, parse_file
from proxyd.config.schema import ConfigError, Conntrack, Document, Problem, leaves
from proxyd.config.validate import (
    ALL_SERVICE_METRICS,
    DEFAULT_LOCAL_MODE,
    HEALTHZ_PORT,
    LOCALHOST_NODE_PORTS,
    METRICS_PORT,
    RESET_GONE_TCP,
    active_block,
    active_mode,
    advise,
    cluster_cidrs,
    host_port,
    node_port_address,
    validate,
)
from proxyd.model import Family

# Field paths that proxyd acts on in either mode (featureGates: unknown ones have warnings of their own).
_USED = frozenset(
    {
        "mode",
        "featureGates",
        "hostnameOverride",
        "clientConnection.kubeconfig",
        "clusterCIDR",
        "detectLocalMode",
        "detectLocal.bridgeInterface",
        "detectLocal.interfaceNamePrefix",
        "nodePortAddresses",
        "healthzBindAddress",
        "metricsBindAddress",
        "bindAddress",
        "bindAddressHardFail",
        "configSyncPeriod",  # a resync is never needed, so there is nothing left to act on
        "logging.format",
        "logging.verbosity",
    }
)
_USED_OF_MODE = ("masqueradeAll", "masqueradeBit", "minSyncPeriod", "syncPeriod")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in effect. Times in seconds, addresses canonical, "" for what is not set.

    ``sync_period``, ``min_sync_period``, ``masquerade_all`` and ``masquerade_mark`` are those of the active mode.
    ``node_port_addresses`` holds CIDRs and the keywords primary, localhost and all; empty means every local address.
    ``localhost_node_ports`` says whether those that name loopback (in iptables mode: include it) are served there.
    ``cluster_cidrs`` has at most one range of each family. ``healthz_address`` and ``metrics_address`` are (host, port),
    None where disabled. ``unused`` lists fields that the file sets and proxyd does not act on; ``warnings`` is for
    people, one line each.
    """

    mode: str
    kubeconfig: str
    master: str
    manifests: str | None
    hostname_override: str
    sync_period: float
    min_sync_period: float
    config_sync_period: float
    masquerade_all: bool
    masquerade_mark: int
    cluster_cidrs: dict[Family, str]
    detect_local_mode: str
    bridge_interface: str
    interface_name_prefix: str
    node_port_addresses: tuple[str, ...]
    bind_address: str
    healthz_address: tuple[str, int] | None
    metrics_address: tuple[str, int] | None
    bind_address_hard_fail: bool
    verbosity: int
    logging_format: str
    conntrack: Conntrack
    oom_score_adj: int
    reset_gone_tcp: bool = False
    all_service_metrics: bool = False
    localhost_node_ports: bool = True
    unused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def load(namespace: argparse.Namespace) -> Config:
    """Gives the Config of parsed flags (see add_flags), reading the file that --config names.

    Raises ConfigError, and nothing else, for whatever a user can get wrong.
    """
    path = options(namespace).config
    return resolve(_read(path) if path else Parsed(Document()), namespace)


def resolve(parsed: Parsed, namespace: argparse.Namespace) -> Config:
    """Gives the Config of what a file says and parsed flags. Pure; raises ConfigError with all problems of both."""
    applied = apply_flags(parsed.document, namespace)
    found = (*parsed.problems, *applied.problems, *(_renamed(p, applied.origins) for p in validate(applied.document)))
    if found:
        raise ConfigError(tuple(map(str, found)))
    config = _effective(applied.document)
    flags = options(namespace)
    return msgspec.structs.replace(
        config,
        master=flags.master,
        manifests=flags.manifests or None,
        unused=_unused(parsed.document),
        warnings=(*parsed.warnings, *applied.warnings, *advise(applied.document)),
    )


def _read(path: str) -> Parsed:
    try:
        return parse_file(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror
    except ValueError as error:  # not UTF-8, or a path that cannot be one
        reason = str(error)
    return Parsed(Document(), (Problem("--config", f"cannot read {path}: {reason}"),))


def _renamed(problem: Problem, origins: dict[str, str]) -> Problem:
    """Names the flag instead of the field path where the value came by one."""
    field, bracket, index = problem.path.partition("[")
    return problem._replace(path=origins.get(field, field) + bracket + index)


def _unused(document: Document) -> tuple[str, ...]:
    used = _USED.union(f"{active_mode(document)}.{name}" for name in _USED_OF_MODE)
    if active_mode(document) == "iptables":
        used |= {"iptables.localhostNodePorts"}
    defaults = dict(leaves(Document()))
    return tuple(path for path, value in leaves(document) if value != defaults[path] and path not in used)


def _effective(document: Document) -> Config:
    mode, block = active_mode(document), active_block(document)
    bind_family, bind_address = canonical(document.bind_address) or (Family.IPV4, document.bind_address)
    any_host, loopback = ("::", "::1") if bind_family is Family.IPV6 else ("0.0.0.0", "127.0.0.1")  # noqa: S104
    return Config(
        mode=mode,
        kubeconfig=document.client_connection.kubeconfig,
        master="",
        manifests=None,
        hostname_override=document.hostname_override.strip().lower(),
        sync_period=block.sync_period,
        min_sync_period=block.min_sync_period,
        config_sync_period=document.config_sync_period,
        masquerade_all=block.masquerade_all,
        masquerade_mark=1 << block.masquerade_bit,
        cluster_cidrs=_cluster_cidrs(document),
        detect_local_mode=document.detect_local_mode or DEFAULT_LOCAL_MODE,
        bridge_interface=document.detect_local.bridge_interface,
        interface_name_prefix=document.detect_local.interface_name_prefix,
        node_port_addresses=_node_port_addresses(document),
        bind_address=bind_address,
        healthz_address=_address(document.healthz_bind_address, any_host, HEALTHZ_PORT),
        metrics_address=_address(document.metrics_bind_address, loopback, METRICS_PORT),
        bind_address_hard_fail=document.bind_address_hard_fail,
        verbosity=document.logging.verbosity,
        logging_format=document.logging.format,
        conntrack=document.conntrack,
        oom_score_adj=document.oom_score_adj,
        reset_gone_tcp=document.feature_gates.get(RESET_GONE_TCP, False),
        all_service_metrics=document.feature_gates.get(ALL_SERVICE_METRICS, False),
        localhost_node_ports=(
            document.iptables.localhost_node_ports
            if mode == "iptables"
            else document.feature_gates.get(LOCALHOST_NODE_PORTS, True)
        ),
    )


def _cluster_cidrs(document: Document) -> dict[Family, str]:
    try:
        return cluster_cidrs(document.cluster_cidr)
    except ValueError:  # only where another detectLocalMode has no use for it
        return {}


def _node_port_addresses(document: Document) -> tuple[str, ...]:
    if not document.node_port_addresses and active_mode(document) == "nftables":
        return ("primary",)
    return tuple(found for text in document.node_port_addresses if (found := node_port_address(text)))


def _address(text: str | None, default_host: str, port: int) -> tuple[str, int] | None:
    return (default_host, port) if text is None else host_port(text, port)
