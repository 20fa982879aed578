"""File and flags to the one Config that the rest of proxyd uses."""

from __future__ import annotations

import msgspec

from proxyd.addresses import canonical
from proxyd.config.apply import apply_flags, options, unreadable
from proxyd.config.commandline import CommandLine
from proxyd.config.effects import without_effect
from proxyd.config.parse import Parsed, parse_file
from proxyd.config.schema import ConfigError, Conntrack, Document, Problem, leaves
from proxyd.config.syntax import LONGEST
from proxyd.config.validate import (
    ALL_SERVICE_METRICS,
    HEALTHZ_PORT,
    LOCALHOST_NODE_PORTS,
    METRICS_PORT,
    PAGE_FLAG,
    RESET_GONE_TCP,
    active_block,
    active_mode,
    advise,
    cluster_cidrs,
    host_port,
    node_port_address,
    page_address,
    page_advice,
    validate,
)
from proxyd.config.write import as_yaml, defaulted, unsayable
from proxyd.model import Family


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in effect. Times in seconds, addresses canonical, "" for what is not set.

    ``sync_period``, ``min_sync_period``, ``masquerade_all`` and ``masquerade_mark`` are those of the active mode.
    ``node_port_addresses`` holds CIDRs and the keywords primary, localhost and all; empty means every local address.
    ``localhost_node_ports`` says whether node ports may be served on loopback addresses that these include.
    ``cluster_cidrs`` has at most one range of each family. ``healthz_address`` and ``metrics_address`` are (host, port),
    None where disabled; so is ``page_address``, of the status page. ``document`` is all of it in the file's terms.
    ``unused`` names flags and fields that were given and do nothing; ``warnings`` is for people, one line each. ``given``
    are the flags of the daemon as they were given, for whoever asks.
    """

    mode: str
    kubeconfig: str
    master: str
    manifests: str | None
    hostname_override: str
    sync_period: float
    min_sync_period: float
    masquerade_all: bool
    masquerade_mark: int
    localhost_node_ports: bool
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
    page_address: tuple[str, int] | None = None
    document: Document = msgspec.field(default_factory=Document)
    unused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    given: dict[str, tuple[str, ...]] = {}


def load(line: CommandLine) -> Config:
    """Gives the Config of flags (see read_arguments), reading the file that --config names.

    Raises ConfigError, and nothing else, for whatever a user can get wrong.
    """
    path = options(line).config
    return resolve(_read(path) if path else Parsed(Document()), line)


def resolve(parsed: Parsed, line: CommandLine) -> Config:
    """Gives the Config of what a file and flags say. Pure; raises ConfigError with all problems of both."""
    applied, flags = apply_flags(parsed.document, line), options(line)
    invalid = (_renamed(problem, applied.origins) for problem in validate(applied.document))
    page, unusable = _page(flags.page_address, applied.document)
    found = (*line.problems, *flags.problems, *parsed.problems, *applied.problems, *invalid, *unusable)
    if found:
        raise ConfigError(tuple(map(str, dict.fromkeys(found))))
    return msgspec.structs.replace(
        _effective(defaulted(applied.document)),
        page_address=page,
        master=flags.master,
        manifests=flags.manifests or None,
        unused=(*applied.leftovers, *without_effect(applied.document, applied.origins)),
        warnings=(*parsed.warnings, *applied.warnings, *advise(applied.document), *page_advice(page)),
    )


def differences(old: Config, new: Config) -> tuple[str, ...]:
    """Gives the field paths of all settings that differ in what they mean; none: one can stand in for the other."""
    if _meaning(old) == _meaning(new):
        return ()
    before = dict(leaves(old.document))
    return tuple(path for path, value in leaves(new.document) if before[path] != value)


def as_file(config: Config) -> tuple[str, tuple[str, ...]]:
    """Gives the text of a configuration file that means the same, and what of it a file cannot say (one line each)."""
    text = as_yaml(config.document)
    lost = unsayable(config.document, defaulted(parse_file(text).document))
    flags = [name for name, value in (("--master", config.master), ("--manifests", config.manifests)) if value]
    if config.page_address != page_address(None, config.document):
        flags.append(PAGE_FLAG)
    return text, (
        *(f"{path}: a file cannot say this, it will mean the default there" for path in lost),
        *(f"{name}: has no field, give it beside --config where it counts" for name in flags),
    )


def _meaning(config: Config) -> Config:
    return msgspec.structs.replace(config, document=Document(), unused=(), warnings=(), given={})


def _read(path: str) -> Parsed:
    try:
        with open(path, "rb") as file:
            # More than that is refused for its length; some files have no end.
            return parse_file(file.read(4 * LONGEST + 1).decode("utf-8"))
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:  # not UTF-8, or a path that cannot be one
        reason = str(error)
    return Parsed(Document(), (unreadable(path, reason),))


def _renamed(problem: Problem, origins: dict[str, str]) -> Problem:
    """Names the flag instead of the field path where the value came by one."""
    field, bracket, index = problem.path.partition("[")
    return problem._replace(path=origins.get(field, field) + bracket + index)


def _page(given: str | None, document: Document) -> tuple[tuple[str, int] | None, tuple[Problem, ...]]:
    try:
        return page_address(given, document), ()
    except ValueError as error:
        return None, (Problem(PAGE_FLAG, str(error)),)


def _effective(document: Document) -> Config:
    """Works out a document in which nothing is left to a default that depends on something else."""
    block = active_block(document)
    return Config(
        mode=document.mode,
        kubeconfig=document.client_connection.kubeconfig,
        master="",
        manifests=None,
        hostname_override=document.hostname_override.strip().lower(),
        sync_period=block.sync_period,
        min_sync_period=block.min_sync_period,
        masquerade_all=block.masquerade_all,
        masquerade_mark=1 << block.masquerade_bit,
        localhost_node_ports=_localhost_node_ports(document),
        cluster_cidrs=_cluster_cidrs(document),
        detect_local_mode=document.detect_local_mode,
        bridge_interface=document.detect_local.bridge_interface,
        interface_name_prefix=document.detect_local.interface_name_prefix,
        node_port_addresses=tuple(filter(None, map(node_port_address, document.node_port_addresses))),
        bind_address=(canonical(document.bind_address) or ("", document.bind_address))[1],
        healthz_address=host_port(document.healthz_bind_address or "", HEALTHZ_PORT),
        metrics_address=host_port(document.metrics_bind_address or "", METRICS_PORT),
        bind_address_hard_fail=document.bind_address_hard_fail,
        verbosity=document.logging.verbosity,
        logging_format=document.logging.format,
        conntrack=document.conntrack,
        oom_score_adj=document.oom_score_adj,
        reset_gone_tcp=document.feature_gates.get(RESET_GONE_TCP, False),
        all_service_metrics=document.feature_gates.get(ALL_SERVICE_METRICS, False),
        document=document,
    )


def _cluster_cidrs(document: Document) -> dict[Family, str]:
    try:
        return cluster_cidrs(document.cluster_cidr)
    except ValueError:  # only where another detectLocalMode has no use for it
        return {}


def _localhost_node_ports(document: Document) -> bool:
    """In nftables mode nodePortAddresses decides, and kube-proxy's feature gate can only switch them off."""
    if active_mode(document) == "iptables":
        return document.iptables.localhost_node_ports
    return document.feature_gates.get(LOCALHOST_NODE_PORTS, True)
