"""Time travel over HTTP: rewind, fork, snapshot, restore, replay."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from transport import replies
from transport.bodies import BYTES, JSON, read_body, schema_of_body
from transport.broadcast import Broadcast
from transport.fields import ProtocolError
from transport.objects import object_schema
from transport.options import TransportOptions
from transport.sessions import PATH, Sessions
from transport.sessions_api import NOT_OWNED, created, owned_session
from transport.stream import StreamError
from transport.wire import MAX_MESSAGE_BYTES, SessionFork, SessionRewind, parse

MAX_RESTORES: Final = 2  # at a time: each holds its body in memory
JSON_LINES: Final = "application/jsonl"


def travel_router(sessions: Sessions, options: TransportOptions) -> APIRouter:
    """Return the routes that go back in a session or copy it."""
    router = APIRouter(prefix=PATH, tags=["time travel"])
    owned = owned_session(sessions)
    restores = asyncio.Semaphore(MAX_RESTORES)

    @router.post(
        "/{session_id}/rewind",
        openapi_extra=schema_of_body(object_schema(SessionRewind)),
        responses=NOT_OWNED,
    )
    async def rewind(request: Request, broadcast: Broadcast = owned) -> dict[str, Any]:
        """Go on from the end of an earlier chunk; the body is `session.rewind` without its type."""
        message = parse(await _json(request), default_type=SessionRewind.type)
        if not isinstance(message, SessionRewind):
            raise ProtocolError(f"the body must be a {SessionRewind.type}", param="type")
        receipt = await broadcast.control(message)
        queued = replies.InteractionQueued(receipt.event_id, receipt.prompt_revision)
        return replies.to_object(queued)

    @router.post(
        "/{session_id}/fork",
        status_code=201,
        openapi_extra=schema_of_body(object_schema(SessionFork)),
        responses=NOT_OWNED,
    )
    async def fork(request: Request, broadcast: Broadcast = owned) -> JSONResponse:
        """Begin a second session from this one; the body is `session.fork` without its type."""
        message = parse(await _json(request), default_type=SessionFork.type)
        if not isinstance(message, SessionFork):
            raise ProtocolError(f"the body must be a {SessionFork.type}", param="type")
        return created(sessions, await sessions.fork(broadcast, message))

    @router.get("/{session_id}/snapshot", responses=NOT_OWNED)
    async def snapshot(session_id: str, broadcast: Broadcast = owned) -> Response:
        """Download all that `restore` needs to go on from here, on this server or another."""
        blob = await broadcast.stream.snapshot()
        return _file(blob, BYTES, f"{session_id}.snapshot")

    @router.get("/{session_id}/replay", responses=NOT_OWNED)
    async def replay(session_id: str, broadcast: Broadcast = owned) -> Response:
        """Download the JSON lines from which the whole video can be made again."""
        lines = await broadcast.stream.replay()
        return _file(lines, JSON_LINES, f"{session_id}.jsonl")

    blob_schema = {"type": "string", "format": "binary", "maxLength": options.max_snapshot_bytes}

    @router.post("/restore", status_code=201, openapi_extra=schema_of_body(blob_schema, BYTES))
    async def restore(request: Request) -> JSONResponse:
        """Go on from a snapshot, which is the body."""
        if restores.locked():
            raise StreamError("capacity", "other snapshots are read, try again", retry_after_s=2)
        async with restores:
            blob = await read_body(request, BYTES, options.max_snapshot_bytes)
            return created(sessions, await sessions.restore(blob))

    return router


async def _json(request: Request) -> bytes:
    return await read_body(request, JSON, MAX_MESSAGE_BYTES)


def _file(content: bytes, media_type: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type=media_type, headers=headers)
