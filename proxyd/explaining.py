"""``proxyd explain``: puts a question to the running proxyd, or answers it from manifests or from an API server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from proxyd import logs
from proxyd.asking import read_line
from proxyd.config import CommandLine, Config, load
from proxyd.config.host_settings import localhost_settings
from proxyd.desired.host import local_addresses
from proxyd.desired.settings import node_settings
from proxyd.errors import UserError
from proxyd.explain.answer import DIFFERS, STATUS, Answer, Explanation
from proxyd.explain.answering import NoAnswerError, Words, answer
from proxyd.explain.text import answer_text
from proxyd.explain.view import Index, View
from proxyd.kernel import host
from proxyd.kernel.addresses import KernelHost
from proxyd.kernel.ipt.iptables import IptablesTools
from proxyd.kernel.verifying import CannotVerifyError, IptReader, NftReader, Reader, verify
from proxyd.model import Family, HostState, Node
from proxyd.modes import backend_choice
from proxyd.objects import given
from proxyd.serve.ask import ask, decoded
from proxyd.serve.explaining import answer_json, path_of
from proxyd.startup import policy_of

OWN_FLAGS = {"--from": False, "--to": False, "--interface": False, "--verify": True}
# Flags of run that say what to answer from.
SOURCES = ("--manifests", "--kubeconfig", "--master")
HELP = """\
proxyd explain: what becomes of a connection to a Service, and why.

  proxyd explain --from IP --to IP:PORT/PROTOCOL   the first packet of this connection
  proxyd explain NAMESPACE/NAME[:PORT]             everything about a Service; with --from, its packets too

  --from IP                 who connects
  --to IP:PORT/PROTOCOL     where to; tcp if no protocol is given; IPv6 as [fd00::1]:53/udp
  --interface NAME          by which interface it comes in, where that tells pods of this node (detectLocalMode)
  --verify                  compare the answer with the kernel's rules, and say whose the tracked connections are
  -o, --output text|json    for people or for programs
  --manifests DIR|FILE      answer from these files (a folder, or what kubectl get services,endpointslices,nodes -A -o yaml
                            or json wrote) instead of asking the running proxyd; takes the flags of run beside it
  --kubeconfig FILE         answer from what the API server has now; likewise. --master URL names another server

Exit status: 0 delivered, 1 refused, dropped or not served, 2 no question, 3 no Service names it, 4 nobody can answer,
5 the kernel's rules are not what they should be.
"""


class Asked(NamedTuple):
    """The command line: the question, how to answer it, and the flags of run (None: ask the running proxyd)."""

    words: Words
    as_json: bool
    line: CommandLine | None


def explain(arguments: Sequence[str]) -> int:
    """Answers a question; gives the exit status. Raises ``UserError``, ``CannotWorkHereError``."""
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(HELP)
        return 0
    asked = read_question(arguments)
    if asked.line is None:
        told = decoded(ask(path_of(asked.words)), Answer)
    else:
        config = load(asked.line)
        logs.configure(config.logging_format, -1)
        told = answer(_views(config), asked.words)
    if asked.words.verify:
        told = _verified(told)
    sys.stdout.write(answer_json(told).decode() if asked.as_json else answer_text(told))
    differs = told.packet is not None and told.packet.verified is not None and told.packet.verified.differences
    return DIFFERS if differs else STATUS[told.verdict]


def _verified(told: Answer) -> Answer:
    """The answer with what the kernel says to it, in place of what it was compared with. Raises ``NoAnswerError``."""
    packet = told.packet
    if packet is None or packet.written is None:
        raise NoAnswerError("the running proxyd is of another version, and does not say what to compare")
    try:
        found = verify(packet, packet.written, _reader(packet))
    except CannotVerifyError as error:
        raise NoAnswerError(str(error)) from error
    return replace(told, packet=replace(packet, verified=found, written=None))


def _reader(packet: Explanation) -> Reader:
    if packet.mode != "iptables":
        return NftReader(packet.family)
    return IptReader(IptablesTools(packet.family, backend_choice(host.supported_families()).backend), packet.family)


def read_question(arguments: Sequence[str]) -> Asked:
    """Takes the arguments apart. Raises ``UserError``."""
    given = read_line(arguments, OWN_FLAGS, named=True)
    own, line = given.own, given.line
    sources = [each for each in SOURCES if each in line.given]
    if line.given and not sources:
        raise UserError(
            f"{next(iter(line.given))}: goes with {', '.join(SOURCES)} only; the running proxyd has flags of its own"
        )
    if "--manifests" in sources and len(sources) > 1:
        raise UserError(f"--manifests and {sources[1]}: say one of them")
    verify = "yes" if given.switches["--verify"] else ""
    words = Words(given.name, own["--from"], own["--to"], own["--interface"], verify)
    words.check()
    return Asked(words, given.as_json, line if line.given else None)


def _views(config: Config) -> dict[Family, View]:
    """What a proxyd with this configuration would have here."""
    policy = policy_of(config)
    store, about = given(config, policy.node_name)
    node, here = store.node(), KernelHost().read()
    services, found = Index(store.all_services()), {}
    for family in host.supported_families():
        settings = node_settings(family, policy, node, local_addresses(here))
        addresses, notes = _addresses(family, node, here)
        if node is None:
            notes = (*notes, f"there is no Node {policy.node_name} in there (--hostname-override names another)")
        found[family] = View(
            config.mode,
            settings,
            services,
            store.service,
            addresses,
            tuple(store.unreadable.values()),
            localhost=bool(localhost_settings(config, config.localhost_node_ports)),
            notes=(*notes, *about),
        )
    return found


def _addresses(family: Family, node: Node | None, here: HostState) -> tuple[frozenset[str], tuple[str, ...]]:
    """The addresses of the node: this host's, unless the manifests are those of another one."""
    own = frozenset(each.address for each in here.addresses if each.family is family and each.usable)
    listed = frozenset(each for each in (node.addresses if node else ()) if (":" in each) == (family is Family.IPV6))
    if node is None or not listed or listed & own:
        return own, ()
    return listed, (f"this host is not node {node.name}: only the addresses in its Node object are taken for its own",)
