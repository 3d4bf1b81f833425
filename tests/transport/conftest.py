"""A real server in the test's own loop, and clients of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from websockets.asyncio.client import connect

from tests.transport.fake_host import FakeHost
from tests.transport.realtime_client import RealtimeClient
from transport.http import create_app
from transport.options import TransportOptions
from transport.server import listen, uvicorn_config


@dataclass
class RunningServer:
    """A server with a fake engine on a port of its own."""

    host: FakeHost
    port: int
    uvicorn: uvicorn.Server
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def connect(self, path: str = "/v1/realtime/video", **fields: Any) -> RealtimeClient:
        """Open a realtime socket; it is closed when the test ends."""
        url = f"ws://127.0.0.1:{self.port}{path}"
        # A client that did not read what came cannot finish the closing handshake.
        opened = connect(url, max_size=None, close_timeout=1, **fields)
        socket = await self.stack.enter_async_context(opened)
        return RealtimeClient(socket)

    async def start(self, prompt: Any = "a red ball", **fields: Any) -> RealtimeClient:
        """Open a realtime socket and start a session."""
        client = await self.connect()
        client.acks = bool(fields.get("acks"))
        await client.start(prompt, **fields)
        return client

    def http(self) -> httpx.AsyncClient:
        """Return an HTTP client, to be used as a context."""
        return httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}")

    def viewers(self, session_id: str = "s1") -> list[Any]:
        """Return who watches a session, as the server knows them."""
        sessions = self.uvicorn.config.app.state.sessions  # type: ignore[union-attr]
        return list(sessions.get(session_id).viewers)

    def owner(self, session_id: str = "s1") -> dict[str, str]:
        """Return the headers with which the owner of a session asks."""
        sessions = self.uvicorn.config.app.state.sessions  # type: ignore[union-attr]
        return {"authorization": f"Bearer {sessions.get(session_id).resume_token}"}


Serve = Callable[..., Awaitable[RunningServer]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Start servers: `await serve(host, idle_timeout_s=..., ...)`."""
    (tmp_path / "index.html").write_text("<title>page</title>")
    (tmp_path / "app.js").write_text("export {};")
    async with contextlib.AsyncExitStack() as stack:

        async def start(host: FakeHost | None = None, **options: Any) -> RunningServer:
            host = host or FakeHost()
            app = create_app(host, TransportOptions(web_root=tmp_path, **options))
            sock = listen("127.0.0.1", 0)
            server = uvicorn.Server(uvicorn_config(app))
            serving = asyncio.create_task(server.serve(sockets=[sock]))

            async def stop() -> None:
                server.should_exit = True
                await serving

            stack.push_async_callback(stop)
            while not server.started:
                await asyncio.sleep(0.01)
            running = RunningServer(host, sock.getsockname()[1], server)
            await stack.enter_async_context(running.stack)
            return running

        yield start


async def eventually(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        await asyncio.sleep(0.01)


async def raw_socket(server: RunningServer, receive_bytes: int = 65_536) -> socket.socket:
    """Return a TCP socket on which the WebSocket handshake is done, closed when the test ends."""
    loop = asyncio.get_running_loop()
    sock = server.stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", server.port))
    request = (
        "GET /v1/realtime/video HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    )
    await loop.sock_sendall(sock, request.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += await loop.sock_recv(sock, 1)
    assert answer.startswith(b"HTTP/1.1 101")
    return sock
