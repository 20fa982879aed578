"""Command-line flags, by kube-proxy's names. A flag is a row of the table: name, fields it sets, reader, help.

Reading the texts is done with the rest of the configuration, so that all problems of flags and file come together.
Source: cmd/kube-proxy/app/options.go, AddFlags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from proxyd.config import commandline
from proxyd.config.commandline import CommandLine
from proxyd.config.leftovers import LEFTOVER_SWITCHES, LEFTOVER_VALUES
from proxyd.config.schema import VModule
from proxyd.config.values import float32, int32, parse_duration, quantity, show

_GO_BOOL = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_WHOLE = re.compile(r"[-+]?(0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO]?[0-7_]+|[1-9][0-9_]*|0)")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def text(given: str) -> str:
    """Any text."""
    return given


def text_or_default(given: str) -> str | None:
    """Any text; an empty one is as if the flag were not given."""
    return given or None


def switch(given: str) -> bool:
    """A switch, as Go's strconv.ParseBool reads it."""
    if given not in _GO_BOOL:
        raise ValueError(f"must be true or false, got {show(given)}")
    return _GO_BOOL[given]


def whole(given: str) -> int:
    """A whole number of 32 bits in Go's notations (``16``, ``0x10``, ``020``, ``0b1_0000``)."""
    if len(given) > 64 or not _WHOLE.fullmatch(given):
        raise ValueError(f"must be a whole number, got {show(given)}")
    try:
        return int32(int(re.sub(r"^([-+]?)0(?=[0-9_])", r"\g<1>0o", given), 0))
    except ValueError as error:
        if "32 bits" in str(error):
            raise
        raise ValueError(f"must be a whole number, got {show(given)}") from None  # stray underscores


def number(given: str) -> float:
    """A number of Go's float32."""
    if len(given) > 64 or not _NUMBER.fullmatch(given):
        raise ValueError(f"must be a number, got {show(given)}")
    return float32(float(given))


def words(given: str) -> tuple[str, ...]:
    """A list with commas; blanks around items and empty items do not count."""
    return tuple(part.strip() for part in given.split(",") if part.strip())


def gates(given: str) -> dict[str, bool]:
    """Feature gates: ``NAME=true,OTHER=false``."""
    found = {}
    for part in words(given):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"must be NAME=true or NAME=false, got {show(part)}")
        found[name.strip()] = switch(value.strip())
    return found


def vmodule(given: str) -> tuple[VModule, ...]:
    """Verbosities of source files: ``PATTERN=N,OTHER=N``."""
    found = []
    for part in words(given):
        pattern, equals, level = part.partition("=")
        if not (pattern and equals):
            raise ValueError(f"must be PATTERN=NUMBER, got {show(part)}")
        found.append(VModule(pattern, whole(level)))
    return tuple(found)


class Flag(NamedTuple):
    """One flag. ``read`` gives the value or None for "as if not given", and raises ValueError with a message.

    ``paths`` are the fields of the Document that it sets; without any it is either one of ``Options`` or, in the group
    of ignored ones, nothing at all. ``beats_file``: it also counts beside --config.
    """

    name: str
    paths: tuple[str, ...] = ()
    read: Callable[[str], Any] = text
    help: str = ""
    metavar: str = "TEXT"
    beats_file: bool = False
    letter: str = ""

    @property
    def is_list(self) -> bool:
        """Whether several of it add up, as in kube-proxy; of others the last one counts."""
        return self.read in (words, gates, vmodule)


def _flag(name: str, paths: str, read: Callable[[str], Any], help_text: str, metavar: str = "", **more: Any) -> Flag:
    shown = metavar or _METAVARS.get(read, "TEXT")
    return Flag(name, tuple(paths.split()), read, help_text, shown, **more)


_METAVARS = {
    switch: "",
    whole: "N",
    number: "NUMBER",
    words: "LIST",
    gates: "NAME=BOOL[,...]",
    parse_duration: "DURATION",
    quantity: "SIZE",
    vmodule: "PATTERN=N[,...]",
}

