"""``proxyd plan``: what this node would change with other objects, configuration, mode or proxy. Writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from proxyd import logs
from proxyd.asking import read_line
from proxyd.config import CommandLine, Config, ConfigError, differences, load
from proxyd.desired.host import local_addresses
from proxyd.desired.settings import NodePolicy, node_settings
from proxyd.errors import UserError
from proxyd.explain.answering import NoAnswerError
from proxyd.foreseeing import Recorders
from proxyd.ipt.ownership import NFT_TABLE
from proxyd.kernel import host
from proxyd.kernel.addresses import KernelHost
from proxyd.kernel.present import present, removal
from proxyd.kube.store import Store
from proxyd.model import Family, Finding, Node, NodeSettings, Reason
from proxyd.objects import Objects, manifests, of_running, overlaid
from proxyd.objects import given as given_objects
from proxyd.plan.answer import DIFFERS, NOTHING, FamilyPlan, How, Plan, Removal, Write
from proxyd.plan.served import Serving, difference
from proxyd.plan.text import plan_text
from proxyd.serve.ask import NotRunningError, ask, decoded
from proxyd.serve.objects import PATH, Running
from proxyd.startup import check_host, mismatches, policy_of
from proxyd.sync.facts import node_findings
from proxyd.sync.foresight import Foreseen, Wanted, change, start

OWN_FLAGS = {"--apply": False, "--rules": True}
_SOURCES = ("--manifests", "--kubeconfig", "--master")
HELP = """\
proxyd plan: what this node would change, as a summary of each Service and as exact rules. Nothing is written.

  proxyd plan --apply DIR                   if these manifests were applied to what the running proxyd serves
  proxyd plan --proxy-mode MODE             if proxyd were started anew in this mode
  proxyd plan --config FILE                 if it were started anew with this configuration; other flags of run likewise
  proxyd plan --manifests DIR|FILE          if these manifests were all there is
  proxyd plan --kubeconfig FILE             if proxyd were started here, and took over from kube-proxy

  --apply DIR               manifests that come on top of what is served; nothing goes
  --rules                   also the text that nft or iptables-restore would be given
  -o, --output text|json    for people or for programs

Flags of run count on top of those of the running proxyd, if one runs here.

Exit status: 0 nothing would change, 2 no question, 4 nobody can answer, 5 something would change.
"""


class Asked(NamedTuple):
    """The command line: how to answer, and the flags of run."""

    apply: str
    as_json: bool
    rules: bool
    line: CommandLine


class Question(NamedTuple):
    """What is to be planned: the configuration and objects that are wanted, and the proxyd that runs here, if any."""

    config: Config
    wanted: Store
    running: Running | None
    before: Store
    changed: tuple[str, ...]
    how: How
    notes: tuple[str, ...] = ()


def plan(arguments: Sequence[str]) -> int:
    """Plans; gives the exit status. Raises ``UserError``, ``CannotWorkHereError``."""
    if {"-h", "--help"} & set(arguments):
        sys.stdout.write(HELP)
        return NOTHING
    asked = read_plan(arguments)
    logs.configure("text", -1)
    told = make_plan(question(asked, _ask_running()), rules=asked.rules)
    if asked.as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n")
    else:
        sys.stdout.write(plan_text(told))
    return DIFFERS if told.differs else NOTHING


def read_plan(arguments: Sequence[str]) -> Asked:
    """Takes the arguments apart. Raises ``UserError``."""
    given = read_line(arguments, OWN_FLAGS)
    apply = given.own["--apply"]
    if apply and "--manifests" in given.line.given:
        raise UserError("--apply: goes on top of what is served, and --manifests is all there is: give one of them")
    return Asked(apply, given.as_json, given.switches["--rules"], given.line)


def _ask_running() -> Running | None:
    """What the proxyd of this network namespace has, None where none runs."""
    try:
        body = ask(PATH)
    except NotRunningError as error:
        if "no proxyd runs" in str(error):
            return None
        raise
    return decoded(body, Running)


def question(asked: Asked, running: Running | None) -> Question:
    """Puts flags, running proxyd and sources of objects together. Raises ``UserError``, ``CannotWorkHereError``."""
    mine = asked.line.given
    theirs = dict(running.given) if running is not None else {}
    if set(_SOURCES) & mine.keys():
        theirs = {flag: texts for flag, texts in theirs.items() if flag not in _SOURCES}
    config = load(CommandLine({**theirs, **mine}))
    check_host(config, host.supported_families())
    before = of_running(running) if running is not None else Store()
    wanted, notes = _objects(config, running, mine)
    if asked.apply:
        overlaid(wanted, manifests(asked.apply, policy_of(config).node_name))
    changed, how = _how(config, running)
    return Question(config, wanted, running, before, changed, how, notes)


def _objects(config: Config, running: Running | None, mine: dict[str, tuple[str, ...]]) -> Objects:
    """Objects of the source that was asked for, else those of the running proxyd."""
    if running is not None and not set(_SOURCES) & mine.keys():
        return Objects(of_running(running))
    if config.manifests is None and not (config.kubeconfig or config.master):
        raise NoAnswerError("no proxyd runs in this network namespace: say --manifests DIR or --kubeconfig FILE")
    found = given_objects(config, policy_of(config).node_name)
    if running is not None and found.store.node() is None:
        found.store.load_node(running.node)
    return found


def _how(config: Config, running: Running | None) -> tuple[tuple[str, ...], How]:
    """What of the running proxyd's configuration would differ, and whether it would have to start anew for it."""
    if running is None:
        return (), How.START
    try:
        known = load(CommandLine(running.given))
    except ConfigError:
        return ("the configuration file cannot be read any more",), How.START
    # Where objects come from is not what they are.
    same = msgspec.structs.replace(
        known, manifests=config.manifests, kubeconfig=config.kubeconfig, master=config.master
    )
    changed = tuple(each for each in differences(same, config) if each != "clientConnection.kubeconfig")
    return changed, How.START if changed or running.mode != config.mode else How.CHANGE


