"""Errors over HTTP: one shape, a true status, nothing from the inside."""

from __future__ import annotations

import logging
import math
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Match

from transport.fields import ProtocolError
from transport.stream import StreamError

logger = logging.getLogger(__name__)

STATUS: Final = {
    "invalid_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "conflict": 409,
    "unsupported": 422,
    "capacity": 503,
    "model_not_ready": 503,
    "out_of_memory": 503,
    "worker_restarted": 503,
}
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CODES: Final = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 422: "unsupported"}


def problem(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    retry_after_s: float | None = None,
) -> JSONResponse:
    """Return an error response."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    headers = {} if retry_after_s is None else {"Retry-After": str(math.ceil(retry_after_s))}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"  # demanded by RFC 9110, 11.6.1
    return JSONResponse(body, status, headers)


def allowed_methods(request: Request) -> str:
    """Return the methods that the application has for the path of a request, as `Allow` has them.

    The methods of a path are spread over routes, of which each knows its own only.
    """
    allowed = []
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            allowed.append(method)
    return ", ".join(allowed)


def add_handlers(app: FastAPI) -> None:
    """Have the application answer every error in the documented shape."""

    @app.exception_handler(ProtocolError)
    async def protocol_error(request: Request, error: ProtocolError) -> JSONResponse:
        return problem(STATUS[error.code], error.code, error.message, param=error.param)

    @app.exception_handler(StreamError)
    async def stream_error(request: Request, error: StreamError) -> JSONResponse:
        status = STATUS.get(error.code, 500)
        retry_after_s = error.retry_after_s
        if retry_after_s is None and status == 503:
            retry_after_s = 1
        return problem(
            status, error.code, error.message, param=error.param, retry_after_s=retry_after_s
        )

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        code = CODES.get(error.status_code, "invalid_request")
        headers = {**(error.headers or {})}
        message = error.detail
        if error.status_code == 405:
            headers["Allow"] = allowed_methods(request)
            message = f"{request.method} is not allowed here, only {headers['Allow']}"
        response = problem(error.status_code, code, message)
        response.headers.update(headers)
        return response

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        return problem(500, "internal", "the server failed")
