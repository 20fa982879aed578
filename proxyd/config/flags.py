"""Command-line flags, by kube-proxy's names. A flag is a row of the table: name, fields it sets, reader, help.

argparse only collects text: reading it is done with the rest, so that all problems of flags and file come together.
Source: cmd/kube-proxy/app/options.go, AddFlags.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from proxyd.config.parse import parse_duration, show
from proxyd.config.schema import Document, Problem, put

_GO_BOOL = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def _text(text: str) -> str:
    return text


def _text_or_default(text: str) -> str | None:
    return text or None


def _switch(text: str) -> bool:
    if text not in _GO_BOOL:
        raise ValueError(f"must be true or false, got {show(text)}")
    return _GO_BOOL[text]


def _int(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"must be a whole number, got {show(text)}") from None
    if not -(2**31) <= number < 2**31:
        raise ValueError("is a number too large for 32 bits")
    return number


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _gates(text: str) -> dict[str, bool]:
    gates = {}
    for part in _list(text):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"must be NAME=true or NAME=false, got {show(part)}")
        gates[name.strip()] = _switch(value.strip())
    return gates


class Flag(NamedTuple):
    """One flag that sets fields of the Document. ``beats_file``: it also counts beside --config.

    ``read`` gives the value or None for "as if not given", and raises ValueError with a message.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    read: Callable[[str], Any]
    help: str
    metavar: str = "TEXT"
    beats_file: bool = False

    @property
    def dest(self) -> str:
        """The attribute of the namespace."""
        return _dest(self.names[-1])


# kube-proxy's --iptables-* periods and --masquerade-all apply to nftables mode as well, so they set both blocks.
FLAGS = (
    Flag(("--proxy-mode",), ("mode",), _text, "nftables or iptables", "MODE"),
    Flag(("--kubeconfig",), ("clientConnection.kubeconfig",), _text, "how to reach the API server", "FILE"),
    Flag(
        ("--hostname-override",), ("hostnameOverride",), _text_or_default, "name of this node", "NAME", beats_file=True
    ),
    Flag(("--cluster-cidr",), ("clusterCIDR",), _text, "ranges of pod addresses, one a family", "CIDR[,CIDR]"),
    Flag(("--detect-local-mode",), ("detectLocalMode",), _text, "how pods of this node are told", "MODE"),
    Flag(("--pod-bridge-interface",), ("detectLocal.bridgeInterface",), _text, "for BridgeInterface", "NAME"),
    Flag(("--pod-interface-name-prefix",), ("detectLocal.interfaceNamePrefix",), _text, "for InterfaceNamePrefix"),
    Flag(("--nodeport-addresses",), ("nodePortAddresses",), _list, "CIDRs, primary, localhost or all", "LIST"),
    Flag(("--masquerade-all",), ("iptables.masqueradeAll", "nftables.masqueradeAll"), _switch, "SNAT to ClusterIPs"),
    Flag(("--bind-address",), ("bindAddress",), _text_or_default, "overrides the node's own address", "IP"),
    Flag(("--healthz-bind-address",), ("healthzBindAddress",), _text, "health server, empty disables", "IP:PORT"),
    Flag(("--metrics-bind-address",), ("metricsBindAddress",), _text, "metrics server, empty disables", "IP:PORT"),
    Flag(
        ("--iptables-sync-period",),
        ("iptables.syncPeriod", "nftables.syncPeriod"),
        parse_duration,
        "when to try again after a failure, in either mode",
        "DURATION",
    ),
    Flag(
        ("--iptables-min-sync-period",),
        ("iptables.minSyncPeriod", "nftables.minSyncPeriod"),
        parse_duration,
        "the longest that a change may wait for others, in either mode",
        "DURATION",
    ),
    Flag(("--config-sync-period",), ("configSyncPeriod",), parse_duration, "accepted, without effect", "DURATION"),
    Flag(("--feature-gates",), ("featureGates",), _gates, "proxyd knows ResetGoneTCP", "NAME=BOOL[,...]"),
    Flag(("-v", "--v"), ("logging.verbosity",), _int, "log verbosity", "LEVEL", beats_file=True),
    Flag(("--logging-format",), ("logging.format",), _text, "text or json", "FORMAT", beats_file=True),
)

_IGNORED_BESIDE_CONFIG = ("--master",)


class Options(NamedTuple):
    """Flags that are no field of the Document; "" where not given."""

    config: str = ""
    master: str = ""
    manifests: str = ""


class Applied(NamedTuple):
    """A Document with flags applied. ``origins`` tells which flag set a field path, so that problems can name it."""

    document: Document
    origins: dict[str, str]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds all flags. Their values stay text; a flag that is not given is None. The parser should not allow_abbrev."""
    parser.add_argument("--config", metavar="FILE", help="KubeProxyConfiguration; most flags are then ignored")
    parser.add_argument("--master", metavar="URL", help="address of the API server, before the kubeconfig's")
    parser.add_argument("--manifests", metavar="DIR", help="serve Services from YAML files instead of an API server")
    for flag in FLAGS:
        settings: dict[str, Any] = {"dest": flag.dest, "help": flag.help, "metavar": flag.metavar}
        if flag.read is _switch:
            settings |= {"nargs": "?", "const": "true", "metavar": "true|false"}
        elif flag.read is _list:
            settings |= {"action": "append"}
        parser.add_argument(*flag.names, **settings)


def options(namespace: argparse.Namespace) -> Options:
    """Gives the flags that are no field of the Document. --master does not count beside --config."""
    given = {name: getattr(namespace, name, None) or "" for name in Options._fields}
    return Options(**(given | ({"master": ""} if given["config"] else {})))


def apply_flags(document: Document, namespace: argparse.Namespace) -> Applied:
    """Sets the fields that flags give; beside --config only those of flags that beat the file.

    The ignored ones yield one warning. Flags that the namespace does not know count as not given.
    """
    has_file = bool(options(namespace).config)
    ignored = [name for name in _IGNORED_BESIDE_CONFIG if has_file and _given(namespace, _dest(name)) is not None]
    origins: dict[str, str] = {}
    problems: list[Problem] = []
    for flag in FLAGS:
        text = _given(namespace, flag.dest)
        if text is None:
            continue
        if has_file and not flag.beats_file:
            ignored.append(flag.names[-1])
            continue
        try:
            value = flag.read(text)
        except ValueError as error:
            problems.append(Problem(flag.names[-1], str(error)))
            continue
        for path in flag.paths if value is not None else ():
            document = put(document, path, value)
            origins[path] = flag.names[-1]
    warnings = (f"ignored because --config is given: {', '.join(ignored)}",) if ignored else ()
    return Applied(document, origins, tuple(problems), warnings)


def _dest(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _given(namespace: argparse.Namespace, dest: str) -> str | None:
    """A list flag that is given several times adds up, as in kube-proxy."""
    value = getattr(namespace, dest, None)
    return ",".join(value) if isinstance(value, list) else value