def make_plan(asked: Question, *, rules: bool) -> Plan:
    """Works everything out. Raises ``UserError``, ``CannotWorkHereError``."""
    config, running = asked.config, asked.running
    families, policy = host.supported_families(), policy_of(config)
    recorders = Recorders(config, policy, families)
    here = KernelHost().read()
    node = asked.wanted.node()
    plans, whose = [], "no rules for Services"
    findings: list[Finding] = list(_about_node(asked, policy, families, node))
    for family in families:
        settings = node_settings(family, policy, node, local_addresses(here))
        if asked.how is How.CHANGE and running is not None and running.node == node:
            settings = running.settings.get(family, settings)
        wanted = Wanted(asked.wanted, settings)
        before, from_where, foreseen = _foresee(asked, recorders, family, wanted)
        whose = from_where if before or running else whose
        plans.append(_family(family, before, foreseen, _settings(running, settings), rules=rules))
        findings += foreseen.findings
    stand = frozenset(running.findings) if running is not None else frozenset[Finding]()
    removals = tuple(each for each in map(removal, recorders.predecessors()) if each is not None)
    return Plan(
        mode=config.mode,
        how=asked.how,
        before=whose,
        families=tuple(plans),
        configuration=asked.changed,
        removals=removals,
        findings=tuple(sorted(set(findings), key=str)),
        solved=tuple(sorted((each for each in stand - set(findings) if _is_foreseeable(each)), key=str)),
        notes=(*asked.notes, *recorders.notes, *_notes(running, removals)),
    )


def _foresee(asked: Question, recorders: Recorders, family: Family, wanted: Wanted) -> tuple[Serving, str, Foreseen]:
    """What is served before, by whose account, and what would be written."""
    running = asked.running
    if running is None or family not in running.settings:
        found = present(family)
        return found.serving, found.whose, start(recorders.on_kernel(family), wanted)
    had = Wanted(asked.before, running.settings[family])
    whose = f"the running proxyd ({running.mode} mode)"
    if asked.how is How.CHANGE:
        before, foreseen = change(recorders.running(family), had, wanted)
        return before, whose, foreseen
    before = start(recorders.in_mode(running.mode, family), had).serving
    return before, whose, start(recorders.on_kernel(family), wanted)


def _family(
    family: Family, before: Serving, foreseen: Foreseen, settings: tuple[str, ...], *, rules: bool
) -> FamilyPlan:
    writes = [Write(each) for each in foreseen.writes] + [Write(each, tidies=True) for each in foreseen.tidying]
    return FamilyPlan(
        family=family,
        difference=difference(before, foreseen.serving),
        operations=foreseen.operations,
        calls=len(foreseen.writes),
        settings=settings,
        writes=tuple(writes) if rules else (),
    )


def _settings(running: Running | None, after: NodeSettings) -> tuple[str, ...]:
    """The settings of the node that differ, in the words of ``NodeSettings``."""
    before = running.settings.get(after.family) if running is not None else None
    if before is None:
        return ()
    was, now = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    return tuple(f"{name}: {_shown(was[name])} -> {_shown(now[name])}" for name in now if was[name] != now[name])


def _shown(value: object) -> str:
    match value:
        case None:
            return "not set"
        case tuple():
            return ",".join(map(str, value)) or "none"
        case msgspec.Struct():
            return ",".join(str(each) for each in msgspec.structs.astuple(value) if each)
    return str(value)


def _about_node(
    asked: Question, policy: NodePolicy, families: Sequence[Family], node: Node | None
) -> Iterator[Finding]:
    config, store = asked.config, asked.wanted
    yield from store.unreadable.values()
    expected = policy.node_name if config.manifests is None else ""
    yield from node_findings(store, policy, expected)
    for each in mismatches(config, policy, families, node):
        yield Finding("Node", policy.node_name, Reason.FAMILY_MISMATCH, each.message)


def _is_foreseeable(finding: Finding) -> bool:
    """Whether a finding is about what a plan can tell: not what only the kernel or a running process can say."""
    return finding.reason not in (Reason.KERNEL_REFUSED, Reason.CONFIGURATION_REFUSED, Reason.INTERNAL_ERROR)


def _notes(running: Running | None, removals: Sequence[Removal]) -> Iterator[str]:
    if running is None and any(NFT_TABLE in each.place.split() for each in removals):
        yield "rules of kube-proxy's nftables mode are not read: what it serves counts as added here"
    refused = {str(key) for keys in running.quarantined.values() for key in keys} if running is not None else ()
    if refused:
        yield f"the kernel refuses {', '.join(sorted(refused))} now; here that counts as if it were served"
