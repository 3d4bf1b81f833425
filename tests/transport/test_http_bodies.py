"""Bodies of requests over HTTP, and what is said of wrong ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.transport.conftest import Serve
from tests.transport.test_http import SESSIONS, check_error, request

BAD_BODIES: list[tuple[Any, int, str]] = [
    ({"prompt": ""}, 400, "invalid_request"),
    ({"type": "session.stop"}, 400, "invalid_request"),
    ({"prompt": "a", "size": "1x1"}, 400, "invalid_request"),
    ({"prompt": "a", "colour": 1}, 422, "unsupported"),
    ({"prompt": "a", "model": "b"}, 404, "not_found"),
    ([], 400, "invalid_request"),
]


async def test_bad_bodies(serve: Serve) -> None:
    """A true status and the code of the realtime protocol."""
    server = await serve()
    async with server.http() as http:
        for body, status, code in BAD_BODIES:
            check_error(await http.post(SESSIONS, json=body), status, code)


async def test_bodies_that_are_no_json(serve: Serve) -> None:
    """400, never 500."""
    server = await serve()
    headers = {"content-type": "application/json; charset=utf-8"}
    async with server.http() as http:
        for body in (b"", b"{", b"\xff", b'{"prompt":"\\ud83d"}', b'{"a":1,"a":1}'):
            response = await http.post(SESSIONS, content=body, headers=headers)
            check_error(response, 400, "invalid_request")


async def test_other_media_types(serve: Serve) -> None:
    """415; a page of another origin cannot send JSON without asking."""
    server = await serve()
    async with server.http() as http:
        for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
            headers = {"content-type": media_type}
            response = await http.post(SESSIONS, content=b'{"prompt":"a"}', headers=headers)
            check_error(response, 415, "invalid_request")


@pytest.mark.parametrize("chunked", [False, True])
async def test_q13_large_bodies(serve: Serve, chunked: bool) -> None:
    """100 MiB are refused with 413 as soon as that is known, not when they are there."""
    server = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {100 * 1024 * 1024}"
    head = (
        f"POST {SESSIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{length}\r\n\r\n"
    )
    writer.write(head.encode())
    if chunked:
        for _ in range(5):
            writer.write(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
    status = await asyncio.wait_for(reader.readline(), 30)
    assert status.startswith(b"HTTP/1.1 413")
    writer.close()


async def test_control_bodies_have_the_limit_of_control_messages(serve: Serve) -> None:
    """64 KiB."""
    server = await serve()
    await server.start()
    body = {"type": "session.ping", "x": "x" * 65_536}
    path = f"{SESSIONS}/s1/events"
    response = await request(server, "POST", path, json=body, headers=server.owner())
    check_error(response, 413, "invalid_request")