# kube-proxy's --iptables-* periods and --masquerade-all apply to nftables mode as well, so they set both blocks.
GROUPS: dict[str, tuple[Flag, ...]] = {
    "Where the configuration comes from": (
        _flag("--config", "", text, "KubeProxyConfiguration to read; most other flags are then ignored", "FILE"),
        _flag("--kubeconfig", "clientConnection.kubeconfig", text, "how to reach the API server", "FILE"),
        _flag("--master", "", text, "address of the API server, before the kubeconfig's", "URL"),
        _flag("--manifests", "", text, "serve Services from YAML or JSON files, not from an API server", "DIR"),
        _flag("--hostname-override", "hostnameOverride", text_or_default, "name of this Node", "NAME", beats_file=True),
    ),
    "To do one thing and end": (
        _flag("--write-config-to", "", text, "write the configuration, with all defaults, as YAML", "FILE"),
        _flag("--cleanup", "", switch, "delete all rules of proxyd and of kube-proxy, as the command cleanup does"),
        _flag("--init-only", "", switch, "set what needs full privileges on this host"),
        _flag("--version", "", text, "show the version", " "),
        _flag("--help", "", switch, "show this", letter="h"),
    ),
    "Rules": (
        _flag("--proxy-mode", "mode", text, "nftables (the default) or iptables", "MODE"),
        _flag("--nodeport-addresses", "nodePortAddresses", words, "where: CIDRs, primary, localhost, all"),
        _flag("--masquerade-all", "iptables.masqueradeAll nftables.masqueradeAll", switch, "SNAT to ClusterIPs"),
        _flag("--iptables-masquerade-bit", "iptables.masqueradeBit", whole, "bit of the mark, in iptables mode"),
        _flag(
            "--iptables-localhost-nodeports",
            "iptables.localhostNodePorts",
            switch,
            "node ports on 127.0.0.1, in iptables mode",
        ),
        _flag(
            "--iptables-sync-period",
            "iptables.syncPeriod nftables.syncPeriod",
            parse_duration,
            "the longest between retries, in either mode",
        ),
        _flag(
            "--iptables-min-sync-period",
            "iptables.minSyncPeriod nftables.minSyncPeriod",
            parse_duration,
            "the longest that a change waits for others, in either mode",
        ),
        _flag(
            "--feature-gates",
            "featureGates",
            gates,
            "proxyd knows ResetGoneTCP, AllServiceMetrics and KubeProxyNFTablesLocalhostNodePorts",
        ),
    ),
    "Which packets come from pods of this node": (
        _flag("--detect-local-mode", "detectLocalMode", text, "ClusterCIDR (the default), NodeCIDR, ...", "MODE"),
        _flag("--cluster-cidr", "clusterCIDR", text, "ranges of pod addresses, one a family", "CIDR[,CIDR]"),
        _flag("--pod-bridge-interface", "detectLocal.bridgeInterface", text, "for BridgeInterface", "NAME"),
        _flag(
            "--pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", text, "for InterfaceNamePrefix", "NAME"
        ),
    ),
    "Addresses of this node and of its servers": (
        _flag("--bind-address", "bindAddress", text_or_default, "the node's own address; nothing is bound", "IP"),
        _flag("--healthz-bind-address", "healthzBindAddress", text, "health server; empty: none", "IP:PORT"),
        _flag("--metrics-bind-address", "metricsBindAddress", text, "metrics server; empty: none", "IP:PORT"),
        _flag("--bind-address-hard-fail", "bindAddressHardFail", switch, "exit where a server's port is taken"),
        _flag("--page-bind-address", "", text, "the status page of proxyd; empty: none", "IP:PORT"),
        _flag("--healthz-port", "", whole, "deprecated: for an address without one; 0: no server", "PORT"),
        _flag("--metrics-port", "", whole, "deprecated: the same for the metrics server", "PORT"),
    ),
    "Connection tracking and the process": (
        _flag("--conntrack-max-per-core", "conntrack.maxPerCore", whole, "size of the table; 0: as it is"),
        _flag("--conntrack-min", "conntrack.min", whole, "the least size of the table"),
        _flag("--conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", parse_duration, "0: as it is"),
        _flag("--conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", parse_duration, "0: as it is"),
        _flag("--conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", switch, "take segments out of window"),
        _flag("--conntrack-udp-timeout", "conntrack.udpTimeout", parse_duration, "unreplied flows; 0: as it is"),
        _flag("--conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", parse_duration, "others; 0: as it is"),
        _flag("--oom-score-adj", "oomScoreAdj", whole, "-1000..1000; how unlikely it is to be killed"),
    ),
    "Log": (
        _flag("--v", "logging.verbosity", whole, "above 0: more of it", "LEVEL", beats_file=True, letter="v"),
        _flag("--logging-format", "logging.format", text, "text or json", "FORMAT", beats_file=True),
    ),
    "Accepted, without effect": (
        _flag("--config-sync-period", "configSyncPeriod", parse_duration, "nothing is ever resynced"),
        _flag("--kube-api-content-type", "clientConnection.contentType", text, "JSON is what is asked for"),
        _flag("--kube-api-qps", "clientConnection.qps", number, "a few long watches need no limit"),
        _flag("--kube-api-burst", "clientConnection.burst", whole, "the same"),
        _flag("--profiling", "enableProfiling", switch, "there is no profiler"),
        _flag(
            "--show-hidden-metrics-for-version", "showHiddenMetricsForVersion", text, "no metric is hidden", "VERSION"
        ),
        _flag("--proxy-port-range", "portRange", text, "has none in kube-proxy either", "RANGE"),
        _flag("--ipvs-scheduler", "ipvs.scheduler", text, "there is no ipvs mode"),
        _flag("--ipvs-exclude-cidrs", "ipvs.excludeCIDRs", words, ""),
        _flag("--ipvs-strict-arp", "ipvs.strictARP", switch, ""),
        _flag("--ipvs-sync-period", "ipvs.syncPeriod", parse_duration, ""),
        _flag("--ipvs-min-sync-period", "ipvs.minSyncPeriod", parse_duration, ""),
        _flag("--ipvs-tcp-timeout", "ipvs.tcpTimeout", parse_duration, ""),
        _flag("--ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", parse_duration, ""),
        _flag("--ipvs-udp-timeout", "ipvs.udpTimeout", parse_duration, ""),
        _flag("--vmodule", "logging.vmodule", vmodule, "there are no such files", beats_file=True),
        _flag("--log-flush-frequency", "logging.flushFrequency", parse_duration, "never buffered", beats_file=True),
        _flag("--log-text-split-stream", "logging.options.text.splitStream", switch, "", beats_file=True),
        _flag("--log-text-info-buffer-size", "logging.options.text.infoBufferSize", quantity, "", beats_file=True),
        _flag("--log-json-split-stream", "logging.options.json.splitStream", switch, "", beats_file=True),
        _flag("--log-json-info-buffer-size", "logging.options.json.infoBufferSize", quantity, "", beats_file=True),
    ),
}
FLAGS = tuple(flag for group in GROUPS.values() for flag in group)

_OPTIONAL_VALUE = ("--version",)
_SWITCHES = {
    **{flag.name: flag.read is switch or flag.name in _OPTIONAL_VALUE for flag in FLAGS},
    **dict.fromkeys(LEFTOVER_SWITCHES, True),
    **dict.fromkeys(LEFTOVER_VALUES, False),
}
_LETTERS = {flag.letter: flag.name for flag in FLAGS if flag.letter}


def read_arguments(
    arguments: Sequence[str],
    more: Mapping[str, bool] = MappingProxyType({}),
    letters: Mapping[str, str] = MappingProxyType({}),
) -> CommandLine:
    """Takes the arguments of the command ``run`` apart, by the flags of the table and the leftovers. Raises nothing.

    ``more`` are flags of another command, which takes those of run as well, and ``letters`` theirs (see ``commandline``).
    """
    return commandline.read(arguments, {**_SWITCHES, **more}, {**_LETTERS, **letters})
