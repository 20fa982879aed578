"""What is answered where: the routes of the metrics address and of the health address."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from proxyd.serve import health, readiness
from proxyd.serve.collectors import WatchState
from proxyd.serve.http import Handler, Request, Response, Routes
from proxyd.serve.metrics import CONTENT_TYPE, Metrics
from proxyd.serve.report import PATH, Report
from proxyd.sync.status import Status


def metrics_routes(metrics: Metrics, mode: str, config: Mapping[str, Any]) -> Routes:
    """Routes of ``metricsBindAddress``. ``config`` is the KubeProxyConfiguration in force, in its v1alpha1 form.

    Its /healthz only says that the process answers, as in kube-proxy.
    """
    configz = json.dumps({"kubeproxy.config.k8s.io": config}).encode()

    def scrape(_request: Request) -> Response:
        return Response(content_type=CONTENT_TYPE, body=metrics.render())

    def ok(_request: Request) -> Response:
        return Response(body=b"ok")

    def proxy_mode(_request: Request) -> Response:
        return Response(body=mode.encode())

    def configuration(_request: Request) -> Response:
        return Response(content_type="application/json", body=configz)

    return {"/metrics": scrape, "/healthz": ok, "/proxyMode": proxy_mode, "/configz": configuration}


def local_routes(build: Callable[[health.Moment], Report], answers: Mapping[str, Handler]) -> Routes:
    """Routes of the local socket: what ``proxyd`` commands ask the running one."""

    def report(_request: Request) -> Response:
        body = msgspec.json.format(msgspec.json.encode(build(health.Moment.now())), indent=2)
        return Response(content_type="application/json", body=body + b"\n")

    return {PATH: report, **answers}


def health_routes(
    metrics: Metrics,
    status: Callable[[], Status],
    waiting_since: Callable[[], float | None],
    sync_period: float,
    watches: Callable[[], Mapping[str, WatchState]],
) -> Routes:
    """Routes of ``healthzBindAddress``.

    ``waiting_since`` gives the monotonic time of the oldest change that could be written and has not been taken
    (None while the store is not complete yet: the API server being away is no reason to be restarted).
    """

    def readyz(now_status: Status, now: health.Moment, period: float, waiting: float | None) -> Response:
        return readiness.readyz(now_status, watches(), now, period, waiting)

    return {
        "/readyz": health.handler(readyz, status, waiting_since, sync_period),
        "/healthz": health.handler(health.healthz, status, waiting_since, sync_period, metrics.probes.healthz),
        "/livez": health.handler(health.livez, status, waiting_since, sync_period, metrics.probes.livez),
    }
