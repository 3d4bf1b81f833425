"""HTTP responses that are sent part by part, and end with their source, client or server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from transport.broadcast import Broadcast
from transport.fanout import Spectator

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 1.0
LAST_WORD_S: Final = 0.2


class Parts(Protocol):
    """What a response consists of."""

    async def next_part(self) -> bytes | None:
        """Wait for what is to be sent next; None is the end."""


class Watching(Parts, Spectator, Protocol):
    """A viewer whose connection is an HTTP response."""


class PartsResponse(Response):
    """Send parts as they come. A client that leaves, or takes nothing for too long, is dropped."""

    def __init__(
        self,
        parts: Parts,
        send_timeout_s: float,
        headers: Mapping[str, str],
        *,
        status_code: int = 200,
        media_type: str | None = None,
    ) -> None:
        super().__init__(None, status_code, headers, media_type)
        if "content-length" not in headers:
            del self.headers["content-length"]
        self._parts = parts
        self._send_timeout_s = send_timeout_s
        self._sending_since: float | None = None
        self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the parts end or the client goes."""
        if scope["method"] == "HEAD":
            await self._start(send)
            await send({"type": "http.response.body"})
            return
        loop = asyncio.get_running_loop()
        sender = loop.create_task(self._send(send))
        leaving = loop.create_task(_disconnected(receive))
        stops = False
        try:
            done: set[asyncio.Task[None]] = set()
            while not done and not self._stuck():
                done, _ = await asyncio.wait(
                    {sender, leaving}, timeout=CHECK_INTERVAL_S, return_when="FIRST_COMPLETED"
                )
        except asyncio.CancelledError:
            stops = True  # so uvicorn ends what still runs when it stops: an end like any other
        finally:
            for task in (sender, leaving):
                task.cancel()
            await asyncio.gather(sender, leaving, return_exceptions=True)
        if sender.done() and not sender.cancelled():
            sender.result()
        if stops and not self._complete:
            await self._say_goodbye(send)
        elif not done:
            logger.info("dropped a client that took nothing for %g s", self._send_timeout_s)

    def _stuck(self) -> bool:
        since = self._sending_since
        now = asyncio.get_running_loop().time()
        return since is not None and now - since > self._send_timeout_s

    async def _send(self, send: Send) -> None:
        await self._start(send)
        while (part := await self._parts.next_part()) is not None:
            self._sending_since = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": part, "more_body": True})
            self._sending_since = None
        await send({"type": "http.response.body"})
        self._complete = True

    async def _start(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})

    async def _say_goodbye(self, send: Send) -> None:
        """End the response, unless the client does not read."""
        goodbye = asyncio.get_running_loop().create_task(_end(send))
        await asyncio.wait({goodbye}, timeout=LAST_WORD_S)
        goodbye.cancel()
        await asyncio.gather(goodbye, return_exceptions=True)


class ViewerResponse(PartsResponse):
    """Let a viewer watch a session for as long as its response lasts."""

    def __init__(
        self,
        broadcast: Broadcast,
        viewer: Watching,
        send_timeout_s: float,
        headers: Mapping[str, str],
        *,
        media_type: str,
    ) -> None:
        super().__init__(viewer, send_timeout_s, headers, media_type=media_type)
        self._broadcast = broadcast
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Attach the viewer, send, and detach it. Raises StreamError when it is refused."""
        if scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        await self._broadcast.attach(self._viewer)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._broadcast.detach(self._viewer)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(send: Send) -> None:
    await send({"type": "http.response.body"})
