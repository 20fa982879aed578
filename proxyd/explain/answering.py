"""From the words of a question to its answer, over all families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from proxyd.errors import CannotWorkHereError, UserError
from proxyd.explain.answer import Answer, Verdict, together
from proxyd.explain.packet import explain_packet
from proxyd.explain.question import family_of, read_name, read_packet, read_source
from proxyd.explain.service import explain_service
from proxyd.explain.view import View
from proxyd.model import Family


class NoAnswerError(CannotWorkHereError):
    """The question is a good one, but nobody here can answer it."""


class Words(NamedTuple):
    """A question as it was put: a Service by name, or a source and a destination; "" for what was not said.

    ``verify``: the answer is to be compared with the kernel, so what to compare belongs to it ("yes").
    """

    name: str = ""
    source: str = ""
    to: str = ""
    interface: str = ""
    verify: str = ""

    def check(self) -> None:
        """Raises ``UserError`` where these words are no question."""
        if bool(self.name) == bool(self.to):
            raise UserError("say either a Service (NAMESPACE/NAME[:PORT]) or --from IP --to IP:PORT/PROTOCOL")
        if self.verify and not self.to:
            raise UserError("--verify goes with --from and --to")
        if self.to:
            read_packet(self.source, self.to)
        else:
            read_name(self.name)
            if self.source:
                read_source(self.source)


def answer(views: Mapping[Family, View], words: Words) -> Answer:
    """Answers a question from what is known of each family.

    Raises ``UserError`` where it is none (``NeedsInterfaceError`` where something is missing), ``NoAnswerError``.
    """
    words.check()
    if words.to:
        packet = read_packet(words.source, words.to, words.interface)
        family = family_of(packet.destination)
        if family not in views:
            raise NoAnswerError(f"nothing has been written for {family}")
        told = explain_packet(views[family], packet, verifiable=bool(words.verify))
        return Answer(told.verdict, told, notes=views[family].notes)
    named, source = read_name(words.name), read_source(words.source) if words.source else ""
    if not views:
        raise NoAnswerError("nothing has been written yet")
    services = [explain_service(view, named, source, words.interface) for view in views.values()]
    # A Service of one family has nothing to say about the other.
    services = [each for each in services if each.verdict is not Verdict.UNTOUCHED] or services[:1]
    notes = dict.fromkeys(note for each in services for note in views[each.family].notes)
    return Answer(together(each.verdict for each in services), None, tuple(services), tuple(notes))
