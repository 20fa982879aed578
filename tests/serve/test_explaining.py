"""What a running proxyd answers from: its store, and the status of the last pass."""

from __future__ import annotations

import msgspec
import pytest

from proxyd.errors import UserError
from proxyd.explain.answer import Answer, Verdict
from proxyd.explain.answering import Words
from proxyd.kube.store import Store
from proxyd.model import Family, Finding, Reason
from proxyd.serve.explaining import PATH, Explainer, path_of
from proxyd.serve.http import Request, Response
from proxyd.sync.status import FamilyStatus, Status
from tests import build

WEB = (build.service(), build.endpoint_slice("web", "10.244.1.2"))
TO_WEB = Words(source="10.244.1.9", to="10.96.0.1:80/tcp")


def written(mode: str = "nftables", **fields: object) -> Status:
    """A status in which IPv4 has been written, and IPv6 has not."""
    v4 = FamilyStatus(Family.IPV4, settings=build.settings(), **fields)  # type: ignore[arg-type]
    return Status(mode, (v4, FamilyStatus(Family.IPV6)))


def served(*objects: object) -> Store:
    """A store whose changes have been taken."""
    store = build.store(*objects)  # type: ignore[arg-type]
    store.take()
    return store


def respond(explainer: Explainer, words: Words) -> Response:
    path, _, query = path_of(words).partition("?")
    assert path == PATH
    return explainer(Request("GET", path, query))


def explainer(store: Store, status: Status) -> Explainer:
    return Explainer(store, lambda: status, lambda family: frozenset({build.NODE_IP[family]}))


def test_a_question_is_put_as_a_path_and_answered_as_json() -> None:
    response = respond(explainer(served(*WEB), written()), TO_WEB)
    assert (response.status, response.content_type) == (200, "application/json")
    told = msgspec.json.decode(response.body, type=Answer)
    assert told.packet is not None
    assert (told.verdict, told.packet.asked.source, told.notes) == (Verdict.DELIVERED, "10.244.1.9", ())


def test_words_that_are_no_question_are_told_as_such() -> None:
    response = respond(explainer(served(*WEB), written()), Words(source="10.244.1.9", to="nowhere"))
    assert (response.status, response.body) == (
        400,
        b"--to: must be like 10.96.0.1:80/tcp or [fd00::1]:53/udp, got 'nowhere'",
    )
    with pytest.raises(UserError):
        explainer(served(), written()).answer(Words())


def test_before_a_family_has_been_written_nobody_can_answer() -> None:
    response = respond(explainer(served(*WEB), written()), Words(source="fd00::9", to="[fd00::1]:80"))
    assert (response.status, response.body) == (503, b"nothing has been written for IPv6")
    nothing = Status("nftables", (FamilyStatus(Family.IPV4), FamilyStatus(Family.IPV6)))
    assert respond(explainer(served(*WEB), nothing), Words("default/web")).status == 503


def test_what_waits_to_be_written_is_said() -> None:
    def notes(explainer: Explainer) -> tuple[str, ...]:
        return explainer.answer(TO_WEB).notes

    store = served(*WEB)
    assert notes(explainer(store, written())) == ()
    assert "changes wait to be written" in notes(explainer(store, written(owed_since=1.0)))[0]
    store.services.put(build.decoded(build.service("other", ip="10.96.0.2")))
    assert "changes wait to be written" in notes(explainer(store, written()))[0]


def test_what_the_kernel_refused_in_this_family_is_not_served() -> None:
    status = written(quarantined=(build.key(),))
    refused = Finding("Service", "default/web", Reason.KERNEL_REFUSED, "no room")
    told = explainer(served(*WEB), msgspec.structs.replace(status, findings=(refused,))).answer(TO_WEB)
    assert told.packet is not None
    assert (told.verdict, "no room" in told.packet.reason) == (Verdict.UNSERVED, True)


def test_the_mode_is_that_of_the_rules() -> None:
    other_port = Words(source="10.244.1.9", to="10.96.0.1:81")
    verdicts = {
        mode: explainer(served(*WEB), written(mode)).answer(other_port).verdict for mode in ("nftables", "iptables")
    }
    assert verdicts == {"nftables": Verdict.REJECTED, "iptables": Verdict.UNSERVED}
