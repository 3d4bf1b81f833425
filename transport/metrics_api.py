"""`GET /metrics`, for Prometheus."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from transport.host import StreamHost
from transport.metrics import CONTENT_TYPE, Metrics
from transport.sessions import Sessions


class Scrape:
    """Brings up to date what is not told as it happens."""

    def __init__(self, metrics: Metrics, host: StreamHost, sessions: Sessions) -> None:
        self._metrics = metrics
        self._host = host
        self._sessions = sessions
        self._restarts = 0

    def refresh(self) -> None:
        """Ask the engine and count the viewers."""
        stats, engine = self._host.stats(), self._metrics.engine
        engine.kv_pages_free.set(stats.pages_free)
        used = 1 - stats.pages_free / stats.pages if stats.pages else 0.0  # there is no engine
        engine.kv_cache_usage_ratio.set(used)
        engine.worker_restarts_total.inc(stats.restarts - self._restarts)
        self._restarts = stats.restarts
        self._metrics.sessions.sessions_running.set(stats.sessions_running)
        self._metrics.sessions.sessions_waiting.set(stats.queue_length)
        self._count_viewers()

    def _count_viewers(self) -> None:
        watching: Counter[str | None] = Counter()
        for broadcast in self._sessions:
            for viewer in broadcast.viewers:
                broadcast.meter.count(viewer)
                watching[viewer.transport] += viewer.format != "none"
        for transport, gauge in self._metrics.viewers.viewers.items():
            gauge.set(watching[transport])


def metrics_router(metrics: Metrics, scrape: Scrape) -> APIRouter:
    """Return the route."""
    router = APIRouter(tags=["monitoring"])

    async def read_metrics() -> Response:
        """Return the metrics in the text format of Prometheus."""
        scrape.refresh()
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    router.add_api_route("/metrics", read_metrics, response_class=Response, responses=text)
    router.add_api_route("/metrics", read_metrics, methods=["HEAD"], include_in_schema=False)
    return router
