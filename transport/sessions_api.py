"""Sessions over HTTP: create, list, read, control, end."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from transport import replies
from transport.broadcast import Broadcast, Outcome
from transport.fanout import Viewer
from transport.fields import JSONSchema, ProtocolError
from transport.objects import object_schema
from transport.options import TransportOptions
from transport.schema import client_schema
from transport.sessions import Sessions
from transport.wire import (
    MAX_FIRST_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    SessionInteraction,
    SessionPing,
    SessionStart,
    SessionStop,
    SessionUpdate,
    parse,
)

PATH: Final = "/v1/realtime/sessions"


def sessions_router(sessions: Sessions, options: TransportOptions) -> APIRouter:
    """Return the routes under /v1/realtime/sessions."""
    router = APIRouter(prefix=PATH, tags=["sessions"])

    @router.post("", status_code=201, openapi_extra=_body(object_schema(SessionStart)))
    async def create_session(request: Request) -> JSONResponse:
        """Create a session; the body is `session.start` without its type."""
        body = await read_body(request, MAX_FIRST_MESSAGE_BYTES)
        start = parse(body, default_type=SessionStart.type)
        if not isinstance(start, SessionStart):
            raise ProtocolError(f"the body must be a {SessionStart.type}", param="type")
        broadcast = await sessions.open(start)
        location = f"{options.root_path}{PATH}/{broadcast.id}"
        return JSONResponse(_created(broadcast, location), 201, {"Location": location})

    @router.get("")
    async def list_sessions() -> dict[str, Any]:
        """List the sessions that live."""
        return {"object": "list", "data": [_describe(broadcast) for broadcast in sessions]}

    @router.get("/{session_id}")
    async def read_session(session_id: str) -> dict[str, Any]:
        """Read a session's state, prompts and figures."""
        return _describe(sessions.get(session_id))

    @router.delete("/{session_id}")
    async def end_session(session_id: str) -> dict[str, Any]:
        """End a session; answered when its memory is free."""
        broadcast = sessions.get(session_id)
        broadcast.conclude(Outcome(stopped=True))
        await sessions.wait_ended(session_id)
        return {"id": session_id, "state": "closed"}

    @router.post("/{session_id}/events", openapi_extra=_body(_event_schema()))
    async def send_event(session_id: str, request: Request) -> dict[str, Any]:
        """Send a control message; the answer is the server's message to it."""
        broadcast = sessions.get(session_id)
        message = parse(await read_body(request, MAX_MESSAGE_BYTES))
        match message:
            case SessionInteraction() | SessionUpdate():
                receipt = await broadcast.control(message)
                queued = replies.InteractionQueued(receipt.event_id, receipt.prompt_revision)
                return replies.to_object(queued)
            case SessionStop():
                broadcast.conclude(Outcome(stopped=True))
                await sessions.wait_ended(session_id)
                num_chunks = broadcast.player.tally.num_chunks
                return replies.to_object(replies.SessionDone(num_chunks, stopped=True))
            case SessionPing():
                return replies.to_object(replies.SessionPong())
        raise ProtocolError(f"{message.type} is no control message", param="type")

    return router


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """Return a JSON body of bounded size; answers 415 or 413 otherwise."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "the body must be application/json")
    too_large = HTTPException(413, f"the body has at most {limit_bytes:,} bytes")
    if int(request.headers.get("content-length", 0)) > limit_bytes:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit_bytes:
            raise too_large
    return bytes(body)


def _created(broadcast: Broadcast, location: str) -> dict[str, Any]:
    return {
        "id": broadcast.id,
        "state": broadcast.stream.state,
        "viewer_token": broadcast.viewer_token,
        "resume_token": broadcast.resume_token,
        "urls": {"view": f"{location}/view", "events": f"{location}/events"},
        "config": dataclasses.asdict(broadcast.stream.config),
    }


def _describe(broadcast: Broadcast) -> dict[str, Any]:
    return {
        "id": broadcast.id,
        "object": "realtime.session",
        "state": broadcast.stream.state,
        "chunk": broadcast.player.tally.num_chunks,
        "prompts": [dataclasses.asdict(entry) for entry in broadcast.timeline.prompts],
        "config": dataclasses.asdict(broadcast.stream.config),
        "viewers": [_describe_viewer(viewer) for viewer in broadcast.viewers],
        "stats": replies.to_object(broadcast.stats()),
    }


def _describe_viewer(viewer: Viewer) -> dict[str, Any]:
    ack = viewer.last_ack
    return {
        "format": viewer.format,
        "acks": viewer.acks,
        "dropped": viewer.num_dropped,
        "displayed_frame_index": ack and ack.frame_index,
        "displayed_at_ms": ack and ack.displayed_at_ms,
    }


def _body(schema: JSONSchema) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _event_schema() -> JSONSchema:
    kinds = (SessionInteraction, SessionUpdate, SessionStop, SessionPing)
    return {"oneOf": [client_schema(kind) for kind in kinds]}
