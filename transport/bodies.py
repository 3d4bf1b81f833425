"""Bodies of HTTP requests: bounded in size and time, of the type that is asked for."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import Request
from starlette.exceptions import HTTPException

from transport.fields import JSONSchema
from transport.goodbye import Goodbye

JSON: Final = "application/json"
BYTES: Final = "application/octet-stream"
TIMEOUT_S: Final = 60.0


async def read_body(request: Request, media_type: str, limit_bytes: int) -> bytes:
    """Return a body; answers 415 for another type, 413 above the limit, 408 for a slow one.

    Answers 503 when the server stops before the body is there.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        raise HTTPException(415, f"the body must be {media_type}")
    if int(request.headers.get("content-length", 0)) > limit_bytes:
        raise _too_large(limit_bytes)
    try:
        goodbye: Goodbye = request.app.state.goodbye
        body = goodbye.unless_said(_collect(request, limit_bytes))
        return await asyncio.wait_for(body, TIMEOUT_S)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the body did not come within {TIMEOUT_S:g} s") from None


def schema_of_body(schema: JSONSchema, media_type: str = JSON) -> dict[str, Any]:
    """Return what the published description says of a route's body."""
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


async def _collect(request: Request, limit_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(body)


def _too_large(limit_bytes: int) -> HTTPException:
    return HTTPException(413, f"the body has at most {limit_bytes:,} bytes")
