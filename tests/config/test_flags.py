"""Flags: what each of them sets, how their problems are named, and which of them count beside a file."""

import msgspec
import pytest

from proxyd.config import Config, Document, Parsed
from proxyd.model import Family
from tests.config.support import by_file, by_flags
from tests.config.support import refused as refused_of


def default(**changes: object) -> Config:
    """The configuration without flags, with some fields changed (test_effective.py spells it out)."""
    return msgspec.structs.replace(by_flags(), **changes)


def refused(*argv: str) -> tuple[str, ...]:
    return refused_of(Parsed(Document()), *argv)


def test_problems_of_flags_name_the_flag() -> None:
    assert refused(
        "--proxy-mode=ipvs",
        "--hostname-override= ",
        "--cluster-cidr=x",
        "--nodeport-addresses=all,x",
        "--masquerade-all=maybe",
        "--bind-address=x",
        "--healthz-bind-address=x",
        "--metrics-bind-address=x",
        "--iptables-sync-period=1",
        "--iptables-min-sync-period=31s",
        "--config-sync-period=0s",
        "-v=-1",
    ) == (
        '--masquerade-all: must be true or false, got "maybe"',
        '--iptables-sync-period: must be a duration such as "30s" or "1h30m", got "1"',
        "--proxy-mode: ipvs is not supported by proxyd; use nftables or iptables",
        "--iptables-min-sync-period: must be <= syncPeriod (30s), got 31s",
        "--config-sync-period: must be > 0, got 0s",
        "--v: must be >= 0, got -1",
        "--hostname-override: must not be blank",
        '--bind-address: must be an IP address, got "x"',
        '--healthz-bind-address: must be IP:port with a port of 1..65535, or an IP, got "x"',
        '--metrics-bind-address: must be IP:port with a port of 1..65535, or an IP, got "x"',
        '--nodeport-addresses[1]: "x" is not a CIDR such as 10.0.0.0/8, nor primary, localhost or all',
        '--cluster-cidr: "x" is not a CIDR such as 10.244.0.0/16',
    )
    assert refused("-v=2147483648", "--detect-local-mode=BridgeInterface") == (
        "--v: is a number too large for 32 bits",
        "detectLocal.bridgeInterface: must be set for detectLocalMode BridgeInterface",
    )


def test_all_flags() -> None:
    assert by_flags(
        "--proxy-mode=iptables",
        "--kubeconfig",
        "/k",
        "--master=https://192.0.2.9:6443",
        "--manifests=/m",
        "--hostname-override= Node-B ",
        "--cluster-cidr=10.0.0.0/8,fd00::/48",
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-bridge-interface=br0",
        "--pod-interface-name-prefix=veth",
        "--nodeport-addresses=10.1.0.0/16, localhost",
        "--nodeport-addresses=fd00::/48",
        "--masquerade-all",
        "--bind-address=192.0.2.1",
        "--healthz-bind-address=192.0.2.1",
        "--metrics-bind-address=[::1]:5",
        "--iptables-sync-period=1h30m",
        "--iptables-min-sync-period=0",
        "--config-sync-period=1m",
        "--v=4",
        "--logging-format=json",
    ) == default(
        mode="iptables",
        kubeconfig="/k",
        master="https://192.0.2.9:6443",
        manifests="/m",
        hostname_override="node-b",
        cluster_cidrs={Family.IPV4: "10.0.0.0/8", Family.IPV6: "fd00::/48"},
        detect_local_mode="InterfaceNamePrefix",
        bridge_interface="br0",
        interface_name_prefix="veth",
        node_port_addresses=("10.1.0.0/16", "localhost", "fd00::/48"),
        masquerade_all=True,
        bind_address="192.0.2.1",
        healthz_address=("192.0.2.1", 10256),
        metrics_address=("::1", 5),
        sync_period=5400.0,
        min_sync_period=0.0,
        verbosity=4,
        logging_format="json",
        unused=("--config-sync-period",),
    )


def test_the_iptables_flags_are_for_nftables_mode_too() -> None:
    argv = ("--iptables-sync-period=10s", "--iptables-min-sync-period=2s", "--masquerade-all")
    expected = default(sync_period=10.0, min_sync_period=2.0, masquerade_all=True)
    assert by_flags(*argv) == by_flags("--proxy-mode=nftables", *argv) == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--masquerade-all"], True),
        (["--masquerade-all=true"], True),
        (["--masquerade-all=T"], True),
        (["--masquerade-all=1"], True),
        (["--masquerade-all=false"], False),
        (["--masquerade-all", "--masquerade-all=False"], False),
        (["--masquerade-all", "-v", "2"], True),
    ],
)
def test_switches(argv: list[str], expected: bool) -> None:
    assert by_flags(*argv).masquerade_all is expected


@pytest.mark.parametrize("argv", [["-v", "3"], ["-v=3"], ["-v3"], ["--v", "3"], ["--v=3"]])
def test_verbosity(argv: list[str]) -> None:
    assert by_flags(*argv).verbosity == 3


def test_empty_flags() -> None:
    argv = [
        f"--{name}="
        for name in ("proxy-mode", "kubeconfig", "master", "manifests", "hostname-override", "cluster-cidr")
    ]
    argv += [f"--{name}=" for name in ("detect-local-mode", "nodeport-addresses", "bind-address", "logging-format")]
    assert by_flags(*argv) == default()


def test_an_empty_address_disables_by_flag_only() -> None:
    config = by_flags("--healthz-bind-address=", "--metrics-bind-address=")
    assert (config.healthz_address, config.metrics_address) == (None, None)
    assert by_file('healthzBindAddress: ""\nmetricsBindAddress: ""') == default()


def test_the_file_beats_most_flags() -> None:
    body = "mode: nftables\nhostnameOverride: of-the-file\nlogging: {format: text, verbosity: 1}\n"
    argv = (
        "--proxy-mode=bad",
        "--master=x",
        "--masquerade-all",
        "--iptables-sync-period=bad",
        "--nodeport-addresses=all",
    )
    assert by_file(body, *argv) == default(
        hostname_override="of-the-file",
        logging_format="text",
        verbosity=1,
        warnings=(
            "ignored because --config is given: --master, --proxy-mode, --nodeport-addresses, --masquerade-all,"
            " --iptables-sync-period",
        ),
    )
    assert by_file(body, "--hostname-override=Flag", "-v=5", "--logging-format=json", "--manifests=/m") == default(
        hostname_override="flag", logging_format="json", verbosity=5, manifests="/m"
    )
    assert by_file(body, "--hostname-override=").hostname_override == "of-the-file"
