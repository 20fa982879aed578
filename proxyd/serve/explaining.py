"""``proxyd explain`` at a running proxyd: views of what it has, and the answer to a question over the local socket.

On the thread that serves, from objects that never change. One question looks at all Services once, and works out the few
that it is about.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

import msgspec

from proxyd.errors import UserError
from proxyd.explain.answer import Answer
from proxyd.explain.answering import NoAnswerError, Words, answer
from proxyd.explain.view import Index, View
from proxyd.kube.store import Store
from proxyd.model import Family
from proxyd.serve.http import Request, Response
from proxyd.sync.status import FamilyStatus, Status

PATH = "/explain"


def path_of(words: Words) -> str:
    """The path and query that put a question."""
    return f"{PATH}?{urlencode({name: word for name, word in words._asdict().items() if word})}"


def answer_json(told: Answer) -> bytes:
    """An answer for programs; ends with a newline."""
    return msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n"


class Explainer:
    """Answers questions from what the running proxyd has."""

    def __init__(
        self,
        store: Store,
        status: Callable[[], Status],
        addresses: Callable[[Family], frozenset[str]],
        *,
        localhost: bool = False,
    ) -> None:
        """``addresses`` gives the host's; ``localhost`` as for ``View``."""
        self._store, self._status, self._addresses, self._localhost = store, status, addresses, localhost

    def __call__(self, request: Request) -> Response:
        """Answers ``path_of``: 400 where it is no question, 503 where there is nothing yet to answer from."""
        given = dict(parse_qsl(request.query))
        words = Words(**{name: given.get(name, "") for name in Words._fields})
        try:
            told = self.answer(words)
        except UserError as error:
            return Response(400, body=str(error).encode())
        except NoAnswerError as error:
            return Response(503, body=str(error).encode())
        return Response(content_type="application/json", body=answer_json(told))

    def answer(self, words: Words) -> Answer:
        """Raises ``UserError``, ``NoAnswerError``."""
        status, services = self._status(), Index(self._store.all_services())
        # What a Service and its slices are does not change while a question is answered.
        lookup = functools.cache(self._store.service)
        views = {
            each.family: View(
                mode=status.mode,
                settings=each.settings,
                services=services,
                lookup=lookup,
                addresses=self._addresses(each.family),
                findings=status.findings,
                quarantined=each.quarantined,
                localhost=self._localhost,
                notes=tuple(self._owed(each)),
            )
            for each in status.families
            if each.settings is not None
        }
        return answer(views, words)

    def _owed(self, family: FamilyStatus) -> list[str]:
        """What of the answer may not be in the kernel yet."""
        _, pending = self._store.pending()
        waits = [since for since in (family.owed_since, pending) if since is not None]
        if not waits:
            return []
        return [
            f"changes wait to be written since {max(0.0, time.monotonic() - min(waits)):.1f} s: the kernel may differ"
        ]
