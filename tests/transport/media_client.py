"""Clients of the media routes, as httpx and as a bare TCP socket."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.transport import bars
from tests.transport.conftest import RunningServer
from tests.transport.fake_host import FakeHost

PATIENCE_S = 60.0  # the machine may be busy
SESSIONS = "/v1/realtime/sessions"
STREAMS = ("stream.mjpeg", "stream.mp4")


def bar_host(pixel_format: str = "rgb", **changes: Any) -> FakeHost:
    """Return a host whose frames are numbered colour bars."""
    fields: dict[str, Any] = {"width": 128, "height": 96, "fps": 30, "chunk_s": 0.02}
    return FakeHost(paint=bars.PAINTED[pixel_format], **{**fields, **changes})


async def make_session(server: RunningServer, **fields: Any) -> dict[str, Any]:
    """Create a session over HTTP that runs whether anybody watches or not."""
    body = {"prompt": "bars", "run_unwatched": True, **fields}
    async with server.http() as http:
        answer = await http.post(SESSIONS, json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def media_path(session: dict[str, Any], name: str) -> str:
    """Return the path of a media route, with the viewer token."""
    return f"{SESSIONS}/{session['id']}/{name}?token={session['viewer_token']}"


@asynccontextmanager
async def streaming(server: RunningServer, path: str) -> AsyncIterator[httpx.Response]:
    """Open a response that has no end."""
    async with server.http() as http, http.stream("GET", path, timeout=PATIENCE_S) as answer:
        yield answer


async def collect(answer: httpx.Response) -> bytes:
    """Return what comes until the response is complete; it is an error when it does not end."""

    async def read() -> bytes:
        return b"".join([part async for part in answer.aiter_raw()])

    return await asyncio.wait_for(read(), PATIENCE_S)


async def film_of(answer: httpx.Response, num_frames: int) -> bytes:
    """Return an MP4 without end up to a whole fragment, with so many frames at least."""
    data = b""
    async for part in answer.aiter_raw():
        data += part
        if data.count(b"moof") > num_frames:
            break
    return data[: data.rindex(b"moof") - 4]


async def pictures_of(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Yield the JPEG pictures of a multipart response, each as soon as it is complete."""
    boundary = answer.headers["content-type"].partition("boundary=")[2].encode()
    data = b""
    async for part in answer.aiter_raw():
        data += part
        while b"\r\n\r\n" in data:
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"--" + boundary + b"\r\nContent-Type: image/jpeg"), head
            size = int(head.rpartition(b":")[2])
            if len(rest) < size + 2:
                break
            assert rest[size : size + 2] == b"\r\n"
            yield rest[:size]
            data = rest[size + 2 :]


async def raw_request(server: RunningServer, path: str, receive_bytes: int = 4096) -> socket.socket:
    """Send a request over a TCP socket of a small buffer, closed when the test ends."""
    sock = server.stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", server.port))
    await loop.sock_sendall(sock, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock


def reset(sock: socket.socket) -> None:
    """Close a connection as a process that is killed does."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


async def num_watching(server: RunningServer, session_id: str) -> int:
    """Return how many watch a session."""
    async with server.http() as http:
        return len((await http.get(f"{SESSIONS}/{session_id}")).json()["viewers"])


async def until_watching(server: RunningServer, session_id: str, number: int) -> None:
    """Wait until so many watch."""
    deadline = time.monotonic() + PATIENCE_S
    while await num_watching(server, session_id) != number:
        assert time.monotonic() < deadline, "the number of viewers did not come true"
        await asyncio.sleep(0.02)


async def first_bytes(server: RunningServer, path: str) -> bytes:
    """Return what comes first of a response without end."""
    async with streaming(server, path) as answer:
        async for part in answer.aiter_raw():
            return part
    raise AssertionError("nothing came")
