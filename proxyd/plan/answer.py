"""What would change, as data: for people (``plan.text``) and for programs (JSON, fields in camel case)."""

from __future__ import annotations

from enum import StrEnum

from proxyd.model import CamelStruct, Family, Finding
from proxyd.plan.served import Difference

# Exit statuses of ``proxyd plan``, beside those that all commands have.
NOTHING, DIFFERS = 0, 5


class How(StrEnum):
    """How the rules come about."""

    CHANGE = "change"
    """The running proxyd writes what differs."""
    START = "start"
    """A proxyd that starts writes everything."""


class Write(CamelStruct, frozen=True):
    """One call: input of nft or iptables-restore. ``tidies``: it only deletes what nothing uses by then."""

    text: str
    tidies: bool = False


class FamilyPlan(CamelStruct, frozen=True):
    """What would change in one family. ``operations`` counts what is written, in ``calls``; ``settings`` of the node that
    differ are lines for people. ``writes`` is empty unless asked for.
    """

    family: Family
    difference: Difference
    operations: int
    calls: int
    settings: tuple[str, ...] = ()
    writes: tuple[Write, ...] = ()


class Removal(CamelStruct, frozen=True):
    """Rules of somebody else, or of our other mode, that go once ours are in. ``kept`` are chains that others use."""

    place: str
    whose: str
    chains: int
    jumps: int
    kept: tuple[str, ...] = ()


class Plan(CamelStruct, frozen=True):
    """All that would change on this node. ``before`` says what it was compared with; ``configuration`` are the field
    paths that the running proxyd has otherwise; ``findings`` those that there would be, ``solved`` those that would go.
    """

    mode: str
    how: How
    before: str
    families: tuple[FamilyPlan, ...]
    configuration: tuple[str, ...] = ()
    removals: tuple[Removal, ...] = ()
    findings: tuple[Finding, ...] = ()
    solved: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether anything would be another than it is; that rules are written anew as they are does not count.

        In iptables mode whatever is written differs from what is there.
        """
        in_place = self.how is How.CHANGE or self.mode == "iptables"
        return bool(
            self.removals
            or self.configuration
            or any(
                each.difference.services or each.settings or (in_place and each.operations) for each in self.families
            )
        )
