"""What the client writes: Events; and that every request is told with what became of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from proxyd.kube import events
from proxyd.kube.client import ApiError, TransportError, connect
from tests.fakes import apiserver as fake
from tests.fakes.apiserver import ApiServer
from tests.kube.access import get, kubeconfig


class Asked:
    """A RequestObserver that keeps what it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []
        self.seconds: list[float] = []

    def answered(self, method: str, host: str, status: int, seconds: float) -> None:
        self.requests.append((method, host, status))
        self.seconds.append(seconds)


class TestWriting:
    EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"
    EVENT = events.event(events.starting("n1", "it starts", "now"), "n1", "n1", 0.0)

    def test_an_object_is_created_and_changed_on_one_connection(self, api: ApiServer, tmp_path: Path) -> None:
        api.token = "s3cret"
        client = connect(kubeconfig(tmp_path / "config", api.url, {"token": "s3cret"}), "")
        client.post(self.EVENTS, self.EVENT)
        [path] = api.events.events
        client.patch(path, events.series(2, 1.0))
        post, patch = api.requests
        assert (post.kind, post.headers["Content-Type"]) == ("post", "application/json")
        assert (patch.kind, patch.headers["Content-Type"]) == ("patch", "application/merge-patch+json")
        assert post.headers["User-Agent"].startswith("proxyd/")
        assert api.events.events[path]["series"]["count"] == 2
        assert len(api.connections) == 1

    @pytest.mark.parametrize("code", [403, 409, 422, 503])
    def test_what_the_server_refuses_is_an_error_and_is_not_tried_again(self, api: ApiServer, code: int) -> None:
        api.fail(fake.status(code, "Because", retry_after=7))
        with pytest.raises(ApiError) as caught:
            connect("", api.url).post(self.EVENTS, self.EVENT)
        assert (caught.value.status, caught.value.reason, caught.value.retry_after) == (code, "Because", 7)
        assert api.count() == 1

    def test_no_answer_is_an_error(self, api: ApiServer) -> None:
        api.fail(fake.Exchange.cut)
        with pytest.raises(TransportError):
            connect("", api.url).patch(f"{self.EVENTS}/e", b"{}")
        assert api.count() == 1

    def test_every_request_is_counted_with_what_became_of_it(self, api: ApiServer) -> None:
        asked = Asked()
        client = connect("", api.url, observer=asked)
        get(client)
        client.post(self.EVENTS, self.EVENT)
        with pytest.raises(ApiError):
            client.post(self.EVENTS, self.EVENT)
        api.fail(fake.Exchange.cut)
        with pytest.raises(TransportError):
            get(client)
        host = api.url.removeprefix("http://")
        assert asked.requests == [("GET", host, 200), ("POST", host, 201), ("POST", host, 409), ("GET", host, 0)]
        assert all(seconds > 0 for seconds in asked.seconds)
