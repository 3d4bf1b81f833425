"""Errors over HTTP: one shape, a true status, nothing from the inside."""

from __future__ import annotations

import logging
import math
from typing import Final

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

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
    return JSONResponse(body, status, headers)


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
        response = problem(error.status_code, code, error.detail)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> JSONResponse:
        return problem(500, "internal", "the server failed")
