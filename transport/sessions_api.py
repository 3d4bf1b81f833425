"""Sessions over HTTP: create, list, read, control, end."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from fastapi import APIRouter, Depends, Query, Request
from fastapi.security import HTTPBearer
from starlette.responses import JSONResponse

from transport import replies
from transport.bodies import JSON, read_body, schema_of_body
from transport.broadcast import Broadcast, Outcome, forked
from transport.fanout import Spectator, Viewer
from transport.fields import JSONSchema, ProtocolError
from transport.media_api import given_token
from transport.objects import object_schema
from transport.schema import client_schema
from transport.sessions import PATH, Sessions
from transport.wire import (
    MAX_FIRST_MESSAGE_BYTES,
    MAX_MESSAGE_BYTES,
    ClientMessage,
    SessionFork,
    SessionInteraction,
    SessionPing,
    SessionRewind,
    SessionStart,
    SessionStop,
    SessionUpdate,
    parse,
)

BEARER: Final = HTTPBearer(
    scheme_name="resume_token",
    description="The resume token, which a session's creation answers; or as ?token=...",
    auto_error=False,
)
NOT_OWNED: Final[dict[int | str, dict[str, Any]]] = {
    401: {"description": "The session's resume token is missing or wrong"}
}


def sessions_router(sessions: Sessions) -> APIRouter:
    """Return the routes under /v1/realtime/sessions."""
    router = APIRouter(prefix=PATH, tags=["sessions"])

    @router.post("", status_code=201, openapi_extra=schema_of_body(object_schema(SessionStart)))
    async def create_session(request: Request) -> JSONResponse:
        """Create a session; the body is `session.start` without its type."""
        body = await read_body(request, JSON, MAX_FIRST_MESSAGE_BYTES)
        start = parse(body, default_type=SessionStart.type)
        if not isinstance(start, SessionStart):
            raise ProtocolError(f"the body must be a {SessionStart.type}", param="type")
        return created(sessions, await sessions.open(start))

    @router.get("")
    async def list_sessions() -> dict[str, Any]:
        """List the sessions that live."""
        return {
            "object": "list",
            "data": [_describe(sessions, broadcast) for broadcast in sessions],
        }

    @router.get("/{session_id}")
    async def read_session(session_id: str) -> dict[str, Any]:
        """Read a session's state, prompts and figures."""
        return _describe(sessions, sessions.get(session_id))

    _add_control(router, sessions)
    return router


def _add_control(router: APIRouter, sessions: Sessions) -> None:
    """Add the routes that only a session's owner may use."""
    owned = owned_session(sessions)

    @router.delete("/{session_id}", responses=NOT_OWNED)
    async def end_session(session_id: str, broadcast: Broadcast = owned) -> dict[str, Any]:
        """End a session; answered when its memory is free."""
        broadcast.conclude(Outcome(stopped=True))
        await sessions.wait_ended(session_id)
        return {"id": session_id, "state": "closed"}

    @router.post(
        "/{session_id}/events",
        openapi_extra=schema_of_body(_event_schema()),
        responses=NOT_OWNED,
    )
    async def send_event(request: Request, broadcast: Broadcast = owned) -> dict[str, Any]:
        """Send a control message; the answer is the server's message to it."""
        message = parse(await read_body(request, JSON, MAX_MESSAGE_BYTES))
        return replies.to_object(await _obey(sessions, broadcast, message))


async def _obey(
    sessions: Sessions, broadcast: Broadcast, message: ClientMessage
) -> replies.ServerMessage:
    match message:
        case SessionInteraction() | SessionUpdate() | SessionRewind():
            receipt = await broadcast.control(message)
            return replies.InteractionQueued(receipt.event_id, receipt.prompt_revision)
        case SessionFork():
            child = await sessions.fork(broadcast, message)
            return forked(child, sessions.urls(child), message.event_id)
        case SessionStop():
            broadcast.conclude(Outcome(stopped=True))
            await sessions.wait_ended(broadcast.id)
            return replies.SessionDone(broadcast.player.tally.num_chunks, stopped=True)
        case SessionPing():
            return replies.SessionPong()
    raise ProtocolError(f"{message.type} is no control message", param="type")


def owned_session(sessions: Sessions) -> Any:
    """Return the default of a route's parameter that is a session of whoever asks.

    The route wants the resume token and answers 401 without it; its description says so.
    """

    def owned(
        session_id: str,
        request: Request,
        token: str | None = Query(None, description="the session's resume token"),
        bearer: object = Depends(BEARER),
    ) -> Broadcast:
        return sessions.find_controllable(session_id, given_token(request, token))

    return Depends(owned)


def created(sessions: Sessions, broadcast: Broadcast) -> JSONResponse:
    """Answer that a session was made: its tokens, where it is, and the values in effect."""
    location = sessions.location(broadcast)
    body = {
        "id": broadcast.id,
        "state": broadcast.stream.state,
        "viewer_token": broadcast.viewer_token,
        "resume_token": broadcast.resume_token,
        "urls": sessions.urls(broadcast),
        "config": dataclasses.asdict(broadcast.stream.config),
    }
    return JSONResponse(body, 201, {"Location": location})


def _describe(sessions: Sessions, broadcast: Broadcast) -> dict[str, Any]:
    return {
        "id": broadcast.id,
        "object": "realtime.session",
        "state": broadcast.stream.state,
        "urls": sessions.urls(broadcast, with_token=False),
        "chunk": broadcast.player.tally.num_chunks,
        "prompts": [dataclasses.asdict(entry) for entry in broadcast.timeline.prompts],
        "config": dataclasses.asdict(broadcast.stream.config),
        "viewers": [_describe_viewer(viewer) for viewer in broadcast.viewers],
        "stats": replies.to_object(broadcast.herald.stats()),
    }


def _describe_viewer(viewer: Spectator) -> dict[str, Any]:
    ack = viewer.last_ack if isinstance(viewer, Viewer) else None
    return {
        "format": viewer.format,
        "acks": isinstance(viewer, Viewer) and viewer.acks,
        "dropped": viewer.num_dropped,
        "displayed_frame_index": ack and ack.frame_index,
        "displayed_at_ms": ack and ack.displayed_at_ms,
    }


def _event_schema() -> JSONSchema:
    controls = (SessionInteraction, SessionUpdate, SessionRewind, SessionFork)
    return {"oneOf": [client_schema(kind) for kind in (*controls, SessionStop, SessionPing)]}
