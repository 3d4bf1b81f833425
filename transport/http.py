"""The application: the page, health, models, sessions over HTTP, and the realtime sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, WebSocket
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from transport.goodbye import Goodbye
from transport.host import HostStats, ModelInfo, StreamHost
from transport.loop_lag import watch_loop
from transport.media_api import media_router
from transport.metrics import Metrics
from transport.metrics_api import Scrape, metrics_router
from transport.options import TransportOptions
from transport.problems import add_handlers, problem
from transport.recordings import Recordings
from transport.rtc_peers import Peers
from transport.schema import realtime_schema
from transport.sessions import PATH as SESSIONS
from transport.sessions import Sessions
from transport.sessions_api import sessions_router
from transport.travel_api import travel_router
from transport.websocket import RealtimeSocket
from transport.whep_api import whep_router

# Doors of the interface that this server does not have yet.
LATER: Final = (
    "/v1/videos",
    "/v1/videos/{rest:path}",
)
BUSY_AFTER_S: Final = 2.0  # without an answer of the engine
LATER_SOCKET: Final = "/v1/realtime_video/generate"
ALL_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def create_app(
    host: StreamHost, options: TransportOptions, metrics: Metrics | None = None
) -> FastAPI:
    """Return the application that serves `host`; it counts in `metrics`, or in metrics of its own.

    Raises OSError when nothing can be recorded to the directory that the options name, and
    ValueError when they name no proper ICE servers, address or ports.
    """
    directory = options.record_dir
    recordings = None if directory is None else Recordings(directory, options.record_max_bytes)
    metrics = metrics or Metrics(host.stats().models[0].id)
    sessions, peers = Sessions(host, options, metrics, recordings), Peers(options, metrics)

    lag = metrics.viewers.event_loop_lag_seconds

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(watch_loop(lag.observe))
        yield
        watching.cancel()
        await peers.close()
        await sessions.close()

    app = FastAPI(
        title="streamgen",
        version=options.version,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy the server cannot tell where to
        lifespan=lifespan,
    )
    app.state.sessions = sessions  # for whoever runs the server, to say goodbye and to measure
    app.state.goodbye = goodbye = Goodbye()
    app.add_middleware(goodbye.around)
    app.add_middleware(PathPrefix, root_path=options.root_path)
    add_handlers(app)
    _add_facts(app, host, options)
    for path in LATER:
        app.add_api_route(path, _unsupported, methods=ALL_METHODS, include_in_schema=False)
    app.include_router(metrics_router(metrics, Scrape(metrics, host, sessions)))
    app.include_router(travel_router(sessions, options))
    app.include_router(sessions_router(sessions))
    app.include_router(media_router(sessions, options, recordings))
    app.include_router(whep_router(sessions, peers))
    _add_sockets(app, sessions, options)
    app.router.default = WebFiles(directory=options.web_root, html=True)
    return app


class PathPrefix:
    """Says under which prefix the application is reached, whether the proxy strips it or not.

    The server's own root path would be put before a path that has it already.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on with the prefix."""
        await self._app({**scope, "root_path": self._root_path}, receive, send)


class WebFiles(StaticFiles):
    """The page's files, for whatever no route names."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a file; a socket is refused, and what is no file is not found."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
        elif scope["type"] == "http":
            if scope["method"] not in ("GET", "HEAD"):
                raise HTTPException(404, "there is nothing here")
            await super().__call__(scope, receive, send)

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Have browsers ask whether a file changed."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _add_facts(app: FastAPI, host: StreamHost, options: TransportOptions) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Answer while the server's process lives."""
        return {"status": "ok"}

    @app.get("/health")
    async def health() -> JSONResponse:
        """Answer 200 while the engine lives too; one in a long computation is busy, not dead."""
        stats = host.stats()
        replaced = stats.stage == "restart"
        status = "down" if not stats.alive else "busy" if replaced or _busy(stats) else "ok"
        body = {"status": status, "busy_s": round(stats.busy_s, 1), "restarts": stats.restarts}
        return JSONResponse(body, 200 if stats.alive else 503)

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        """Answer 200 when sessions can be made; being full is not being unready."""
        stats = host.stats()
        if stats.alive and stats.ready and not _busy(stats):
            return JSONResponse({"status": "ready", "capacity": _capacity(stats)})
        status = "down" if not stats.alive else "busy" if stats.ready else "warming"
        body = {"status": status, "stage": stats.stage, "progress": stats.progress}
        return JSONResponse(body, 503, {"Retry-After": "1"})

    for path, answer in (("/healthz", healthz), ("/health", health), ("/readyz", readyz)):
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """Return the server's version."""
        return {"version": options.version}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the models."""
        return {"object": "list", "data": [_describe(model) for model in host.stats().models]}

    @app.get("/v1/config")
    async def config() -> dict[str, Any]:
        """Return the effective settings and where each came from."""
        return dict(options.settings)

    schema = realtime_schema()

    @app.get("/schema/realtime.json")
    async def realtime() -> JSONResponse:
        """Return the JSON Schema of the realtime protocol."""
        return JSONResponse(schema, media_type="application/schema+json")


def _add_sockets(app: FastAPI, sessions: Sessions, options: TransportOptions) -> None:
    @app.websocket("/v1/realtime/video")
    async def video(websocket: WebSocket) -> None:
        await RealtimeSocket(websocket, sessions, options).run()

    @app.websocket(f"{SESSIONS}/{{session_id}}/view")
    async def view(websocket: WebSocket, session_id: str) -> None:
        await RealtimeSocket(websocket, sessions, options, session_id).run()

    for path in ("/v1/realtime/video", f"{SESSIONS}/{{session_id}}/view"):
        app.add_api_route(path, _no_socket, include_in_schema=False)

    @app.websocket(LATER_SOCKET)
    async def later(websocket: WebSocket) -> None:
        await websocket.send_denial_response(await _unsupported())


def _busy(stats: HostStats) -> bool:
    return stats.busy_s >= BUSY_AFTER_S


def _capacity(stats: HostStats) -> dict[str, int]:
    return {
        "sessions_free": stats.sessions_free,
        "pages_free": stats.pages_free,
        "queue_length": stats.queue_length,
        "overload": stats.overload,
    }


async def _no_socket() -> None:
    raise HTTPException(
        426,
        "open this address as a WebSocket, ws: or wss:; a proxy in between must pass Upgrade on",
        {"Upgrade": "websocket"},
    )


async def _unsupported() -> JSONResponse:
    return problem(422, "unsupported", "this server does not offer this yet")


def _describe(model: ModelInfo) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "owned_by": "streamgen",
        "width": model.width,
        "height": model.height,
        "fps": model.fps,
        "chunk_frames": model.chunk_frames,
        "suggestions": list(model.suggestions),
        **(model.details or {}),
    }
