"""Routes that pages of other origins may use, and what browsers ask before they do."""

from __future__ import annotations

import logging
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from transport.problems import allowed_methods, problem

logger = logging.getLogger(__name__)

CORS: Final = {
    "Access-Control-Allow-Origin": "*",  # tokens are sent on purpose, never by the browser itself
    "Access-Control-Expose-Headers": "Location, ETag, Link, Retry-After, Accept-Post, Allow, "
    "Accept-Ranges, Content-Range, Content-Disposition",
}


class SharedRoute(APIRoute):
    """A route that pages of other origins may use, and whose errors they may read."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with the headers that let other origins read it, whatever is answered."""
        began = False

        async def share(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                MutableHeaders(scope=message).update(CORS)
            await send(message)

        try:
            await super().handle(scope, receive, share)
        except HTTPException as error:  # before the route itself: the method is not allowed
            request = Request(scope, receive)
            tell: Any = request.app.exception_handlers[HTTPException]
            await (await tell(request, error))(scope, receive, share)
        except Exception:
            if began:
                raise
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await problem(500, "internal", "the server failed")(scope, receive, share)


def add_preflight(router: APIRouter, path: str, about: dict[str, str] | None = None) -> None:
    """Have OPTIONS answered on a path whose other routes are there, with more headers if given."""

    @router.options(path, status_code=204)
    async def preflight(request: Request) -> Response:
        """Tell pages of other origins what they may send."""
        methods = allowed_methods(request)
        headers = {
            "Allow": methods,
            "Access-Control-Allow-Methods": methods,
            "Access-Control-Allow-Headers": (
                "Authorization, Content-Type, If-Match, If-None-Match, If-Range, Range"
            ),
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers={**headers, **(about or {})})
