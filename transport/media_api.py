"""A session's pictures over plain HTTP, for <img>, <video>, curl, ffmpeg and players."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from transport.broadcast import Broadcast
from transport.byte_ranges import FileResponse
from transport.encoder import HEADER
from transport.media_viewers import BOUNDARY, PictureViewer, VideoViewer
from transport.options import TransportOptions
from transport.parts_response import ViewerResponse
from transport.recordings import Recordings
from transport.sessions import PATH, Sessions
from transport.shared_route import SharedRoute, add_preflight
from transport.stream import StreamError

# Live pictures are for one viewer and one moment; nginx would hold them back.
LIVE: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
MP4: Final = "video/mp4"


def media_router(
    sessions: Sessions, options: TransportOptions, recordings: Recordings | None = None
) -> APIRouter:
    """Return the routes that show a session; each wants its viewer token."""
    router = APIRouter(prefix=PATH, tags=["media"], route_class=SharedRoute)
    _add_streams(router, sessions, options)
    _add_files(router, sessions, options, recordings)
    return router


def _add_streams(router: APIRouter, sessions: Sessions, options: TransportOptions) -> None:
    def with_room(session_id: str, token: str | None, request: Request) -> Broadcast:
        broadcast = sessions.find_watchable(session_id, given_token(request, token))
        sessions.places.check()
        return broadcast

    async def stream_mjpeg(
        session_id: str, request: Request, token: str | None = None
    ) -> ViewerResponse:
        """Watch as JPEG pictures one after another; a slow client skips some."""
        broadcast = with_room(session_id, token, request)
        kind = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
        viewer = PictureViewer(broadcast)
        return ViewerResponse(broadcast, viewer, options.send_timeout_s, LIVE, media_type=kind)

    async def stream_mp4(
        session_id: str, request: Request, token: str | None = None
    ) -> ViewerResponse:
        """Watch as one MP4 without end, which begins with the last keyframe."""
        broadcast = with_room(session_id, token, request)
        viewer = VideoViewer(broadcast)
        return ViewerResponse(broadcast, viewer, options.send_timeout_s, LIVE, media_type=MP4)

    _add(router, "stream.mjpeg", stream_mjpeg, "multipart/x-mixed-replace")
    _add(router, "stream.mp4", stream_mp4, MP4)


def _add_files(
    router: APIRouter,
    sessions: Sessions,
    options: TransportOptions,
    recordings: Recordings | None,
) -> None:
    def watchable(session_id: str, token: str | None, request: Request) -> Broadcast:
        return sessions.find_watchable(session_id, given_token(request, token))

    async def frame_jpg(session_id: str, request: Request, token: str | None = None) -> Response:
        """Return the picture shown last."""
        frame = await watchable(session_id, token, request).still()
        if frame is None:
            raise StreamError(
                "conflict",
                "the session has shown no picture yet: watch it, or start it with run_unwatched",
                retry_after_s=1,
            )
        jpeg = frame.payloads["jpeg"][HEADER.size :]
        return Response(jpeg, media_type="image/jpeg", headers=LIVE)

    async def recording_mp4(
        session_id: str, request: Request, token: str | None = None
    ) -> FileResponse:
        """Download what is recorded so far; ranges may be asked for."""
        if recordings is None:
            watchable(session_id, token, request)
            text = "nothing is recorded: this server was started without --record DIR"
            raise StreamError("not_found", text)
        path = recordings.find(session_id, given_token(request, token))
        about = {
            "Cache-Control": "private, no-cache",
            "Content-Disposition": f'attachment; filename="{path.name}"',
        }
        return FileResponse(path, request.headers, MP4, options.send_timeout_s, about)

    _add(router, "frame.jpg", frame_jpg, "image/jpeg")
    _add(router, "recording.mp4", recording_mp4, MP4)


def _add(router: APIRouter, name: str, answer: Callable[..., Any], kind: str) -> None:
    path = f"/{{session_id}}/{name}"
    responses: dict[int | str, dict[str, Any]] = {200: {"content": {kind: {}}}}
    router.add_api_route(path, answer, response_class=Response, responses=responses)
    router.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)
    add_preflight(router, path)


def given_token(request: Request, token: str | None) -> str | None:
    """Return the token of a request: of its `Authorization: Bearer`, or else of its query."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    return credentials.strip() if scheme.lower() == "bearer" else token
