"""The way to the API server through a proxy: HTTPS_PROXY and its like, and ``proxy-url`` of a kubeconfig."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from proxyd.kube.client import ApiError, connect
from proxyd.kube.kubeconfig import ClientError
from tests.fakes.apiserver import ApiServer
from tests.kube.access import Clock, get, kubeconfig


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_of_the_environment(api: ApiServer, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """The stub is no proxy, and need not know what to do with the request that comes."""
    monkeypatch.setenv("HTTP_PROXY", scheme + api.url.removeprefix("http://"))
    with contextlib.suppress(ApiError):
        get(connect("", "http://192.0.2.1:1"))
    assert len(api.requests) == 1


def test_of_the_kubeconfig_without_a_scheme(api: ApiServer, tmp_path: Path) -> None:
    address = api.url.removeprefix("http://")
    with contextlib.suppress(ApiError):
        get(connect(kubeconfig(tmp_path / "config", "http://192.0.2.1:1", **{"proxy-url": address}), ""))
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://h:1080",
        "socks5h://u:s3cret@h:1080",
        "foo://bar",
        "http://h:port",
        "u:s3cret@h:port",
        "http://[",
        "http://",
        "http://:3128",
        "http://u:s3cret://w@h:port",
        "u:s3cret://w@h",
        "//u:s3cret@h",
    ],
)
def test_one_that_cannot_be_used_is_one_line(tmp_path: Path, proxy: object) -> None:
    config = kubeconfig(tmp_path / "config", "https://192.0.2.1", **{"proxy-url": proxy})
    with pytest.raises(ClientError, match="SOCKS is not supported") as caught:
        connect(config, "")
    assert "\n" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_one_of_the_environment_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "socks5://h:1080")
    with pytest.raises(ClientError, match="'socks5://h:1080'"):
        connect("", "https://192.0.2.1")
    monkeypatch.setenv("NO_PROXY", "192.0.2.1")
    assert connect("", "https://192.0.2.1").host == "https://192.0.2.1"


def test_a_reload_with_one_that_cannot_be_used_keeps_what_worked(api: ApiServer, tmp_path: Path) -> None:
    config, clock = tmp_path / "config", Clock()
    client = connect(kubeconfig(config, api.url, {"token": "one"}), "", clock=clock)
    kubeconfig(config, "http://192.0.2.1:1", {"token": "two"}, **{"proxy-url": "socks5://h:1080"})
    clock.now += 61
    get(client)
    assert api.requests[-1].headers["Authorization"] == "Bearer one"
    kubeconfig(config, api.url, {"token": "three"})
    clock.now += 61
    get(client)
    assert api.requests[-1].headers["Authorization"] == "Bearer three"
