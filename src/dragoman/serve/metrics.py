"""GET /metrics, for Prometheus: requests, batches, what waits."""

from __future__ import annotations

import time
from functools import partial

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serve.doors import Served


def add_metrics(app: FastAPI, served: list[Served]) -> None:
    registry = CollectorRegistry()
    requests = Counter("dragoman_requests", "Requests.", ["route", "status"], registry=registry)
    seconds = Histogram(
        "dragoman_request_seconds", "From the request to its answer.", ["route"], registry=registry,
        buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    )  # fmt: skip
    texts = Histogram(
        "dragoman_batch_texts", "Texts translated together.", ["model"], registry=registry,
        buckets=[2**n for n in range(9)],
    )  # fmt: skip
    failed = Counter("dragoman_failed_texts", "Texts that could not be translated.", ["model"], registry=registry)
    waiting = Gauge(
        "dragoman_waiting_characters", "Characters that wait to be translated.", ["model"], registry=registry
    )

    def tell(model: str, count: int, failures: int) -> None:
        texts.labels(model).observe(count)
        failed.labels(model).inc(failures)

    for each in served:
        failed.labels(each.name)
        each.batcher.told = partial(tell, each.name)
        waiting.labels(each.name).set_function(lambda batcher=each.batcher: batcher.waiting_characters)  # type: ignore[misc]

    app.add_middleware(Measured, requests=requests, seconds=seconds)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class Measured:
    """Counts requests, by route and status. Plain ASGI: Starlette's own middleware makes a task for every request."""

    def __init__(self, app: ASGIApp, requests: Counter, seconds: Histogram):
        self.app, self.requests, self.seconds = app, requests, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.perf_counter(), 500  # unless it is answered

        async def noted(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "other")  # never the raw path: anybody can invent one
            self.requests.labels(route, str(status)).inc()
            self.seconds.labels(route).observe(time.perf_counter() - start)
